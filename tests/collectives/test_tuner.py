import numpy as np
import pytest

from collectives.applied import build_tuner
from collectives.calibration import load_default_calibration
from collectives.collective import CollectiveKind
from collectives.group import wiring_of
from collectives.measurements import wiring_of_run
from collectives.software import CollectiveAlgorithm, CollectiveSoftware, Protocol
from collectives.tuner import Tuner
from tests.collectives.machines import build_host
from topologies import build_cluster

SIZES = 2.0 ** np.arange(9, 33)


def choices(topology, hosts, ranks, kind, software=None):
    tuner = build_tuner(wiring_of_run(topology, hosts, ranks), load_default_calibration())
    candidates, chosen = tuner.choose(kind, SIZES, software or CollectiveSoftware())
    return [candidates[number] for number in chosen]


def test_two_a100_switch_from_ll_to_simple_at_one_mebibyte():
    # NCCL estimates LL at 6.6 + 2 x 0.6 us + size / 87.7 GB/s and Simple at 8.4 + 2 x 3.4 us +
    # size / 240 GB/s: equal at 7.4 us / (1 / 87.7 - 1 / 240) = 1.02 MB. Measured time jumps there.
    found = choices("dgx_a100", 1, 2, CollectiveKind.ALL_REDUCE)
    protocols = [protocol for _, protocol in found]
    assert protocols[:11] == [Protocol.LL] * 11  # 512 B to 512 KiB
    assert set(protocols[11:]) == {Protocol.SIMPLE}


def test_only_a_full_h100_host_lets_the_switch_add():
    full = choices("dgx_h100", 1, 8, CollectiveKind.ALL_REDUCE)
    half = choices("dgx_h100", 1, 4, CollectiveKind.ALL_REDUCE)
    assert full[-1][0] is CollectiveAlgorithm.NVLS
    assert half[-1][0] is CollectiveAlgorithm.RING


def test_small_all_reduces_over_hosts_go_by_tree():
    assert choices("dgx_h100", 4, 32, CollectiveKind.ALL_REDUCE)[0] == (
        CollectiveAlgorithm.TREE,
        Protocol.LL,
    )


def test_plugins_that_force_simple_leave_nothing_else():
    assert {protocol for _, protocol in choices("aws_p4d", 2, 16, CollectiveKind.ALL_REDUCE)} == {
        Protocol.SIMPLE
    }


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV])
def test_exchanges_are_pairwise_whatever_is_forced(kind):
    software = CollectiveSoftware(algorithm=CollectiveAlgorithm.TREE)
    assert {algorithm for algorithm, _ in choices("dgx_a100", 1, 2, kind, software)} == {
        CollectiveAlgorithm.PAIRWISE
    }


def test_parallel_trees_need_one_rank_a_host_and_a_recent_release():
    recent = choices("dgx_h100", 8, 8, CollectiveKind.ALL_GATHER)
    old = choices(
        "dgx_h100", 8, 8, CollectiveKind.ALL_GATHER, CollectiveSoftware(nccl_version=(2, 20))
    )
    forced = choices(
        "dgx_h100",
        8,
        8,
        CollectiveKind.ALL_GATHER,
        CollectiveSoftware(algorithm=CollectiveAlgorithm.PAT),
    )
    assert {algorithm for algorithm, _ in old} == {CollectiveAlgorithm.RING}
    assert {algorithm for algorithm, _ in recent} <= {
        CollectiveAlgorithm.RING,
        CollectiveAlgorithm.PAT,
    }
    assert {algorithm for algorithm, _ in forced} == {CollectiveAlgorithm.PAT}


@pytest.mark.parametrize(
    ("kind", "crossings"),
    [
        # Two hosts of four: 14 steps, each border crossed twice in both passes.
        (CollectiveKind.ALL_REDUCE, 4),
        # Seven steps; the shares of the other host come over one border.
        (CollectiveKind.ALL_GATHER, 1),
    ],
)
def test_the_plan_of_a_ring_counts_its_crossings_between_hosts(kind, crossings):
    tuner = planning_tuner(hosts=2, gpus=4)
    ring, simple = CollectiveAlgorithm.RING, Protocol.SIMPLE
    steps = 14 if kind is CollectiveKind.ALL_REDUCE else 7
    table = tuner.constants
    net_ns = table.net_ns[ring][simple] + 1_000
    inside_ns = table.nvlink_ns[ring][simple]
    expected = table.base_ns[ring][simple] + crossings * net_ns + (steps - crossings) * inside_ns
    assert tuner._latency_ns(kind, ring, simple) == pytest.approx(expected)


def test_a_ring_inside_a_host_crosses_nothing():
    tuner = planning_tuner(hosts=1, gpus=4)
    ring, ll = CollectiveAlgorithm.RING, Protocol.LL
    # 6.6 us and 2 x 3 steps of 0.6 us.
    assert tuner._latency_ns(CollectiveKind.ALL_REDUCE, ring, ll) == pytest.approx(10_200)


def test_a_tree_between_hosts_is_planned_with_four_fifths_of_the_links_inside():
    # Links of 100 GB/s, of which NCCL counts 0.80 on Ampere; NICs of 4 x 100 GB/s do not bind.
    # 0.8 x 80 GB/s x 0.92 for Simple, halved because the buffer goes up and down.
    tuner = planning_tuner(hosts=4, gpus=4, nic_gb_per_s=100.0)
    planned = tuner._bandwidth(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, Protocol.SIMPLE)
    assert planned == pytest.approx(0.5 * 0.92 * 0.8 * 80e9)


def test_a_tree_inside_a_host_is_planned_with_all_of_the_links():
    tuner = planning_tuner(hosts=1, gpus=4)
    planned = tuner._bandwidth(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, Protocol.SIMPLE)
    assert planned == pytest.approx(0.5 * 0.92 * 80e9)


def test_a_tree_between_two_hosts_reaches_twice_their_nics():
    tuner = planning_tuner(hosts=2, gpus=4, nic_gb_per_s=5.0)
    planned = tuner._bandwidth(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, Protocol.SIMPLE)
    # 4 NICs of 5 GB/s, twice: 40 GB/s, below 0.8 x 80.
    assert planned == pytest.approx(0.5 * 0.92 * 40e9)


def planning_tuner(*, hosts: int, gpus: int, nic_gb_per_s: float = 25.0) -> Tuner:
    """NCCL's tuner for hosts of our own; only its own planning table is used, nothing fitted."""
    cluster = build_cluster(build_host(gpus=gpus, nic_gb_per_s=nic_gb_per_s), hosts=hosts)
    wiring = wiring_of(range(cluster.rank_count), cluster)
    return Tuner(load_default_calibration().tuner, wiring, tuple(Protocol))


def test_nccl_of_volta_goes_round_two_hosts_where_later_ones_take_both_trees():
    volta = choices("dgx1_v100", 2, 16, CollectiveKind.ALL_REDUCE)
    p4d = choices("aws_p4d", 2, 16, CollectiveKind.ALL_REDUCE)
    assert volta[-1][0] is CollectiveAlgorithm.RING
    assert p4d[-1][0] is CollectiveAlgorithm.TREE
