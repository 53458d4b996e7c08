from dataclasses import replace

import numpy as np
import pytest

from collectives.calibration import build_tuner, load_default_calibration
from collectives.collective import (
    CollectiveAlgorithm,
    CollectiveKind,
    CollectiveSoftware,
    Protocol,
    parse_algorithm,
)
from collectives.group import wiring_of
from collectives.measurements import wiring_of_run
from collectives.movement import build_movement
from collectives.tuner import Tuner
from perfmodel.base.errors import InputError
from tests.collectives.machines import build_host
from topologies import build_cluster, load_topology

SIZES = 2.0 ** np.arange(9, 33)


def choices(topology, hosts, ranks, kind, software=None):
    tuner = build_tuner(wiring_of_run(topology, hosts, ranks), load_default_calibration())
    return taken_by(tuner, kind, SIZES, software or CollectiveSoftware())


def taken_by(tuner, kind, sizes, software):
    """The choice that counts most at each of *sizes*."""
    candidates, shares = tuner.choose(kind, sizes, software)
    return [candidates[number] for number in np.argmax(shares, axis=0)]


def test_two_a100_switch_from_ll_to_simple_at_one_mebibyte():
    # NCCL estimates LL at 6.6 + 2 x 0.6 us + size / 87.7 GB/s and Simple at 8.4 + 2 x 3.4 us +
    # size / 240 GB/s: equal at 7.4 us / (1 / 87.7 - 1 / 240) = 1.02 MB. Measured time jumps there.
    found = choices("dgx_a100", 1, 2, CollectiveKind.ALL_REDUCE)
    protocols = [protocol for _, protocol in found]
    assert protocols[:11] == [Protocol.LL] * 11  # 512 B to 512 KiB
    assert set(protocols[11:]) == {Protocol.SIMPLE}


@pytest.mark.parametrize(
    ("group", "algorithm"),
    [
        # Only a full H100 host lets the switch add.
        (("dgx_h100", 1, 8), CollectiveAlgorithm.NVLS),
        (("dgx_h100", 1, 4), CollectiveAlgorithm.RING),
        # NCCL of Volta goes round two hosts where later ones take both trees.
        (("dgx1_v100", 2, 16), CollectiveAlgorithm.RING),
        (("aws_p4d", 2, 16), CollectiveAlgorithm.TREE),
    ],
)
def test_large_all_reduces_go_by_what_the_machine_has(group, algorithm):
    assert choices(*group, CollectiveKind.ALL_REDUCE)[-1][0] is algorithm


def test_small_all_reduces_over_hosts_go_by_tree_and_plugins_may_leave_simple_only():
    tree = (CollectiveAlgorithm.TREE, Protocol.LL)
    assert choices("dgx_h100", 4, 32, CollectiveKind.ALL_REDUCE)[0] == tree
    found = choices("aws_p4d", 2, 16, CollectiveKind.ALL_REDUCE)
    assert {protocol for _, protocol in found} == {Protocol.SIMPLE}


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV])
def test_exchanges_are_pairwise_whatever_is_forced(kind):
    software = CollectiveSoftware(algorithm=CollectiveAlgorithm.TREE)
    assert {algorithm for algorithm, _ in choices("dgx_a100", 1, 2, kind, software)} == {
        CollectiveAlgorithm.PAIRWISE
    }


def test_parallel_trees_need_one_rank_a_host_and_a_recent_release():
    ring, pat = CollectiveAlgorithm.RING, CollectiveAlgorithm.PAT
    recent, old, forced = (
        {one for one, _ in choices("dgx_h100", 8, 8, CollectiveKind.ALL_GATHER, software)}
        for software in (None, CollectiveSoftware((2, 20)), CollectiveSoftware(algorithm=pat))
    )
    assert old == {ring}
    assert recent <= {ring, pat}
    assert forced == {pat}


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
    net_ns = table.net_ns[ring][simple]
    inside_ns = table.nvlink_ns[ring][simple]
    expected = table.base_ns[ring][simple] + crossings * net_ns + (steps - crossings) * inside_ns
    assert tuner.latency_ns(kind, (ring, simple)) == pytest.approx(expected)


def test_a_ring_inside_a_host_crosses_nothing():
    tuner = planning_tuner(hosts=1, gpus=4)
    ring, ll = CollectiveAlgorithm.RING, Protocol.LL
    # 6.6 us and 2 x 3 steps of 0.6 us.
    assert tuner.latency_ns(CollectiveKind.ALL_REDUCE, (ring, ll)) == pytest.approx(10_200)


@pytest.mark.parametrize(
    ("hosts", "nic_gb_per_s", "bus"),
    [
        # Links of 100 GB/s, of which NCCL counts 0.80 on Ampere; NICs of 4 x 100 GB/s do not bind.
        # Between hosts the links inside carry what goes up and what comes down.
        (4, 100.0, 0.8 * 80e9),
        (1, 25.0, 80e9),
        # 4 NICs of 5 GB/s, twice: 40 GB/s, below 0.8 x 80.
        (2, 5.0, 40e9),
    ],
)
def test_a_tree_is_planned_with_the_links_inside_or_twice_the_nics(hosts, nic_gb_per_s, bus):
    tuner = planning_tuner(hosts=hosts, gpus=4, nic_gb_per_s=nic_gb_per_s)
    tree = (CollectiveAlgorithm.TREE, Protocol.SIMPLE)
    # 0.92 for Simple, halved because the buffer goes up and down.
    planned = tuner.bandwidth_bytes_per_s(CollectiveKind.ALL_REDUCE, tree)
    assert planned == pytest.approx(0.5 * 0.92 * bus)


def planning_tuner(*, hosts: int, gpus: int, nic_gb_per_s: float = 25.0) -> Tuner:
    """NCCL's tuner for hosts of our own; only its own planning table is used, nothing fitted."""
    cluster = build_cluster(build_host(gpus=gpus, nic_gb_per_s=nic_gb_per_s), hosts=hosts)
    wiring = wiring_of(range(cluster.rank_count), cluster)
    return Tuner(load_default_calibration().tuner, wiring, tuple(Protocol))


def test_large_messages_over_hosts_are_planned_with_dearer_steps():
    tuner = planning_tuner(hosts=2, gpus=4)
    simple = (CollectiveAlgorithm.RING, Protocol.SIMPLE)
    # From 64 bytes a channel and rank on: over hosts NCCL counts 16 channels at most, 8 ranks.
    sizes = np.array([64 * 16 * 8 - 1.0, 64 * 16 * 8.0])
    before, after = tuner.estimate_ns(CollectiveKind.ALL_REDUCE, simple, sizes)
    latency_ns = tuner.latency_ns(CollectiveKind.ALL_REDUCE, simple)
    assert after - before == pytest.approx(0.4 * latency_ns, abs=1.0)
    before, after = tuner.estimate_ns(CollectiveKind.ALL_GATHER, simple, sizes)
    assert after - before < 1.0
    alone = planning_tuner(hosts=1, gpus=4)
    before, after = alone.estimate_ns(CollectiveKind.ALL_REDUCE, simple, sizes / 2)
    assert after - before < 1.0


@pytest.mark.parametrize(
    ("kind", "parts"), [(CollectiveKind.ALL_TO_ALL, 4), (CollectiveKind.SEND_RECV, 1)]
)
def test_slices_up_to_a_limit_are_exchanged_by_ll(kind, parts):
    tuner = replace(planning_tuner(hosts=1, gpus=4), pair_ll_bytes=1000)
    sizes = parts * np.array([999.0, 1000.0, 1000.5])
    taken = taken_by(tuner, kind, sizes, CollectiveSoftware())
    assert [protocol for _, protocol in taken] == [
        Protocol.LL, Protocol.LL, Protocol.SIMPLE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "hosts", "possible"),
    [
        (2, 1, {"ring"}),
        (3, 1, {"ring", "tree", "nvls"}),
        (2, 2, {"ring", "tree"}),
        (3, 2, {"ring", "tree", "nvls_tree"}),
        (1, 3, {"ring", "tree"}),
    ],
)
def test_trees_need_three_ranks_and_switches_three_on_a_host(gpus, hosts, possible):
    cluster = build_cluster(build_host(gpus=gpus, reduces=True, device="h100_sxm"), hosts=hosts)
    wiring = wiring_of(range(cluster.rank_count), cluster)
    tuner = Tuner(load_default_calibration().tuner, wiring, tuple(Protocol))
    for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BARRIER):
        found = tuner.candidates(kind, CollectiveSoftware())
        assert {algorithm.value for algorithm, _ in found} == possible
    forced = CollectiveSoftware(algorithm=CollectiveAlgorithm.TREE)
    tree = tuner.candidates(CollectiveKind.ALL_REDUCE, forced)
    assert {algorithm for algorithm, _ in tree} == {CollectiveAlgorithm.TREE}


@pytest.mark.parametrize(("version", "is_there"), [((2, 22, 9), False), ((2, 23), True)])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_parallel_trees_came_with_2_23(kind, version, is_there):
    found = planning_tuner(hosts=3, gpus=1).candidates(kind, CollectiveSoftware(version))
    assert ((CollectiveAlgorithm.PAT, Protocol.SIMPLE) in found) is is_there
    shared = planning_tuner(hosts=3, gpus=2).candidates(kind, CollectiveSoftware(version))
    assert {algorithm for algorithm, _ in shared} == {CollectiveAlgorithm.RING}


def test_a_protocol_that_is_forced_is_taken_where_it_is_open():
    tuner = planning_tuner(hosts=2, gpus=4)
    ring, tree = CollectiveAlgorithm.RING, CollectiveAlgorithm.TREE
    kind = CollectiveKind.ALL_REDUCE
    free = tuner.candidates(kind, CollectiveSoftware())
    assert free == [(one, protocol) for one in (ring, tree) for protocol in Protocol]
    forced = tuner.candidates(kind, CollectiveSoftware(protocol=Protocol.LL))
    assert forced == [(ring, Protocol.LL), (tree, Protocol.LL)]
    # Where it is open to nobody, NCCL keeps what there is.
    narrow = replace(tuner, protocols=(Protocol.LL128,))
    assert narrow.candidates(kind, CollectiveSoftware(protocol=Protocol.LL)) == [
        (ring, Protocol.LL128),
        (tree, Protocol.LL128),
    ]


def test_an_algorithm_without_an_estimate_is_taken_only_where_it_is_forced(monkeypatch):
    pairwise = CollectiveAlgorithm.PAIRWISE
    tuner, forced = planning_tuner(hosts=1, gpus=4), CollectiveSoftware(algorithm=pairwise)
    kinds = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
    free = [tuner.candidates(kind, forced) for kind in kinds]
    monkeypatch.setattr("collectives.tuner.UNPLANNED", {pairwise: kinds[:1]})

    candidates, shares = tuner.choose(kinds[0], SIZES, forced)
    assert candidates == [(pairwise, Protocol.SIMPLE)]
    assert shares.tolist() == [[1] * len(SIZES)]
    assert tuner.candidates(kinds[0], CollectiveSoftware()) == free[0]
    assert tuner.candidates(kinds[1], forced) == free[1]


def test_a_network_that_reduces_carries_the_buffer_once():
    plain = load_topology("dgx_h100")
    assert plain.fabric is not None
    sharp = replace(plain, fabric=replace(plain.fabric, reduces=True))
    assert sharp.is_wired_like(plain)
    ns = {}
    for name, machine in (("plain", plain), ("sharp", sharp)):
        wiring = wiring_of(range(64), build_cluster(machine, hosts=8))
        sizes = np.array([2.0**28])
        for algorithm in (CollectiveAlgorithm.NVLS_TREE, CollectiveAlgorithm.NVLS):
            movement = build_movement(CollectiveKind.ALL_REDUCE, algorithm, sizes, wiring)
            ns[name, algorithm] = float(movement.nic_bytes[0])
        tuner = build_tuner(wiring, load_default_calibration())
        ns[name] = taken_by(tuner, CollectiveKind.ALL_REDUCE, sizes, CollectiveSoftware())[0][0]
    # A tree between more than two hosts sends the buffer twice.
    assert ns["sharp", CollectiveAlgorithm.NVLS] == 2.0**28
    assert ns["sharp", CollectiveAlgorithm.NVLS_TREE] == 2.0**29
    assert ns["sharp"] is CollectiveAlgorithm.NVLS
    assert ns["plain"] is not CollectiveAlgorithm.NVLS


def test_a_network_that_reduces_is_used_by_hosts_whose_switches_do_not():
    collnet, kind = CollectiveAlgorithm.COLLNET, CollectiveKind.ALL_REDUCE
    plain = load_topology("dgx_a100")
    sharp = replace(plain, fabric=replace(plain.fabric, reduces=True))
    tuner = build_tuner(
        wiring_of(range(32), build_cluster(sharp, hosts=4)), load_default_calibration()
    )
    # NCCL plans seven links up and down of 2.8 us, 30 us for the network; then 8 NICs of 25 GB/s.
    choice = (collnet, Protocol.SIMPLE)
    assert tuner.latency_ns(kind, choice) == pytest.approx(2 * 7 * 2_800 + 30_000)
    assert tuner.bandwidth_bytes_per_s(kind, choice) == pytest.approx(200e9)
    assert taken_by(tuner, kind, np.array([2.0**28]), CollectiveSoftware()) == [choice]
    forced = CollectiveSoftware(algorithm=parse_algorithm("CollnetChain"))
    assert taken_by(tuner, kind, np.array([8.0]), forced) == [choice]
    with pytest.raises(InputError, match="reduces"):
        planning_tuner(hosts=4, gpus=4).candidates(kind, forced)


@pytest.mark.parametrize(
    ("cpu", "ll_bus", "proxy_ns"),
    [("2 x Intel Xeon", 20.4e9, 1_000), ("1 x AMD EPYC", 19.0e9, 2_000)],
)
def test_between_hosts_the_processor_decides_what_ll_is_planned_with(cpu, ll_bus, proxy_ns):
    host = replace(build_host(gpus=4, nic_gb_per_s=25.0), host_cpu=cpu)
    cluster = build_cluster(host, hosts=4)
    wiring = wiring_of(range(16), cluster)
    tuner = Tuner(load_default_calibration().tuner, wiring, tuple(Protocol))
    ring_ll = (CollectiveAlgorithm.RING, Protocol.LL)
    kind = CollectiveKind.ALL_REDUCE
    # Half of 80 GB/s is more than the row allows; 16 ranks take 30 steps.
    assert tuner.bandwidth_bytes_per_s(kind, ring_ll) == pytest.approx(ll_bus * 16 / 30)
    # 8 steps cross a border at 2.7 us; the proxies of the other 22 take longer than 0.6 us.
    assert tuner.latency_ns(kind, ring_ll) == pytest.approx(6_600 + 8 * 2_700 + 22 * proxy_ns)
    # Before 2.21 a quarter of the bus.
    slow = replace(tuner, release=(2, 20), wiring=replace(wiring, nic_bandwidth_bytes_per_s=40e9))
    assert slow.bandwidth_bytes_per_s(kind, ring_ll) == pytest.approx(10e9 * 16 / 30)


def test_hundreds_of_hosts_with_few_gpus_reduce_large_messages_by_tree():
    # 1,024 ranks go round in 2,046 steps: 1.4 x (8.4 + 1,534 x 6 + 512 x 14) us before a byte.
    tree, ring = CollectiveAlgorithm.TREE, CollectiveAlgorithm.RING
    found = dict(zip(SIZES, choices("polaris", 256, 1024, CollectiveKind.ALL_REDUCE), strict=True))
    assert {found[2.0**power] for power in range(26, 29)} == {(tree, Protocol.SIMPLE)}
    assert found[2.0**32] == (ring, Protocol.SIMPLE)
    near = dict(zip(SIZES, choices("polaris", 8, 32, CollectiveKind.ALL_REDUCE), strict=True))
    assert near[2.0**26] == (ring, Protocol.SIMPLE)


def test_between_hosts_choices_with_close_plans_share_the_time():
    tuner = planning_tuner(hosts=4, gpus=4)
    kind = CollectiveKind.ALL_REDUCE
    candidates, shares = tuner.choose(kind, SIZES, CollectiveSoftware())
    estimates = np.stack([tuner.estimate_ns(kind, choice, SIZES) for choice in candidates])
    assert shares.sum(axis=0) == pytest.approx(np.ones(len(SIZES)))
    # From 16 % above the smallest estimate on a choice counts nothing; the smallest counts most.
    is_close = estimates < 1.1618 * estimates.min(axis=0)
    assert ((shares > 0) == is_close).all()
    assert (np.argmax(shares, axis=0) == np.argmin(estimates, axis=0)).all()
    _, alone = planning_tuner(hosts=1, gpus=4).choose(kind, SIZES, CollectiveSoftware())
    assert set(alone.ravel()) == {0.0, 1.0}
