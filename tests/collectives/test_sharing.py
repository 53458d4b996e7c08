import pytest

from collectives import Collective, CollectiveCall, CollectiveKind, price_collective, share_links
from perfmodel.base.errors import InputError
from tests.collectives.machines import build_host
from topologies import build_cluster, load_topology

GIB = 1 << 30


def together(cluster, *calls):
    made = [
        CollectiveCall(Collective(CollectiveKind.ALL_REDUCE, size), ranks) for size, ranks in calls
    ]
    costs = [price_collective(c.collective, cluster=cluster, ranks=c.ranks) for c in made]
    return costs, share_links(made, costs, cluster=cluster)


def h100():
    return build_cluster(load_topology("dgx_h100"), hosts=2)


def test_all_reduces_on_disjoint_rails_do_not_slow_each_other():
    alone, shared = together(h100(), (GIB, [0, 8]), (GIB, [1, 9]))
    assert shared == alone


def test_on_one_nic_each_takes_the_time_of_the_sum():
    alone, shared = together(h100(), (GIB, [0, 8]), (GIB, [0, 8]))
    for cost in shared:
        # Wire time of both, latency once.
        wires = sum(one.duration_ns - one.latency_ns for one in alone)
        assert cost.duration_ns == pytest.approx(wires + alone[0].latency_ns)


def test_ranks_that_share_a_nic_slow_each_other_although_they_share_no_gpu():
    cluster = build_cluster(build_host(gpus=4, nics=1), hosts=2)
    alone, shared = together(cluster, (GIB, [0, 4]), (GIB, [1, 5]))
    assert shared[0].duration_ns == pytest.approx(2 * alone[0].duration_ns, rel=0.01)


def test_a_short_one_ends_early_and_gives_the_link_back():
    alone, shared = together(h100(), (GIB, [0, 8]), (3 * GIB, [0, 8]))
    short, long = (one.duration_ns - one.latency_ns for one in alone)
    # Half speed until the short one is done: 2 x short. The long one then has the wire alone.
    assert shared[0].duration_ns - alone[0].latency_ns == pytest.approx(2 * short)
    assert shared[1].duration_ns - alone[1].latency_ns == pytest.approx(short + long)


def test_groups_on_other_gpus_of_a_switch_do_not_meet():
    alone, shared = together(h100(), (GIB, [0, 1]), (GIB, [2, 3]))
    assert shared == alone


def test_latency_is_not_shared():
    alone, shared = together(h100(), (0, [0, 8]), (0, [0, 8]))
    assert shared == alone


def test_calls_without_costs_are_refused():
    with pytest.raises(InputError, match="1 calls and 0 costs"):
        share_links(
            [CollectiveCall(Collective(CollectiveKind.BARRIER, 0), [0, 1])], [], cluster=h100()
        )
