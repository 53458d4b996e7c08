import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import build_pcie_host
from topologies import build_cluster, build_layout, load_topology


def test_a_group_inside_a_host_has_no_route_across():
    layout = build_layout(build_cluster(build_pcie_host()), [0, 1])

    assert (layout.rank_count, layout.host_count) == (2, 1)
    assert layout.inside is not None
    assert layout.inside.bandwidth_bytes_per_s == 32e9  # under one PCIe switch
    assert layout.across is None
    assert layout.host_bandwidth_bytes_per_s == 0


def test_the_slowest_route_inside_counts():
    layout = build_layout(build_cluster(build_pcie_host()), [0, 1, 2])

    assert layout.inside.bandwidth_bytes_per_s == 16e9  # 0 to 2 goes over the socket


def test_a_group_over_hosts_knows_its_nics():
    cluster = build_cluster(build_pcie_host(), hosts=2)
    layout = build_layout(cluster, range(8))

    assert (layout.most_ranks_per_host, layout.fewest_nics_per_host) == (4, 2)
    assert layout.most_ranks_per_nic == 2
    assert not layout.crosses_spine  # two hosts a leaf, seats face each other on their rails
    # 2 NICs x 12.5 GB/s.
    assert layout.host_bandwidth_bytes_per_s == 25e9


def test_across_the_spine_oversubscription_takes_its_share():
    layout = build_layout(build_cluster(build_pcie_host(), hosts=4), range(16))

    assert layout.crosses_spine
    # 2 NICs x 12.5 GB/s, 2 to 1 oversubscribed.
    assert layout.host_bandwidth_bytes_per_s == 12.5e9


def test_one_rank_a_host_uses_one_nic():
    layout = build_layout(build_cluster(build_pcie_host(), hosts=2), [0, 4])

    assert layout.inside is None
    assert (layout.fewest_nics_per_host, layout.most_ranks_per_nic) == (1, 1)
    assert layout.host_bandwidth_bytes_per_s == 12.5e9


def test_an_uneven_group_says_so():
    layout = build_layout(build_cluster(build_pcie_host(), hosts=2), [0, 1, 2, 4])

    assert not layout.is_even
    assert (layout.most_ranks_per_host, layout.fewest_ranks_per_host) == (3, 1)
    assert layout.fewest_nics_per_host == 1


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1], [99]])
def test_a_group_that_is_none_is_refused(ranks):
    with pytest.raises(TopologyError, match="group:"):
        build_layout(build_cluster(build_pcie_host()), ranks)


@given(
    ranks=st.lists(st.integers(0, 15), min_size=2, max_size=16, unique=True),
    shift=st.sampled_from([8]),
)
def test_moving_a_group_by_a_whole_block_changes_nothing(ranks, shift):
    cluster = build_cluster(build_pcie_host(), hosts=6)
    here = build_layout(cluster, ranks)
    there = build_layout(cluster, [rank + shift for rank in ranks])

    assert here.host_bandwidth_bytes_per_s == there.host_bandwidth_bytes_per_s
    assert here.crosses_spine == there.crosses_spine
    assert (here.inside is None) == (there.inside is None)
    assert here.most_ranks_per_nic == there.most_ranks_per_nic


def test_a_group_of_16384_ranks_is_described_at_once():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=2048)
    start = time.perf_counter()
    layout = build_layout(cluster, range(cluster.rank_count))

    assert time.perf_counter() - start < 2.0
    assert layout.host_count == 2048
    assert layout.host_bandwidth_bytes_per_s == 8 * 50e9
