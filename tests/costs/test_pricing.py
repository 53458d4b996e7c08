from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collectives import Collective, CollectiveKind, price_collective
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.models import FAMILIES, price_ops
from perfmodel.costs.pricing import find_rivals, price_job
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import (
    Communication,
    Copy,
    CopyRoute,
    Fixed,
    Gemm,
    HostPart,
    HostWork,
    MemoryBound,
)
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.spread import NO_SPREAD, Spread
from topologies import build_cluster, load_device, load_topology

STACK = load_stack("pytorch_eager")
GEMM = Gemm(1024, 1024, 1024, DType.BF16)
REDUCE = Communication(Collective(CollectiveKind.ALL_REDUCE, 2**24, DType.BF16))


def build_job(program, groups, builder) -> JobGraph:
    """Ranks that all run *program*, in *groups* of slot 0."""
    number = builder.add_program(program.build())
    for _ in range(sum(map(len, groups))):
        builder.add_rank(number)
    for place, group in enumerate(groups):
        builder.add_group(f"group {place}", group, slot=0)
    return builder.build(JobFacts("small"))


def one_call(collective: Collective, groups: list[list[int]]) -> JobGraph:
    builder = JobBuilder()
    program = builder.new_program()
    wire = program.add_lane("wire", LaneKind.COMMUNICATION)
    program.add_task(wire, Communication(collective), label="call", slot=0)
    return build_job(program, groups, builder)


@pytest.fixture(scope="module")
def job():
    builder = JobBuilder()
    program = builder.new_program()
    host = program.add_lane("host", LaneKind.HOST)
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    wire = program.add_lane("wire", LaneKind.COMMUNICATION)
    launch = program.add_task(host, HostWork("linear", HostPart.LAUNCH), label="launch")
    work = program.add_task(compute, GEMM, label="gemm", after=[launch])
    program.add_task(compute, Fixed("known", 777), label="known")
    program.add_task(wire, REDUCE, label="reduce", slot=0, after=[work])
    return build_job(program, [list(range(8))], builder)


@pytest.fixture(scope="module")
def cluster():
    return build_cluster(load_topology("dgx_h100"), hosts=1)


@pytest.fixture(scope="module")
def priced(job, cluster):
    return price_job(job, cluster=cluster, stack=STACK)


def test_ranks_that_do_the_same_share_one_row(job, priced):
    assert set(priced.durations.rank_offset.tolist()) == {0}
    assert len(priced.durations.values_ns) == job.program_of(0).task_count


def test_durations_are_those_of_the_models_rounded_once(job, cluster, priced):
    alone = price_ops([GEMM], device=cluster.device, stack=STACK)
    row = priced.durations.of_rank(job, 3)[:, 0].tolist()
    assert round(alone.duration_ns[0]) in row
    assert 777 in row
    # A launch takes 4 us at 2.2 GHz; the host here has 3.8 GHz and 1.57 times the work per clock.
    assert round(4_000 * 2.2 / (1.57 * 3.8)) in row


def test_a_fixed_duration_stays_the_same_in_every_sample(priced):
    sampled = priced.sample(20, seed=1).vectors(0, 20)
    known = np.flatnonzero(priced.durations.values_ns[:, 0] == 777)
    assert (sampled.values_ns[known] == 777).all()


def test_samples_of_a_family_move_together_and_depend_only_on_the_seed(priced):
    first, again = (
        priced.sample(50, seed=3).vectors(0, 50),
        priced.sample(50, seed=3).vectors(0, 50),
    )
    assert (first.values_ns == again.values_ns).all()
    assert (first.values_ns != priced.sample(50, seed=4).vectors(0, 50).values_ns).any()
    gemm = np.flatnonzero(priced.family == FAMILIES.index("gemm"))
    spread = np.std(np.log(first.values_ns[gemm[0]] / priced.float_ns[gemm[0]]))
    wanted = np.hypot(priced.relative_sigma[gemm[0]], priced.spread.relative_sigma)
    assert spread == pytest.approx(wanted, rel=0.4)


def test_samples_drawn_a_few_at_a_time_are_those_drawn_together(priced):
    samples = priced.sample(10, seed=3)
    parts = [samples.vectors(first, first + 5).values_ns for first in (0, 5)]
    assert (np.concatenate(parts, axis=1) == samples.vectors(0, 10).values_ns).all()


def test_costs_of_all_families_but_recorded_ones_share_the_spread_of_the_stack(priced):
    sure = replace(priced, relative_sigma=np.zeros_like(priced.relative_sigma))
    ratios = sure.sample(20, seed=0).vectors(0, 20).values_ns / priced.durations.values_ns
    is_long = (priced.float_ns > 10_000) & (priced.provenance != Provenance.RECORDED)
    assert np.ptp(ratios[is_long], axis=0).max() < 1e-3
    assert (ratios[priced.provenance == Provenance.RECORDED] == 1).all()
    # Even draws: 18 of 20 are inside the 90 % that the spread means.
    limits = np.exp(1.645 * priced.spread.relative_sigma * np.array([-1, 1]))
    inside = (ratios[is_long][0] > limits[0]) & (ratios[is_long][0] < limits[1])
    assert inside.sum() == 18


def test_a_spread_that_includes_kernels_is_the_spread_of_the_whole(priced):
    known = replace(priced, spread=Spread(0.2, includes_kernels=True))
    # As unsure as a whole as kernels alone would be, twice over.
    unsure = replace(known, relative_sigma=np.full_like(priced.relative_sigma, 0.4))
    for one in (known, unsure):
        drawn = one.sample(400, seed=0).vectors(0, 400).values_ns
        is_predicted = priced.provenance != Provenance.RECORDED
        totals = drawn[is_predicted].sum(axis=0)
        assert np.std(np.log(totals)) == pytest.approx(0.2, rel=0.2)


def test_a_cluster_too_small_for_the_job_is_refused(job):
    small = build_cluster(load_topology("dgx_h100"), hosts=1, ranks=4)
    with pytest.raises(ScenarioError, match="8 ranks"):
        price_job(job, cluster=small, stack=STACK)


def test_ops_of_all_types_come_back_in_order():
    device = load_device("h100_sxm")
    ops = [
        Fixed("a", 5), GEMM, HostWork("relu", HostPart.BEFORE_LAUNCH),
        MemoryBound("add", 100, 100, DType.BF16),
        Copy(CopyRoute.HOST_TO_DEVICE, 55 * 10**6), Fixed("b", 6), GEMM,
    ]  # fmt: skip
    priced = price_ops(ops, device=device, stack=STACK)
    assert priced.duration_ns[0] == 5
    assert priced.duration_ns[5] == 6
    assert priced.duration_ns[1] == priced.duration_ns[6]
    assert priced.duration_ns[2] == pytest.approx(20_800)
    # 55 MB over a bus that carries 55 GB/s take a millisecond, and the floor of a copy.
    assert priced.duration_ns[4] == pytest.approx(1_002_000)


def test_a_pageable_copy_takes_twice_as_long():
    device = load_device("h100_sxm")
    pinned = Copy(CopyRoute.HOST_TO_DEVICE, 10**9)
    pageable = Copy(CopyRoute.HOST_TO_DEVICE, 10**9, is_pinned=False)
    fast, slow = price_ops([pinned, pageable], device=device, stack=STACK).duration_ns
    assert slow / fast == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(("name", "seconds"), [("h100_sxm", 1.0), ("gb200", 30 / 118)])
def test_a_pass_over_host_memory_takes_its_share_of_that_memory(name, seconds):
    update = Copy(CopyRoute.HOST_TO_HOST, 30 * 10**9)
    priced = price_ops([update], device=load_device(name), stack=STACK)
    assert priced.duration_ns[0] == pytest.approx(seconds * 1e9, rel=1e-4)


def test_a_profiles_ratios_stretch_their_families_and_nothing_else(job, cluster, priced):
    ratios = {"gemm": {"hopper": 2.0, "default": 9.0}, "communication": {"default": 1.5}}
    stretched = price_job(job, cluster=cluster, stack=replace(STACK, kernel_time_ratio=ratios))
    factor = stretched.float_ns / priced.float_ns
    wanted = {"gemm": 2.0, "communication": 1.5, "host": 1.0, "fixed": 1.0}
    for code, ratio in zip(priced.family.tolist(), factor.tolist(), strict=True):
        assert ratio == pytest.approx(wanted[FAMILIES[code]])


def test_products_outside_tensor_cores_may_have_a_ratio_of_their_own():
    device = load_device("v100_sxm2_16gb")
    # A V100 has no tensor cores for tf32 either.
    ops = [Gemm(4096, 4096, 1024, dtype) for dtype in (DType.FP16, DType.FP32, DType.TF32)]
    alone = price_ops(ops, device=device, stack=STACK).duration_ns
    for ratios, wanted in (
        ({"gemm": {"default": 2.0}, "plain_gemm": {"default": 3.0}}, [2.0, 3.0, 3.0]),
        ({"plain_gemm": {"default": 3.0}}, [1.0, 3.0, 3.0]),
        ({"gemm": {"default": 2.0}}, [2.0, 2.0, 2.0]),
    ):
        stack = replace(STACK, kernel_time_ratio=ratios)
        found = price_ops(ops, device=device, stack=stack).duration_ns
        assert (found / alone).tolist() == pytest.approx(wanted)


def test_members_of_an_uneven_exchange_end_when_their_own_bytes_are_through(cluster):
    # Rank 0 sends 64 MiB to rank 1, and all others next to nothing.
    matrix = tuple(
        tuple(
            0 if sender == to else (2**26 if (sender, to) == (0, 1) else 2**10) for to in range(8)
        )
        for sender in range(8)
    )
    collective = Collective(
        CollectiveKind.ALL_TO_ALL, sum(map(sum, matrix)), DType.BF16, byte_matrix=matrix
    )
    uneven = one_call(collective, [list(range(8))])
    priced = price_job(uneven, cluster=cluster, stack=STACK)
    times_ns = [int(priced.durations.of_rank(uneven, rank)[0, 0]) for rank in range(8)]

    own = price_collective(collective, cluster=cluster, ranks=tuple(range(8))).per_rank_ns
    assert times_ns == [round(ns) for ns in own]
    assert times_ns[0] == times_ns[1] > 2 * times_ns[2] == 2 * times_ns[7]


def test_families_of_costs_err_each_on_its_own(priced):
    # Beside what all of them share, the spread of the stack.
    priced = replace(priced, spread=NO_SPREAD)
    draws = priced.sample(64, seed=0).vectors(0, 64).values_ns / priced.durations.values_ns
    unsure = np.flatnonzero(priced.relative_sigma > 0)
    relative = np.log(draws[unsure]) / priced.relative_sigma[unsure, np.newaxis]
    families = priced.family[unsure]
    assert len(set(families.tolist())) >= 2
    for one in range(len(unsure)):
        for other in range(one):
            alike = np.corrcoef(relative[one], relative[other])[0, 1]
            if families[one] == families[other]:
                assert alike == pytest.approx(1.0, abs=1e-3)
            else:
                assert abs(alike) < 0.5


def one_all_reduce(groups: list[list[int]]) -> JobGraph:
    return one_call(Collective(CollectiveKind.ALL_REDUCE, 2**28), groups)


def across_two_hosts(ranks_per_host: int) -> JobGraph:
    """One group for each place in the host: ranks 0 and 4, 1 and 5, ..."""
    return one_all_reduce([[place, place + ranks_per_host] for place in range(ranks_per_host)])


def test_neighbours_on_one_nic_are_rivals():
    # Polaris: GPUs 0 and 1 share a NIC, and so do 2 and 3.
    cluster = build_cluster(load_topology("polaris"), hosts=2)
    nics = cluster.topology.nic_of_gpu
    rivals = find_rivals(across_two_hosts(4), cluster)
    for place in range(4):
        expected = [other for other in range(4) if other != place and nics[other] == nics[place]]
        assert list(rivals[place]) == expected
    assert any(rivals)


def test_a_nic_of_its_own_has_no_rivals_and_groups_inside_a_host_use_none():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=2)
    assert not any(find_rivals(across_two_hosts(8), cluster))
    cluster = build_cluster(load_topology("polaris"), hosts=2)
    job = one_all_reduce([[0, 1], [2, 3], [4, 5], [6, 7]])
    assert not any(find_rivals(job, cluster))


def test_two_groups_on_one_nic_take_nearly_twice_as_long():
    cluster = build_cluster(load_topology("polaris"), hosts=2)
    both = price_job(across_two_hosts(4), cluster=cluster, stack=STACK).float_ns[0]
    lone_cluster = build_cluster(load_topology("polaris"), hosts=2, ranks_per_host=1)
    alone = price_job(one_all_reduce([[0, 1]]), cluster=lone_cluster, stack=STACK).float_ns[0]
    # 256 MiB are nearly all wire time, and two share the wire.
    assert both / alone == pytest.approx(2.0, rel=0.1)
