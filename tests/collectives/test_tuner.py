import numpy as np
import pytest

from collectives.applied import build_tuner
from collectives.calibration import load_default_calibration
from collectives.collective import CollectiveKind
from collectives.measurements import wiring_of_run
from collectives.software import CollectiveAlgorithm, CollectiveSoftware, Protocol

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
