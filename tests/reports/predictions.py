"""A small prediction, made by hand around a real replay of two ranks.

Each rank launches a kernel and sums up with the other; rank 1 computes longer.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.engine.history import History
from perfmodel.engine.reasons import Window
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts, JobGraph, MemoryPart, RankMemory
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.answer import (
    CriticalPath,
    Explanation,
    Facts,
    Interval,
    Part,
    PathShare,
    Prediction,
    RankClass,
    RankWait,
    Reasons,
    Run,
    TimeParts,
)
from perfmodel.prediction.explain import ExplainedReplay
from perfmodel.prediction.scenario import Scenario


def build_job(*, label: str = "matmul") -> JobGraph:
    """Two ranks that each run launch -> kernel -> all_reduce."""
    builder = JobBuilder()
    program = builder.new_program()
    host = program.add_lane("host", LaneKind.HOST)
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    network = program.add_lane("network", LaneKind.COMMUNICATION)
    launch = program.add_task(host, Fixed("launch", 0), label="launch")
    kernel = program.add_task(compute, Fixed("kernel", 0), label=label, after=[launch])
    program.add_task(network, Fixed("sum", 0), label="all_reduce", slot=0, after=[kernel])
    number = builder.add_program(program.build())
    builder.add_group("world", [builder.add_rank(number), builder.add_rank(number)], slot=0)
    return builder.build(JobFacts("small"))


def build_evidence(*, label: str = "matmul") -> ExplainedReplay:
    """Launch 1 us, kernels 10 us and 30 us, all-reduce 5 us: the iteration takes 36 us."""
    job = build_job(label=label)
    rows = [np.array([1_000, kernel_ns, 5_000]) for kernel_ns in (10_000, 30_000)]
    durations = build_durations(job, rows)
    return ExplainedReplay(
        history=History(job, durations, replay(job, durations)),
        iteration=0,
        window=Window(0, 36_000),
        class_ranks=((0,), (1, 2, 3)),
    )


def build_parts(compute_ns: int, communication_ns: int, waiting_ns: int, idle_ns: int) -> TimeParts:
    return TimeParts(
        {
            Part.COMPUTE: compute_ns,
            Part.EXPOSED_COMMUNICATION: communication_ns,
            Part.WAITING_FOR_OTHER_RANKS: waiting_ns,
            Part.HOST_BOUND_IDLE: idle_ns,
            Part.EXPOSED_COPIES: 0,
        }
    )


def build_prediction(*, label: str = "matmul", peak_bytes: int = 40 * 2**30) -> Prediction:
    """The answer of a person who read the evidence: 36 us, rank 0 waits 20 us."""
    memory = RankMemory(
        (
            MemoryPart("weights", peak_bytes // 4),
            MemoryPart("activations", peak_bytes - peak_bytes // 4),
        )
    )
    explanation = Explanation(
        # The mean of rank 0 once and rank 1 three times: 25, 5, 5, 1 us.
        time=build_parts(25_000, 5_000, 5_000, 1_000),
        rank_classes=(
            RankClass((0,), build_parts(10_000, 5_000, 20_000, 1_000), memory),
            RankClass((1, 2, 3), build_parts(30_000, 5_000, 0, 1_000), memory),
        ),
        critical_path=CriticalPath(
            by_kind=(
                PathShare("matrix multiplies", 30_000, 1),
                PathShare("all-reduce", 5_000, 1),
                PathShare("host work", 1_000, 1),
            ),
            by_label=(
                PathShare(label, 30_000, 1),
                PathShare("all_reduce", 5_000, 1),
                PathShare("launch", 1_000, 1),
            ),
            rank_changes=1,
        ),
        waits=(RankWait((0,), 1, "all_reduce", 20_000),),
        provenance_ratio={Provenance.ANALYTIC: 0.9, Provenance.ASSUMED: 0.1},
    )
    return Prediction(
        scenario=Scenario(topology="dgx_h100.yaml", workload="small", overrides=("batch=8",)),
        period_ns=36_000,
        isolated_ns=36_500,
        interval=Interval(30_000, 45_000),
        reasons=Reasons(explanation, build_evidence(label=label)),
        assumptions=("Kernels do not slow each other down.",),
        facts=Facts("small", "h100", 80 * 2**30, "pytorch_eager", 512, 4, 12, 6),
        run=Run("in this process", {"replay": 0.25}),
    )


def build_wide_evidence(*, ranks: int, tasks: int) -> ExplainedReplay:
    """*ranks* that each compute in their own time and sum up every hundredth of *tasks*."""
    builder = JobBuilder()
    program = builder.new_program()
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    network = program.add_lane("network", LaneKind.COMMUNICATION)
    for number in range(tasks):
        label = f"layer {number % 96}/kernel {number % 7}"
        if number % 100 == 99:
            program.add_task(network, Fixed("sum", 0), label="all_reduce", slot=0)
        else:
            program.add_task(compute, Fixed("kernel", 0), label=label)
    number = builder.add_program(program.build())
    builder.add_group("world", [builder.add_rank(number) for _ in range(ranks)], slot=0)
    job = builder.build(JobFacts("wide"))
    draws = np.random.default_rng(7)
    durations = build_durations(job, [draws.integers(1_000, 50_000, tasks) for _ in range(ranks)])
    replayed = replay(job, durations)
    return ExplainedReplay(
        history=History(job, durations, replayed),
        iteration=0,
        window=Window(0, int(replayed.iteration_end_ns[0, 0])),
        class_ranks=tuple((rank,) for rank in range(ranks)),
    )
