"""Measures the replay of the benchmark job in a process of its own.

    python -m tests.benchmarks.measure_replay RANKS [distinct]

Prints JSON. Seconds are those of the processor, so that a busy machine tells
the same as an idle one: a replay works in one thread. Memory counts from the
process with everything imported and compiled but no job, to the peak while
the job is replayed for the first time.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import psutil

from perfmodel.engine.replay import Replay, replay
from tests.benchmarks.graphs import BenchmarkJob, build_benchmark_job

REPEATS = 3


def measure(rank_count: int, *, is_distinct: bool) -> dict[str, Any]:
    """Speed and memory of a replay on *rank_count* ranks."""
    _replay(
        build_benchmark_job(2, is_distinct=is_distinct)
    )  # compiles, or loads what was compiled before
    idle_bytes = psutil.Process().memory_info().rss
    benchmark = build_benchmark_job(rank_count, is_distinct=is_distinct)
    tasks = benchmark.job.task_count
    first_s, answer = _timed(benchmark)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    end_ns = int(answer.iteration_end_ns[-1, 0])
    del answer
    repeat_s = min(_timed(benchmark)[0] for _ in range(REPEATS))
    return {
        "ranks": rank_count,
        "tasks": tasks,
        "first_tasks_per_s": tasks / first_s,
        "repeat_tasks_per_s": tasks / repeat_s,
        "bytes_a_task": (peak_bytes - idle_bytes) / tasks,
        "end_ns": end_ns,
    }


def _replay(benchmark: BenchmarkJob) -> Replay:
    return replay(benchmark.job, benchmark.durations)


def _timed(benchmark: BenchmarkJob) -> tuple[float, Replay]:
    start = time.process_time()
    answer = _replay(benchmark)
    return time.process_time() - start, answer


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), is_distinct=sys.argv[2:] == ["distinct"])))
