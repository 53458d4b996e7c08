"""Measures the memory that `predict --job` on Ray needs in addition to that of its workers.

    python -m tests.benchmarks.measure_saved_job [MILLION_TASKS] [WORKERS]

The job has a program for every rank, states its durations and is saved. Then a process of its own
predicts it on Ray, once with the job read there and dealt out, once with every worker reading its
own ranks. Prints how far that process grew, and whether the answers are equal.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel import api
from perfmodel.base.writing import to_json
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.graph.storage import save_job
from perfmodel.prediction import saved_jobs
from perfmodel.prediction.scenario import JobScenario
from perfmodel.reports.document import to_document
from tests.benchmarks.graphs import TASKS_A_RANK, build_benchmark_job
from tests.benchmarks.measure_ray_memory import MIB, read_status
from tests.conftest import CHECKOUT

DURATIONS_NS = range(1_000, 12_000, 10)


def build_stated_job(rank_count: int) -> JobGraph:
    """The benchmark job with a program of its own for every rank and durations drawn from few."""
    job = build_benchmark_job(rank_count, is_distinct=True).job
    generator = np.random.default_rng(0)
    ops = tuple(Fixed(kind.value, ns) for kind in LaneKind for ns in DURATIONS_NS)
    first = np.array([list(LaneKind).index(lane.kind) for lane in job.programs[0].lanes])
    of_task = first[job.programs[0].task_lanes()] * len(DURATIONS_NS)
    return replace(
        job,
        ops=ops,
        programs=tuple(
            replace(
                program,
                op=(of_task + generator.integers(0, len(DURATIONS_NS), TASKS_A_RANK)).astype(
                    np.int32
                ),
            )
            for program in job.programs
        ),
    )


def save(folder: str, rank_count: int) -> None:
    """Save the job to *folder*."""
    save_job(build_stated_job(rank_count), Path(folder))


def predict(folder: str, workers: int, most_near_tasks: int) -> None:
    """Predict the job in *folder*; how far this process grew, and a word for the answer."""
    saved_jobs.MOST_NEAR_TASKS = most_near_tasks
    pid, began_s = "self", time.monotonic()
    before = read_status(pid, "VmHWM")
    found = api.predict(JobScenario(folder), executor="ray", workers=workers, keep_timelines=False)
    grown_mib = (read_status(pid, "VmHWM") - before) / MIB
    answer = to_json({**to_document(found), "run": None})
    print(
        f"{grown_mib:,.0f} MiB, {time.monotonic() - began_s:.0f} s, "
        f"answer {hashlib.sha256(answer.encode()).hexdigest()[:12]}"
    )


def main(tasks: int, workers: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "job")
        ranks = tasks // TASKS_A_RANK
        # In a process of its own, so that its memory is free again.
        ask(f"save({str(folder)!r}, {ranks})")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{ranks * TASKS_A_RANK:,} tasks of {ranks:,} ranks, {size / MIB:,.0f} MiB of files")
        for words, most in (("read here and dealt out", 2**62), ("read by the workers", 0)):
            print(f"  {words}, {workers} workers: ", end="", flush=True)
            ask(f"predict({str(folder)!r}, {workers}, {most})")


def ask(statement: str) -> None:
    """Carry out a *statement* of this module in a process of its own."""
    code = f"from tests.benchmarks.measure_saved_job import *\n{statement}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)


if __name__ == "__main__":
    million, workers = (*sys.argv[1:], *("20", "2")[len(sys.argv) - 1 :])
    main(int(float(million) * 1e6), int(workers))
