from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import (
    Collective,
    CollectiveAlgorithm,
    CollectiveKind,
    CollectiveSoftware,
    Protocol,
    price_collective,
    price_sizes,
    wiring_of,
)
from collectives.calibration import load_default_calibration
from collectives.measurements import wiring_of_run
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, TopologyError
from perfmodel.base.provenance import Provenance
from tests.collectives.machines import build_host, hosts
from topologies import build_cluster, load_topology

KINDS = [kind for kind in CollectiveKind if kind is not CollectiveKind.SEND_RECV]
ORDINARY = [kind for kind in KINDS if kind is not CollectiveKind.BARRIER]


def h100(count=1):
    return build_cluster(load_topology("dgx_h100"), hosts=count)


def price(kind, size, cluster=None, ranks=range(8), *, call=None, **options):
    made = Collective(kind, size, **(call or {}))
    return price_collective(made, cluster=cluster or h100(), ranks=ranks, **options)


def time_ns(kind, size, cluster=None, ranks=range(8), **options):
    return price(kind, size, cluster, ranks, **options).duration_ns


def test_a_call_that_queues_does_not_wait_for_late_hosts_again():
    cluster = build_cluster(load_topology("aws_p5"), hosts=4)
    alone, queued = (
        time_ns(CollectiveKind.ALL_REDUCE, 1 << 20, cluster, range(32), call={"is_queued": queued})
        for queued in (False, True)
    )
    # 500 us for each of two doublings of the hosts.
    assert alone - queued == pytest.approx(1_000_000)


def test_on_a_shared_network_waiting_is_surer_than_moving():
    cluster = build_cluster(load_topology("aws_p5"), hosts=4)
    small, large = (
        price(CollectiveKind.ALL_REDUCE, size, cluster, range(32)) for size in (1 << 10, 1 << 30)
    )
    # Nearly all of a kibibyte's 1 ms is waiting, whose spread is 0.1; at most a tenth of the rest.
    assert 0.08 < small.relative_sigma < 0.13
    assert large.relative_sigma > 0.25


def test_a_group_of_one_is_free():
    assert time_ns(CollectiveKind.ALL_REDUCE, 1 << 30, ranks=[3]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_time_and_names_its_choice(kind):
    cost = price(kind, 1 << 20, h100(2), range(16))
    assert cost.duration_ns > 1_000
    assert cost.algorithm in {algorithm.value for algorithm in CollectiveAlgorithm}
    assert cost.busiest_link


def test_large_all_reduces_on_one_h100_host_are_added_by_the_switch():
    cost = price(CollectiveKind.ALL_REDUCE, 1 << 28)
    assert cost.algorithm == "nvls"
    assert cost.busiest_link == "gpu:0 -> nvswitch:0"


def test_a_large_ring_on_one_nic_a_host_is_bounded_by_the_nic():
    # Ten hosts with one rank each: bus bandwidth below, and near, the 50 GB/s of a NIC.
    cluster = build_cluster(load_topology("dgx_h100"), hosts=10, ranks_per_host=1)
    cost = price(CollectiveKind.ALL_GATHER, 1 << 32, cluster, range(10))
    assert 45e9 < cost.bus_bandwidth_bytes_per_s < 50e9
    assert cost.busiest_link.startswith("nic:")


@pytest.mark.parametrize("kind", ORDINARY)
def test_many_sizes_cost_what_each_costs_alone(kind):
    cluster = h100(4)
    sizes = [1000 << power for power in range(0, 20, 5)]
    for ranks in ([0, 1], range(8), [0, 8, 16, 24], range(32)):
        together = price_sizes(kind, np.array(sizes, float), wiring=wiring_of(ranks, cluster))
        calls = [Collective(kind, size) for size in sizes]
        assert together == [price_collective(one, cluster=cluster, ranks=ranks) for one in calls]


def test_the_same_question_twice_gives_the_same_cost():
    ask = [price(CollectiveKind.ALL_TO_ALL, 777, h100(2), range(16)) for _ in range(2)]
    assert ask[0] == ask[1]


def is_one_choice(*costs):
    """Whether all name the same choice, and none a switch that is near."""
    return len({(cost.algorithm_word, cost.alternative) for cost in costs}) == 1 and not (
        costs[0].alternative
    )


@settings(max_examples=40)
@given(
    topology=hosts(),
    count=st.integers(1, 5),
    kind=st.sampled_from(ORDINARY),
    powers=st.tuples(st.floats(0, 32), st.floats(0, 32)),
)
def test_more_bytes_never_take_less_time_within_a_choice(topology, count, kind, powers):
    cluster = build_cluster(topology, hosts=count)
    wiring = wiring_of(range(cluster.rank_count), cluster)
    sizes = np.array(sorted(2.0**power for power in powers))
    small, large = price_sizes(kind, sizes, wiring=wiring)
    if is_one_choice(small, large):
        assert small.duration_ns <= large.duration_ns * (1 + 1e-12)


@settings(max_examples=40)
@given(
    topology=hosts(),
    count=st.integers(1, 5),
    kind=st.sampled_from(ORDINARY),
    power=st.floats(0, 32),
)
def test_time_does_not_jump_within_a_choice(topology, count, kind, power):
    cluster = build_cluster(topology, hosts=count)
    wiring = wiring_of(range(cluster.rank_count), cluster)
    before, after = price_sizes(kind, np.array([2.0**power, 2.0**power * 1.001]), wiring=wiring)
    if is_one_choice(before, after):
        # No term grows faster than the square of the size, so 0.1 % more bytes cost under 0.5 %.
        assert after.duration_ns <= before.duration_ns * 1.005


@settings(max_examples=25)
@given(topology=hosts(), factor=st.floats(1.1, 8.0), kind=st.sampled_from(ORDINARY))
def test_a_slower_network_never_makes_a_forced_choice_faster(topology, factor, kind):
    fabric = topology.fabric
    slow = replace(
        topology,
        fabric=replace(fabric, nic_bandwidth_bytes_per_s=fabric.nic_bandwidth_bytes_per_s / factor),
    )
    software = CollectiveSoftware(
        algorithm=CollectiveAlgorithm.RING, protocol=Protocol.SIMPLE, nccl_version=(2, 20)
    )
    durations = []
    for machine in (topology, slow):
        cluster = build_cluster(machine, hosts=3)
        durations.append(
            time_ns(kind, 1 << 24, cluster, range(cluster.rank_count), software=software)
        )
    assert durations[0] <= durations[1] * (1 + 1e-12)


@given(shift=st.integers(0, 2))
def test_translated_groups_cost_the_same(shift):
    cluster = h100(4)
    ranks = np.array([0, 1, 8, 9])
    first = time_ns(CollectiveKind.ALL_GATHER, 1 << 22, cluster, ranks)
    assert time_ns(CollectiveKind.ALL_GATHER, 1 << 22, cluster, ranks + 8 * shift) == first


def test_forcing_an_algorithm_and_a_protocol_is_obeyed():
    software = CollectiveSoftware(algorithm=CollectiveAlgorithm.TREE, protocol=Protocol.LL)
    cost = price(CollectiveKind.ALL_REDUCE, 1 << 26, h100(2), range(16), software=software)
    assert cost.algorithm_word == "tree/ll"


@pytest.mark.parametrize(("hosts", "name"), [(1, "nvls"), (2, "nvls_tree")])
def test_switches_that_are_forced_add_alone_or_under_a_tree(hosts, name):
    for wanted in (CollectiveAlgorithm.NVLS, CollectiveAlgorithm.NVLS_TREE):
        forced = CollectiveSoftware(algorithm=wanted)
        where = (h100(hosts), range(8 * hosts))
        cost = price(CollectiveKind.ALL_REDUCE, 1 << 26, *where, software=forced)
        assert cost.algorithm == name


def test_nvls_is_refused_where_no_switch_reduces():
    software = CollectiveSoftware(algorithm=CollectiveAlgorithm.NVLS)
    cluster = build_cluster(load_topology("dgx_a100"), hosts=1)
    with pytest.raises(InputError, match="needs a switch that reduces"):
        price(CollectiveKind.ALL_REDUCE, 1, cluster, software=software)


def test_calls_that_cannot_be_are_refused():
    with pytest.raises(TopologyError, match="no fabric"):
        build_cluster(build_host(nics=0), hosts=2)
    with pytest.raises(InputError, match="sender and the receiver"):
        price(CollectiveKind.SEND_RECV, 1, ranks=[0, 1, 2])
    with pytest.raises(InputError, match="must not be negative"):
        Collective(CollectiveKind.ALL_REDUCE, -1)


def test_adding_bytes_takes_longer_than_adding_wider_numbers():
    wide, narrow = (
        time_ns(CollectiveKind.REDUCE_SCATTER, 1 << 24, call={"dtype": dtype})
        for dtype in (DType.BF16, DType.INT8)
    )
    assert wide < narrow


def test_older_nccl_takes_longer_for_small_all_gathers():
    old = CollectiveSoftware(nccl_version=(2, 23))
    new = time_ns(CollectiveKind.ALL_GATHER, 1 << 16)
    assert time_ns(CollectiveKind.ALL_GATHER, 1 << 16, software=old) > new


def test_what_was_measured_is_interpolated_and_the_rest_is_not():
    small = price(CollectiveKind.ALL_REDUCE, 1 << 20)
    far = price(CollectiveKind.ALL_REDUCE, 1 << 20, h100(64), range(512))
    assert small.provenance is Provenance.INTERPOLATED
    assert far.provenance is Provenance.EXTRAPOLATED
    assert 0 < small.relative_sigma < 1


def test_machines_nobody_measured_scale_by_their_datasheet():
    # B200 has twice the NVLink of H100: a large all-gather takes about half the time.
    blackwell = build_cluster(load_topology("dgx_b200"), hosts=1)
    new = time_ns(CollectiveKind.ALL_GATHER, 1 << 32, blackwell)
    assert 0.45 < new / time_ns(CollectiveKind.ALL_GATHER, 1 << 32) < 0.55


def test_equal_questions_are_priced_once_and_by_the_constants_they_name():
    shipped = load_default_calibration()
    slow = replace(
        shipped,
        hosts=tuple(
            replace(one, constants=replace(one.constants, launch_ns=1e6)) for one in shipped.hosts
        ),
    )
    first, again, other = (
        price(CollectiveKind.ALL_GATHER, 12_345, calibration=constants)
        for constants in (shipped, shipped, slow)
    )
    assert again is first
    assert other.duration_ns > 1e6 > first.duration_ns


@pytest.mark.parametrize(("root", "is_member"), [(-1, False), (0, True), (7, True), (8, False)])
def test_the_root_is_one_of_the_group(root, is_member):
    if is_member:
        assert time_ns(CollectiveKind.REDUCE, 1, call={"root": root}) > 0
        return
    with pytest.raises(InputError, match=f"root must be a member from 0 to 7, got {root}"):
        price(CollectiveKind.REDUCE, 1, call={"root": root})


def test_send_recv_between_two_ranks_is_priced():
    near, far = (price(CollectiveKind.SEND_RECV, 1 << 20, h100(2), (0, rank)) for rank in (1, 8))
    assert 0 < near.duration_ns < far.duration_ns
    assert far.busiest_link.startswith("nic:")


def test_an_exchange_over_a_thin_spine_names_it():
    plain = load_topology("dgx_h100")
    fabric = replace(plain.fabric, hosts_per_leaf=2, oversubscription=8.0)
    cluster = build_cluster(replace(plain, fabric=fabric), hosts=4)
    # Half of what two blocks exchange crosses a spine of an eighth: four times as long as a NIC.
    exchange = price(CollectiveKind.ALL_TO_ALL, 1 << 30, cluster, range(32))
    assert exchange.busiest_link == "leaf -> spine"
    wide = build_cluster(plain, hosts=4)
    plain_ns = time_ns(CollectiveKind.ALL_TO_ALL, 1 << 30, wide, range(32))
    assert exchange.duration_ns / plain_ns == pytest.approx(4.0, rel=0.05)
    # Neighbours in a ring seldom cross it, and two hosts of a block never.
    for kind, ranks in ((CollectiveKind.ALL_GATHER, 32), (CollectiveKind.ALL_TO_ALL, 16)):
        near = price(kind, 1 << 30, cluster, range(ranks))
        assert near.busiest_link.startswith("nic:")


BETWEEN = [
    (CollectiveAlgorithm.RING, Protocol.LL),
    (CollectiveAlgorithm.RING, Protocol.SIMPLE),
    (CollectiveAlgorithm.TREE, Protocol.LL128),
    (CollectiveAlgorithm.NVLS_TREE, Protocol.SIMPLE),
]


@pytest.mark.parametrize(("algorithm", "protocol"), BETWEEN)
def test_more_hosts_slower_nics_and_larger_messages_never_shorten_a_forced_call(
    algorithm, protocol
):
    machine = load_topology("dgx_h100")
    fabric = machine.fabric
    slow = replace(fabric, nic_bandwidth_bytes_per_s=fabric.nic_bandwidth_bytes_per_s / 2)
    forced = CollectiveSoftware(algorithm=algorithm, protocol=protocol)
    sizes = 2.0 ** np.arange(10, 32)

    def curve(topology, hosts):
        wiring = wiring_of(range(8 * hosts), build_cluster(topology, hosts=hosts))
        kind = CollectiveKind.ALL_REDUCE
        costs = price_sizes(kind, sizes, wiring=wiring, software=forced)
        assert {cost.algorithm for cost in costs} == {algorithm.value}
        return np.array([cost.duration_ns for cost in costs])

    few, many, thin = curve(machine, 4), curve(machine, 32), curve(replace(machine, fabric=slow), 4)
    assert (np.diff(few) > 0).all()
    assert (many >= few).all()
    assert (thin >= few).all()


@pytest.mark.parametrize(("name", "hosts"), [("dgx_h100", 4), ("polaris", 8), ("gb200_nvl72", 16)])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL])
def test_fewer_nics_shorten_a_call_only_where_a_switch_is_named(name, hosts, kind):
    gpus = load_topology(name).gpus_per_host
    wiring = wiring_of_run(name, hosts, gpus * hosts)
    half = replace(
        wiring,
        nic_count=wiring.nic_count // 2,
        nic_sharing=2 * wiring.nic_sharing,
        nic_bandwidth_bytes_per_s=wiring.nic_bandwidth_bytes_per_s / 2,
    )
    sizes = 2.0 ** np.arange(3, 33)
    found = (price_sizes(kind, sizes, wiring=one) for one in (wiring, half))
    for all_of_them, few in zip(*found, strict=True):
        words = {all_of_them.algorithm_word, few.algorithm_word, few.alternative}
        if len(words - {""}) == 1 and not all_of_them.alternative:
            assert few.duration_ns >= (1 - 1e-9) * all_of_them.duration_ns


def test_what_can_be_forced_bounds_what_nccl_chooses():
    cluster, sizes = h100(4), [1 << power for power in range(10, 32, 3)]
    for size in sizes:
        call = (CollectiveKind.ALL_REDUCE, size, cluster, range(32))
        found = [
            time_ns(*call, software=CollectiveSoftware(algorithm=algorithm, protocol=protocol))
            for algorithm in (
                CollectiveAlgorithm.RING, CollectiveAlgorithm.TREE, CollectiveAlgorithm.NVLS_TREE,
            )
            for protocol in Protocol
        ]  # fmt: skip
        assert min(found) <= time_ns(*call) <= max(found)


def test_where_nccl_plans_two_choices_close_together_the_time_is_between_them_and_wider():
    wiring = wiring_of(range(32), h100(4))
    sizes = 2.0 ** np.arange(14, 30, 0.25)
    costs = price_sizes(CollectiveKind.ALL_REDUCE, sizes, wiring=wiring)
    near = [place for place, cost in enumerate(costs) if cost.alternative]
    assert 0 < len(near) < len(costs)
    place = next(at for at in near if costs[at].algorithm_word == "tree/ll")
    cost = costs[place]
    ways = {}
    for word in (cost.algorithm_word, cost.alternative):
        algorithm, protocol = word.split("/")
        forced = CollectiveSoftware(
            algorithm=CollectiveAlgorithm(algorithm), protocol=Protocol(protocol)
        )
        [way] = price_sizes(
            CollectiveKind.ALL_REDUCE, sizes[[place]], wiring=wiring, software=forced
        )
        ways[word] = way
    low, high = sorted(way.duration_ns for way in ways.values())
    assert low < cost.duration_ns < high
    assert cost.relative_sigma > ways[cost.algorithm_word].relative_sigma


@pytest.mark.parametrize("name", ["dgx1_v100", "dgx_a100", "dgx_h100", "dgx_b200", "polaris"])
@pytest.mark.parametrize(
    "kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL]
)
def test_better_links_are_slower_only_where_a_switch_is_named(name, kind):
    machine = load_topology(name)
    fabric = machine.fabric
    faster = tuple(
        replace(link, bandwidth_bytes_per_s=1.5 * link.bandwidth_bytes_per_s)
        for link in machine.links
    )
    better = [
        replace(machine, links=faster),
        replace(machine, fabric=replace(fabric, nic_latency_ns=fabric.nic_latency_ns / 2)),
        replace(
            machine,
            fabric=replace(
                fabric, nic_bandwidth_bytes_per_s=1.5 * fabric.nic_bandwidth_bytes_per_s
            ),
        ),
    ]
    sizes = 2.0 ** np.arange(9, 31)

    def curve(topology):
        cluster = build_cluster(topology, hosts=2)
        return price_sizes(kind, sizes, wiring=wiring_of(range(cluster.rank_count), cluster))

    plain = curve(machine)
    for one in better:
        for before, after in zip(plain, curve(one), strict=True):
            if is_one_choice(before, after):
                assert after.duration_ns <= before.duration_ns * (1 + 1e-9)
