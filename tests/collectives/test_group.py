import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from collectives.calibration import load_default_calibration
from collectives.collective import Collective, CollectiveKind
from collectives.group import group_shape, lane_bandwidth, wiring_of
from collectives.pricing import price_collective
from collectives.wiring import HostLinkClass
from perfmodel.base.errors import InputError
from tests.collectives.machines import build_host
from topologies import LinkKind, build_cluster, load_topology


def h100(hosts=4):
    return build_cluster(load_topology("dgx_h100"), hosts=hosts)


def test_a_shape_is_that_of_translated_and_reordered_groups_and_not_of_other_gpus():
    cluster = h100()
    assert group_shape([0, 1, 8, 9], cluster) == group_shape([16, 17, 24, 25], cluster)
    assert group_shape([9, 0, 8, 1], cluster) == group_shape([0, 1, 8, 9], cluster)
    assert group_shape([0, 1], cluster) != group_shape([0, 2], cluster)


def test_a_shape_counts_hosts_and_ranks_of_an_uneven_group():
    # Hosts 0 and 1 hold two ranks each, host 2 one.
    shape = group_shape([0, 1, 8, 9, 16], h100())
    assert (shape.host_count, shape.rank_count) == (3, 5)
    assert shape.patterns == (((0,), 0, 1), ((0, 1), 0, 2))


def test_racks_of_72_gpus_have_shapes_too():
    cluster = build_cluster(load_topology("gb200_nvl72"), hosts=1)
    shape = group_shape(np.arange(cluster.rank_count), cluster)
    assert shape.patterns == ((tuple(range(cluster.rank_count)), 0, 1),)


def test_a_group_on_a_switch_sees_the_nvlinks_of_a_gpu():
    wiring = wiring_of(range(8), h100())
    assert wiring.link_class is HostLinkClass.NVSWITCH
    assert wiring.ring_bandwidth_bytes_per_s == 450e9  # 18 NVLinks of 25 GB/s
    assert wiring.can_reduce_in_switch


def test_a_group_uses_only_the_nics_of_its_ranks():
    # Two ranks on each of four hosts: two NICs of 50 GB/s a host.
    wiring = wiring_of([0, 1, 8, 9, 16, 17, 24, 25], h100())
    assert wiring.nic_bandwidth_bytes_per_s == 100e9
    assert (wiring.nic_count, wiring.nic_sharing) == (2, 1)


def test_gpus_that_share_a_nic_share_its_bandwidth():
    cluster = build_cluster(build_host(gpus=4, nics=2, nic_gb_per_s=25), hosts=2)
    wiring = wiring_of(range(8), cluster)
    assert wiring.nic_bandwidth_bytes_per_s == 50e9
    assert wiring.nic_sharing == 2


@pytest.mark.parametrize(
    ("peer_to_peer", "kind", "bandwidth"),
    # Through one switch as fast as a slot; else four flows share the 32 GB/s to the CPU.
    [(True, HostLinkClass.PCIE_PEER, 32e9), (False, HostLinkClass.PCIE_HOST, 8e9)],
)
def test_a_pcie_ring_goes_by_the_switch_or_the_cpu(peer_to_peer, kind, bandwidth):
    host = build_host(wires="pcie", peer_to_peer=peer_to_peer)
    wiring = wiring_of(range(4), build_cluster(host, hosts=1))
    assert (wiring.link_class, wiring.ring_bandwidth_bytes_per_s) == (kind, bandwidth)


def test_a_pcie_host_of_which_nobody_says_more_is_told_apart():
    slow = build_host(wires="pcie", peer_to_peer=False)
    stated = wiring_of(range(4), build_cluster(slow, hosts=1))
    silent = replace(build_host(wires="pcie"), peer_to_peer=None)
    assumed = wiring_of(range(4), build_cluster(silent, hosts=1))
    assert not stated.is_peer_assumed
    assert assumed == replace(stated, is_peer_assumed=True)
    sigma = load_default_calibration().relative_sigma
    # The upper end of 90 % is three times slower: exp(1.645 x 0.7).
    assert sigma(assumed, CollectiveKind.ALL_TO_ALL, 1e6, 0.05) == 0.7
    assert sigma(stated, CollectiveKind.ALL_TO_ALL, 1e6, 0.05) < 0.5


def test_oversubscription_slows_pairs_only_where_the_group_crosses_the_spine():
    topology = build_host(oversubscription=4.0)  # leaves of four hosts
    near = wiring_of(range(16), build_cluster(topology, hosts=4))
    far = wiring_of(range(32), build_cluster(topology, hosts=8))
    assert near.pair_oversubscription == 1.0
    assert far.pair_oversubscription == 2.0  # half of all pairs cross: 4 x 1/2


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "at least one rank"),
        ([0, 1, 0], "rank 0 occurs twice"),
        ([3, 1, 2, 3], "rank 3 occurs twice"),
        ([0, 32], "got rank 32"),
        ([-1, 0], "got rank -1"),
    ],
)
def test_nonsense_groups_are_refused(ranks, words):
    with pytest.raises(InputError, match=words):
        group_shape(ranks, h100())


def test_the_nic_with_most_ranks_decides():
    # Three GPUs on two NICs: one of them serves two.
    topology = build_host(gpus=3, nics=2)
    wiring = wiring_of(range(6), build_cluster(topology, hosts=2))
    [(busiest, count)] = Counter(topology.nic_of_gpu).most_common(1)
    assert (count, wiring.nic_sharing, wiring.nic_count) == (2, 2, 2)
    assert wiring.nic_link == f"nic:{busiest} -> leaf"


def test_equal_groups_of_one_topology_are_worked_out_once():
    first, second = build_host(gpus=4), build_host(gpus=4, link_gb_per_s=50.0)
    near, far = (wiring_of(range(4), build_cluster(one)) for one in (first, second))
    assert wiring_of(range(4), build_cluster(first)) is near
    assert far.ring_bandwidth_bytes_per_s == near.ring_bandwidth_bytes_per_s / 2


def test_the_largest_and_among_equals_the_slowest_host_decides_inside():
    # A host of three ranks beside one of two; on a mesh two have one wire, three two rings.
    cluster = build_cluster(build_host(gpus=4, wires="mesh"), hosts=2)
    wiring = wiring_of([0, 1, 2, 4, 5], cluster)
    assert (wiring.ranks_per_host, wiring.rank_count, wiring.host_count) == (3, 5, 2)
    assert wiring.ring_bandwidth_bytes_per_s == pytest.approx(200e9)


@pytest.mark.parametrize("ranks", [[0, 1, 8, 10], [0, 2, 8, 9]])
def test_of_hosts_with_as_many_ranks_the_slowest_decides_inside(ranks):
    # A pair with a bridge in one host, a pair without one in the other.
    machine = load_topology("rtx_a5000_pcie_nvbridge")
    inside = [wiring_of(pair, build_cluster(machine)) for pair in ([0, 1], [0, 2])]
    bridged, apart = (one.ring_bandwidth_bytes_per_s for one in inside)
    assert apart < bridged
    wiring = wiring_of(ranks, build_cluster(machine, hosts=2))
    assert wiring.ring_bandwidth_bytes_per_s == apart


def test_latency_between_hosts_is_that_of_ports_and_of_a_spine_that_is_crossed():
    topology = build_host(spine_latency_ns=350.0, call_latency_ns=9_000.0)  # leaves of four hosts
    alone, near, far = (
        wiring_of(range(4 * hosts), build_cluster(topology, hosts=hosts)) for hosts in (1, 4, 8)
    )
    # Ports of 600 ns on both sides, up and down the spine 350 ns each.
    assert [one.net_latency_ns for one in (alone, near, far)] == [0.0, 1200.0, 1900.0]
    # 9 us for each doubling of the hosts.
    assert [one.call_latency_ns for one in (alone, near, far)] == [0.0, 18_000.0, 27_000.0]


def test_trays_of_a_rack_are_one_host():
    racks = build_cluster(build_host(gpus=8, trays=4), hosts=5)
    # Ten ranks: eight in the first rack, two on the first tray of the second.
    shape = group_shape(range(10), racks)
    assert shape.patterns == (((0, 1), 0, 1), (tuple(range(8)), 0, 1))
    assert group_shape([2, 3], racks).patterns == (((2, 3), 0, 1),)


def test_a_chain_runs_over_one_lane_of_the_thinnest_wire():
    topology = build_host(gpus=3, wires="mesh")
    links = tuple(
        replace(link, lanes=4 if "gpu:0" in (link.source, link.target) else 5)
        if link.kind is LinkKind.NVLINK
        else link
        for link in topology.links
    )
    # 100 GB/s in four lanes or in five.
    assert lane_bandwidth(replace(topology, links=links)) == 20e9


@pytest.mark.parametrize("name", ["dgx_a100", "dgx_h100", "dgx1_v100"])
def test_a_gpu_without_nvlink_makes_its_groups_go_over_pcie(name):
    sound = load_topology(name)
    links = tuple(
        one
        for one in sound.links
        if one.kind is not LinkKind.NVLINK or "gpu:3" not in (one.source, one.target)
    )
    lame = replace(sound, links=links, measured="none")
    assert any("gpu:3 of" in said and "PCIe" in said for said in lame.assumed)
    for hosts in (1, 4):
        cluster, before = build_cluster(lame, hosts=hosts), build_cluster(sound, hosts=hosts)
        for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL):
            call = Collective(kind, 2**26)
            everyone = range(cluster.rank_count)
            slow = price_collective(call, cluster=cluster, ranks=everyone)
            assert math.isfinite(slow.duration_ns)
            fast = price_collective(call, cluster=before, ranks=everyone)
            assert slow.duration_ns > fast.duration_ns
            assert "nvswitch" not in slow.busiest_link
    around = wiring_of([0, 1, 2], build_cluster(lame, hosts=1))
    assert replace(around, measured="") == replace(
        wiring_of([0, 1, 2], build_cluster(sound, hosts=1)), measured=""
    )
