"""Measures how much memory a worker needs for its ranks, with one to three workers.

    python -m tests.benchmarks.measure_ray_memory [MILLION_TASKS]

Every rank has a program of its own. Prints, by number of workers, how far the largest of them
grew over one that has replayed two ranks: in all, and without what it shares with the object
store. Then the workers may not grow by more than half of what one needed: three hold the job, and
one says that it does not.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from perfmodel.base.errors import ExecutionError
from perfmodel.execution import open_executor
from tests.benchmarks.graphs import TASKS_A_RANK, BenchmarkJob, build_benchmark_job

MIB = 2**20


def read_status(pid: int | str, *names: str) -> int:
    """The sum of some sizes of a process, in bytes."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return sum(int(lines[name].split()[0]) * 1024 for name in names)


def grow(benchmark: BenchmarkJob, workers: int, limit_bytes: int | None) -> list[tuple[int, int]]:
    """How far each of *workers* grew over the job: peak of all its memory, and its own data."""
    pids: list[int] = []
    small = build_benchmark_job(2 * workers, is_distinct=True)
    with open_executor(
        "ray",
        workers=workers,
        on_round=lambda status: pids.extend(place.pid for place in status.places),
    ) as executor:
        executor.replay(small.job, small.durations)
        mine = sorted(set(pids))
        before = [(read_status(pid, "VmHWM"), read_status(pid, "VmData")) for pid in mine]
        if limit_bytes is not None:
            for pid, (_, data_bytes) in zip(mine, before, strict=True):
                most = data_bytes + limit_bytes
                resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
        answer = executor.replay(benchmark.job, benchmark.durations)
        after = [(read_status(pid, "VmHWM"), read_status(pid, "VmData")) for pid in mine]
        del answer
    return [(new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)]


def main(tasks: int) -> None:
    benchmark = build_benchmark_job(tasks // TASKS_A_RANK, is_distinct=True)
    print(f"{benchmark.job.task_count:,} tasks of {benchmark.job.rank_count:,} distinct programs")
    small = build_benchmark_job(2)
    with open_executor("ray", workers=3) as around:
        around.replay(small.job, small.durations)
        first = 0
        for workers in (1, 2, 3):
            peak, own = (max(sizes) for sizes in zip(*grow(benchmark, workers, None), strict=True))
            first = first or own
            print(
                f"  {workers} worker(s): the largest grew by {peak / MIB:,.0f} MiB at its peak, "
                f"{own / MIB:,.0f} MiB of them its own ({own / first:.2f} of one worker's)",
                flush=True,
            )
        for workers in (3, 1):
            print(f"  {workers} worker(s) that may grow by {first / 2 / MIB:,.0f} MiB: ", end="")
            try:
                grow(benchmark, workers, first // 2)
                print("done", flush=True)
            except ExecutionError as error:
                print(error, flush=True)


if __name__ == "__main__":
    main(int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 10_000_000)
