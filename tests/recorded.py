"""Recorded values: a grid of small cases with the results that were last reviewed.

They notice a formula that is subtly wrong in one corner, where a worked case does not reach. No
constant that is fitted to measurements takes part, so that a fit moves none of them. After a
change that was meant to move them: `python -m tests.recorded` (or with the modules to record).

`jobs.json` has the jobs that tests import, task by task. After a change that was meant
to move them, run those tests with PERFMODEL_RECORD_JOBS=1.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections import Counter
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.graph.job import JobGraph

MODULES = (
    "tests.collectives.test_recorded",
    "tests.contract.test_defaults",
    "tests.costs.test_recorded",
    "tests.embeddings.test_recorded",
    "tests.graph.test_recorded",
    "tests.planning.test_recorded",
    "tests.prediction.test_recorded",
    "tests.extensions.recordings.test_recorded",
    "tests.reports.test_recorded",
    "tests.topologies.test_recorded",
    "tests.extensions.measurements.validation.test_recorded",
    "tests.workloads.test_recorded",
)


def plain(value: Any) -> Any:
    """*value* as JSON has it; numbers with the nine digits that no machine disagrees on."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, np.ndarray | tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.9g}")
    return value.item() if isinstance(value, np.generic) else value


def check(module_file: str, values: dict[str, Any]) -> None:
    """Compare *values* with those recorded next to *module_file*."""
    recorded = json.loads(Path(module_file).with_suffix(".json").read_text(encoding="utf-8"))
    assert sorted(values) == sorted(recorded)
    for name, value in values.items():
        assert plain(value) == approximately(recorded[name]), name


def approximately(value: Any) -> Any:
    """*value* with its numbers allowed a difference in the last digits."""
    if isinstance(value, list):
        return [approximately(one) for one in value]
    if isinstance(value, dict):
        return {key: approximately(one) for key, one in value.items()}
    return pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value


def digest_job(job: JobGraph, *more: Any) -> str:
    """A digest of all columns of *job*, and of what *more* a test has of it."""
    digest = hashlib.sha256(repr((job.ops, job.labels, job.groups)).encode())
    for program in job.programs:
        for column in program.columns().values():
            digest.update(column.tobytes())
    for one in more:
        digest.update(one.tobytes() if isinstance(one, np.ndarray) else repr(one).encode())
    return digest.hexdigest()[:16]


JOBS = Path(__file__).with_name("jobs.json")
_MADE = Counter[str]()


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


if __name__ == "__main__":
    for name in sys.argv[1:] or MODULES:
        module = importlib.import_module(name)
        target = Path(str(module.__file__)).with_suffix(".json")
        lines = (f"{json.dumps(k)}: {json.dumps(plain(v))}" for k, v in module.values().items())
        target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
