"""Passes: which kernels belong to the forward pass, the backward pass and the update.

Autograd launches the backward pass from a host thread of its own, so that thread identifies it:
the one that launches most kernels named after a backward pass. What other threads launch after a
backward pass, up to the last kernel of an optimizer, is the update; all else is the forward pass.
Without such a thread no pass is known.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.program import PLAIN, LaneKind, Program

Mask = NDArray[np.bool_]


class TrainingPass(IntEnum):
    """The part of a step that a kernel belongs to."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3


def launching_lanes(program: Program) -> NDArray[np.int64]:
    """For every task the host lane that launched it, or -1."""
    is_device, waiting = program.is_on_device(), program.dep_owners()
    is_launch = is_device[waiting] & ~is_device[program.dep_task] & (program.dep_distance == 0)
    found = np.full(program.task_count, -1, dtype=np.int64)
    # Of several host tasks that a kernel waits for, the last one launched it.
    found[waiting[is_launch]] = program.task_lanes()[program.dep_task[is_launch]]
    return found


def find_passes(program: Program, says_backward: Mask, is_update: Mask) -> NDArray[np.int8]:
    """The `TrainingPass` of every task.

    *says_backward* are tasks whose name shows that they are of a backward pass, *is_update* those
    of an optimizer.
    """
    lanes, launched = program.task_lanes(), launching_lanes(program)
    passes = np.zeros(program.task_count, dtype=np.int8)
    is_compute = np.array([lane.kind is LaneKind.COMPUTE for lane in program.lanes], dtype=bool)
    is_kernel = is_compute[lanes] & (program.slot == PLAIN)
    threads, counts = np.unique(launched[is_kernel & says_backward], return_counts=True)
    threads, counts = threads[threads >= 0], counts[threads >= 0]
    others = np.setdiff1d(launched[is_kernel], [-1, *threads[counts == counts.max(initial=0)]])
    if not len(threads) or not len(others):
        return passes
    is_back = is_kernel & (launched == threads[np.argmax(counts)])
    for lane in np.unique(lanes[is_kernel]).tolist():
        tasks = np.flatnonzero(is_kernel & (lanes == lane))
        passes[tasks] = _along_lane(is_back[tasks], is_update[tasks])
    return passes


def _along_lane(is_back: Mask, is_update: Mask) -> NDArray[np.int8]:
    """The passes of the kernels of one lane, in order."""
    passes = np.where(is_back, TrainingPass.BACKWARD, TrainingPass.FORWARD).astype(np.int8)
    backward = np.flatnonzero(is_back)
    if not len(backward):
        return passes
    # Updates include what is between them and the backward kernel before them.
    next_update, next_backward = (
        np.minimum.accumulate(np.where(chosen, np.arange(len(is_back)), len(is_back))[::-1])[::-1]
        for chosen in (is_update & ~is_back, is_back)
    )
    passes[next_update < next_backward] = TrainingPass.UPDATE
    if not is_update.any():
        passes[backward[-1] + 1 :] = TrainingPass.UPDATE
    return passes
