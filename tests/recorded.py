"""Recorded jobs: `jobs.json` has a digest of every job that tests import, task by task.

After a change that was meant to move them: PERFMODEL_RECORD_JOBS=1 with those tests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.graph.job import JobGraph

JOBS = Path(__file__).with_name("jobs.json")
_MADE = Counter[str]()


def digest_job(job: JobGraph, *more: Any) -> str:
    """A digest of all columns of *job*, and of what *more* a test has of it."""
    digest = hashlib.sha256(repr((job.ops, job.labels, job.groups)).encode())
    for program in job.programs:
        for column in program.columns().values():
            digest.update(column.tobytes())
    for one in more:
        digest.update(one.tobytes() if isinstance(one, np.ndarray) else repr(one).encode())
    return digest.hexdigest()[:16]


def check_job(name: str, job: JobGraph, *more: Any) -> None:
    """Compare *job* with the one recorded as *name*, or as the running test's next without one.

    A job that is not recorded is new.
    """
    if not name:
        name, _, stage = (
            os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" (")
        )
        if stage != "call)":  # fixtures that several tests share are made by the first of them
            return
        _MADE[name] += 1
        name += f", job {_MADE[name]}"
    found = f"{job.task_count} tasks, {digest_job(job, *more)}"
    known = json.loads(JOBS.read_text(encoding="utf-8"))
    if "PERFMODEL_RECORD_JOBS" in os.environ:
        known = dict(sorted({**known, name: found}.items()))
        JOBS.write_text(json.dumps(known, indent=0) + "\n", encoding="utf-8")
    assert found == known.get(name, found), (
        f"{name}: another job than recorded, see tests/recorded.py"
    )
