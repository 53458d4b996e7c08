"""Reorder: a program whose lanes run their tasks in another order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.graph.program import Int32s, Program


def reorder_program(program: Program, order: Int32s) -> Program:
    """The *program* whose task i is the old task `order[i]`; no task leaves its lane."""
    lanes = program.task_lanes()
    assert np.array_equal(lanes[order], lanes), "a task left its lane"
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    counts = np.diff(program.dep_start)[order]
    rows = np.concatenate(
        [
            np.arange(program.dep_start[task], program.dep_start[task + 1], dtype=np.int32)
            for task in order
        ]
    )
    return replace(
        program,
        op=program.op[order],
        label=program.label[order],
        slot=program.slot[order],
        sequence=program.sequence[order],
        role=program.role[order],
        dep_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        dep_task=place[program.dep_task[rows]],
        dep_anchor=program.dep_anchor[rows],
        dep_distance=program.dep_distance[rows],
        dep_lag_ns=program.dep_lag_ns[rows],
    )
