"""Carried rule: what held back others in a recording, for a changed graph of the same job.

A what-if adds and removes tasks, so rows no longer match. A kernel is known
again by its name: equal names get the mean of what they had.
"""

from __future__ import annotations

import numpy as np

from perfmodel.graph.job import JobGraph
from perfmodel.recordings.hold_back import HoldRule
from perfmodel.recordings.recorded_job import RecordedJob


def carry_rule(job: RecordedJob, graph: JobGraph) -> HoldRule:
    """The rule of *job* for *graph*, a changed copy of its graph."""
    ratios: dict[str, list[float]] = {}
    held: dict[tuple[str, str], bool] = {}
    row = 0
    for rank in range(job.graph.rank_count):
        program = job.graph.program_of(rank)
        for task, lane in enumerate(program.task_lanes().tolist()):
            label = job.graph.labels[int(program.label[task])]
            ratios.setdefault(label, []).append(float(job.hold_ratio[row]))
            held[(program.lanes[lane].name, label)] = bool(job.can_be_held[row])
            row += 1
    mean = {label: sum(values) / len(values) for label, values in ratios.items()}
    new_ratio, new_held = [], []
    for rank in range(graph.rank_count):
        program = graph.program_of(rank)
        for task, lane in enumerate(program.task_lanes().tolist()):
            label = graph.labels[int(program.label[task])]
            is_device = program.lanes[lane].kind.is_device
            new_ratio.append(mean.get(label, 0.0) if is_device else 0.0)
            new_held.append(is_device and held.get((program.lanes[lane].name, label), True))
    return HoldRule(np.array(new_ratio), np.array(new_held, dtype=bool))
