"""Compiling: eager kernels joined as a compiler joins them.

Pointwise kernels that follow each other on a stream, each reading what the one before
wrote, become one; a norm, softmax or sum may be one of them. Only the first reads its
input and only the last writes, beside what a later one reads from elsewhere.
Leaves out: kernels that are not neighbours, and products with epilogues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import MemoryBound, Op
from perfmodel.graph.program import PLAIN, LaneKind
from perfmodel.whatif.fusion import find_runs, keep_first
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import ProgramDraft

POINTWISE = frozenset(
    {
        "add", "sub", "mul", "div", "pow", "scale", "relu", "relu_backward", "gelu",
        "gelu_backward", "silu", "silu_backward", "tanh", "sigmoid", "dropout",
        "dropout_backward", "cast", "copy", "residual_add", "bias_add", "mask", "swiglu",
    }
)  # fmt: skip
REDUCING = frozenset(
    {
        "layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward", "softmax",
        "softmax_backward", "log_softmax", "log_softmax_backward", "batch_norm",
        "batch_norm_backward", "reduction",
    }
)  # fmt: skip
"""Kernels that a compiler joins with the pointwise ones around them, one per kernel."""


@dataclass(frozen=True, slots=True)
class Compile:
    """Chains of pointwise kernels of eager code are one kernel each."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                "Eager kernels are joined as a compiler does: pointwise kernels that follow each "
                "other, at most one norm, softmax or sum among them, are one that reads what the "
                "first read and writes what the last wrote."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return edit_programs(job, _edit, assumptions=self.assumptions)


def _edit(draft: JobDraft, program: ProgramDraft) -> None:
    is_compute = np.array([lane.kind is LaneKind.COMPUTE for lane in program.lanes])
    found = [
        number
        for number, task in program.tasks.items()
        if is_compute[task.lane] and task.slot == PLAIN and _word(draft.op_at(task.op))
    ]
    chains = []
    for run in find_runs(program, found, program.program):
        works = [draft.op_at(program.tasks[number].op) for number in run]
        for start, stop in _chains([work for work in works if isinstance(work, MemoryBound)]):
            joined = join_works(works[start:stop])  # type: ignore[arg-type]  # all memory-bound
            program.tasks[run[start]].op = draft.op(joined)
            chains.append(run[start:stop])
    keep_first(program, chains)


def _word(op: Op) -> str:
    if isinstance(op, MemoryBound) and op.operator in POINTWISE | REDUCING:
        return op.operator
    return ""


def _chains(works: Sequence[MemoryBound]) -> list[tuple[int, int]]:
    """Places of neighbours that hand on what they write, two or more each."""
    chains, start, has_reduced = [], 0, False
    for place, work in enumerate(works):
        is_reducing = work.operator in REDUCING
        before = works[place - 1] if place > start else None
        hands_on = before is not None and 0 < before.write_bytes <= work.read_bytes
        if not hands_on or (is_reducing and has_reduced):
            chains.append((start, place))
            start, has_reduced = place, False
        has_reduced = has_reduced or is_reducing
    chains.append((start, len(works)))
    return [(first, stop) for first, stop in chains if stop - first > 1]


def join_works(works: Sequence[MemoryBound]) -> MemoryBound:
    """The one kernel that does what *works* do in a row."""
    read = works[0].read_bytes
    for before, after in pairwise(works):
        read += after.read_bytes - before.write_bytes
    named = next((work for work in works if work.operator in REDUCING), works[0])
    return replace(
        named,
        read_bytes=read,
        write_bytes=works[-1].write_bytes,
        flops=sum(work.flops for work in works),
    )
