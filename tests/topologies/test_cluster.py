import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import both_ways, build_fabric, build_pcie_host, build_topology
from topologies import FabricKind, LinkKind, build_cluster, load_topology


def gpus_of(cluster) -> list[int]:
    return cluster.seats_of(np.arange(cluster.rank_count))[1].tolist()


def test_ranks_fill_host_after_host():
    cluster = build_cluster(build_pcie_host(), hosts=3)

    assert cluster.rank_count == 12
    assert cluster.host_of_rank.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert gpus_of(cluster) == [0, 1, 2, 3] * 3
    assert cluster.seat_of(6) == (1, 2)
    # NIC 1 of host 1; numbers of hosts are 4 apart, as many as GPUs.
    assert cluster.nics_of(np.array([6])).tolist() == [5]


@given(hosts=st.integers(1, 40), per_host=st.integers(1, 4))
def test_the_seat_of_one_rank_is_that_of_the_arrays(hosts, per_host):
    cluster = build_cluster(build_pcie_host(), hosts=hosts, ranks_per_host=per_host)
    ranks = range(cluster.rank_count)

    assert cluster.rank_count == hosts * per_host
    assert cluster.host_count == hosts
    assert [cluster.host_of(rank) for rank in ranks] == cluster.host_of_rank.tolist()
    seats = [cluster.seat_of(rank) for rank in ranks]
    assert [gpu for _, gpu in seats] == gpus_of(cluster)
    assert len(set(seats)) == cluster.rank_count


def test_ranks_are_spread_evenly_over_hosts():
    assert gpus_of(build_cluster(build_pcie_host(), hosts=2, ranks=4)) == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"hosts": 0}, "at least one host"),
        ({"hosts": 2, "ranks": 3}, "3 ranks cannot be spread evenly over 2 hosts"),
        ({"ranks": 12}, "has room for 1 to 4 ranks per host, got 12. Ask for 3 hosts or more"),
        ({"hosts": 2, "ranks_per_host": 0}, "has room for 1 to 4 ranks per host, got 0"),
        ({"hosts": 2, "ranks": 6, "ranks_per_host": 2}, "make 4 ranks, not 6"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(request_, complaint):
    with pytest.raises(TopologyError, match=complaint):
        build_cluster(build_pcie_host(), **request_)


def test_hosts_without_fabric_and_ranks_that_do_not_exist_are_refused():
    with pytest.raises(TopologyError, match="no fabric to join 2 hosts"):
        build_cluster(build_pcie_host(fabric=None), hosts=2)
    with pytest.raises(TopologyError, match="rank 4: must be from 0 to 3"):
        build_cluster(build_pcie_host()).host_of(4)


def test_a_route_inside_a_host_is_that_of_the_topology():
    topology = build_pcie_host()
    route = build_cluster(topology, hosts=2).route(4, 7)

    assert route.source == "host1/gpu:0"
    assert route.target == "host1/gpu:3"
    assert route.latency_ns == topology.gpu_route(0, 3).latency_ns


def test_equal_nics_of_a_block_meet_on_their_leaf():
    route = build_cluster(build_pcie_host(), hosts=4).route(0, 4)

    assert route.stops == (
        "host0/pcie_switch:0", "host0/nic:0", "leaf:0.0", "host1/nic:0", "host1/pcie_switch:0",
    )  # fmt: skip
    # Two PCIe links of 100 ns on each side and 500 ns at each NIC.
    assert route.latency_ns == 4 * 100 + 2 * 500
    assert route.bandwidth_bytes_per_s == 12.5e9
    assert [kind for kind in route.kinds if kind is LinkKind.NIC] == [LinkKind.NIC] * 2


def test_other_rails_and_other_blocks_are_a_spine_away():
    cluster = build_cluster(build_pcie_host(), hosts=4)

    for rank_a, rank_b in ((0, 6), (0, 8)):  # NIC 0 to NIC 1; block 0 to block 1
        route = cluster.route(rank_a, rank_b)
        assert "spine:0" in route.stops
        # As above, and 200 ns up and down the spine.
        assert route.latency_ns == 4 * 100 + 2 * 500 + 2 * 200


def test_on_a_flat_fabric_only_other_blocks_are_a_spine_away():
    flat = build_pcie_host(fabric=build_fabric(kind=FabricKind.FLAT))
    cluster = build_cluster(flat, hosts=4)
    assert "spine:0" not in cluster.route(0, 6).stops
    assert "spine:0" in cluster.route(0, 8).stops


def test_trays_of_a_rack_are_hosts_to_a_launcher():
    rack = load_topology("gb200_nvl72")
    two_trays = build_cluster(rack, hosts=2, ranks_per_host=4)
    # One rack, so NVLink all the way.
    assert two_trays.host_count == 1
    assert gpus_of(two_trays) == list(range(8))
    assert two_trays.route(0, 7).is_nvlink
    assert gpus_of(build_cluster(rack, hosts=2, ranks=4)) == [0, 1, 4, 5]
    # Trays beyond a rack go to the next.
    cluster = build_cluster(rack, hosts=36, ranks_per_host=4)
    assert cluster.host_count == 2
    assert cluster.ranks_per_host == 72
    assert cluster.seat_of(72) == (1, 0)
    assert not cluster.route(71, 72).is_nvlink


@pytest.mark.parametrize(
    ("trays", "racks", "in_first"),
    # 64 trays are four racks of 16, not three of 18 and a rest of 10; 20 are two of 10; 19 is
    # prime, so its racks cannot be equal and are filled.
    [(16, 1, 64), (18, 1, 72), (20, 2, 40), (64, 4, 64), (128, 8, 64), (19, 2, 72)],
)
def test_racks_get_equal_segments_of_trays(trays, racks, in_first):
    cluster = build_cluster(load_topology("gb200_nvl72"), hosts=trays, ranks_per_host=4)
    assert cluster.host_count == racks
    assert np.count_nonzero(cluster.host_of_rank == 0) == in_first
    assert cluster.route(0, in_first - 1).is_nvlink
    assert racks == 1 or not cluster.route(in_first - 1, in_first).is_nvlink


def test_hosts_that_hold_more_than_a_tray_are_racks():
    rack = load_topology("gb200_nvl72")
    assert gpus_of(build_cluster(rack, hosts=1, ranks=8)) == list(range(8))
    assert build_cluster(rack, hosts=2).rank_count == 144
    assert build_cluster(rack, hosts=2, ranks=16).host_count == 2


def test_clusters_are_values():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=512)
    copy = pickle.loads(pickle.dumps(cluster))

    assert copy == cluster
    assert hash(copy) == hash(cluster)
    assert copy.route(0, 4095) == cluster.route(0, 4095)


def test_a_cluster_of_16384_ranks_costs_nothing_to_build():
    topology = load_topology("dgx_h100")
    start = time.perf_counter()
    cluster = build_cluster(topology, hosts=2048)
    hosts = cluster.host_of_rank
    for rank in range(0, 16_384, 64):
        cluster.route(0, rank + 1)

    assert cluster.rank_count == 16_384
    assert np.bincount(hosts).tolist() == [8] * 2048
    assert time.perf_counter() - start < 2.0


def test_hosts_that_nothing_joins_have_no_route():
    topology = build_topology(both_ways("gpu:0", "gpu:1"), counts={"gpu": 2})
    apart = replace(build_cluster(topology), block_count=2)
    with pytest.raises(TopologyError, match="has no fabric"):
        apart.route(0, 2)


def test_seats_and_nics_of_many_ranks_are_those_of_each():
    cluster = build_cluster(load_topology("gb200_nvl72"), hosts=20, ranks_per_host=4)
    ranks = np.array([3, 4, 71, 72, 79])
    hosts, gpus = cluster.seats_of(ranks)
    assert list(zip(hosts, gpus, strict=True)) == [cluster.seat_of(int(rank)) for rank in ranks]
    nics = np.array(cluster.topology.nic_of_gpu)
    assert cluster.nics_of(ranks).tolist() == (hosts * len(nics) + nics[gpus]).tolist()
