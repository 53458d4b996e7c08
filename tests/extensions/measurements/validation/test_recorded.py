"""What the rows of the core tables are read as, as recorded: a digest of each workload."""

from __future__ import annotations

import hashlib
from typing import Any

from perfmodel.extensions.measurements.validation.runs_question import read_setting
from perfmodel.extensions.measurements.validation.runs_table import find_core_tables, load_runs
from tests import recorded

EVERY = 3
"""One row of so many: neighbours differ little."""


def values() -> dict[str, Any]:
    """Stack, machine, hosts, workload and number of assumptions, by row."""
    found = {}
    for path in find_core_tables():
        for row in load_runs(path).rows[::EVERY]:
            setting = read_setting(row)
            text = repr(setting.workload)
            found[f"{path.stem}: {row.name}"] = [
                setting.stack.name,
                setting.cluster.topology.name,
                [setting.cluster.host_count, setting.cluster.rank_count],
                hashlib.sha256(text.encode()).hexdigest()[:12],
                len(setting.assumptions),
            ]
    return found


def test_rows_are_read_as_recorded():
    recorded.check(__file__, values())
