"""The benchmark job: hosts that launch kernels, and all-reduces over all ranks.

Every rank has 2,000 host tasks, 2,000 kernels and 100 all-reduces, and every
rank has durations of its own, so that nothing can be folded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind

KERNELS = 2_000
ALL_REDUCES = 100
KERNELS_BETWEEN = KERNELS // ALL_REDUCES
DELAY = 2 * KERNELS_BETWEEN
"""An all-reduce is needed this many kernels after the one that it follows."""
TASKS_A_RANK = 2 * KERNELS + ALL_REDUCES


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkJob:
    """The job, its durations, and the same durations by role: ranks x tasks."""

    job: JobGraph
    durations: DurationTable
    host_ns: NDArray[np.int64]
    kernel_ns: NDArray[np.int64]
    all_reduce_ns: NDArray[np.int64]


def kernel_before(all_reduce: int) -> int:
    """The kernel whose result *all_reduce* sums up."""
    return (all_reduce + 1) * KERNELS_BETWEEN - 1


def all_reduce_before(kernel: int) -> int | None:
    """The all-reduce that *kernel* needs, if it needs one."""
    earlier = kernel - DELAY
    is_first_of_its_stretch = kernel % KERNELS_BETWEEN == 0
    return earlier // KERNELS_BETWEEN if is_first_of_its_stretch and earlier >= 0 else None


def build_benchmark_job(
    rank_count: int, *, seed: int = 0, is_distinct: bool = False
) -> BenchmarkJob:
    """The job on *rank_count* ranks; durations are drawn from *seed*.

    All ranks share a program, or each has one of its own where *is_distinct*,
    as in every recorded or emulated job.
    """
    job = _build_structure(rank_count)
    if is_distinct:
        job = give_own_programs(job)
    generator = np.random.default_rng(seed)
    host_ns = generator.integers(2_000, 9_000, (rank_count, KERNELS))
    kernel_ns = generator.integers(1_000, 12_000, (rank_count, KERNELS))
    all_reduce_ns = generator.integers(50_000, 90_000, (rank_count, ALL_REDUCES))
    # A program's tasks stand lane after lane: host, compute, communication.
    values_ns = np.concatenate([host_ns, kernel_ns, all_reduce_ns], axis=1).reshape(-1, 1)
    offsets = np.arange(rank_count, dtype=np.int64) * TASKS_A_RANK
    durations = DurationTable(values_ns, offsets)
    return BenchmarkJob(job, durations, host_ns, kernel_ns, all_reduce_ns)


def give_own_programs(job: JobGraph) -> JobGraph:
    """*job* with a program in memory of its own for every rank."""
    programs = [job.program_of(rank) for rank in range(job.rank_count)]
    return replace(
        job,
        programs=tuple(
            replace(program, **{name: column.copy() for name, column in program.columns().items()})
            for program in programs
        ),
        rank_program=np.arange(job.rank_count, dtype=np.int32),
    )


def _build_structure(rank_count: int) -> JobGraph:
    builder = JobBuilder()
    program = builder.new_program()
    host = program.add_lane("host", LaneKind.HOST)
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    communication = program.add_lane("communication", LaneKind.COMMUNICATION)
    all_reduces: list[int] = []
    for kernel in range(KERNELS):
        launch = program.add_task(host, Fixed("launch", 0), label="launch")
        needed = all_reduce_before(kernel)
        after = [launch] if needed is None else [launch, all_reduces[needed]]
        task = program.add_task(compute, Fixed("kernel", 0), label="kernel", after=after)
        if kernel == kernel_before(len(all_reduces)):
            all_reduces.append(
                program.add_task(
                    communication, Fixed("all_reduce", 0), label="all_reduce", slot=0, after=[task]
                )
            )
    number = builder.add_program(program.build())
    ranks = [builder.add_rank(number) for _ in range(rank_count)]
    builder.add_group("world", ranks, slot=0)
    return builder.build(JobFacts("benchmark"))
