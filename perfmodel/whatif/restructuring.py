"""What-ifs about kernels of a model: mixed precision, batch norms joined to neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Attention, Convolution, Fixed, Gemm, MemoryBound, Op, duration_of
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.cuda_graphs import lone_launches
from perfmodel.whatif.durations import BY_PARAMETERS, check_factor
from perfmodel.whatif.job_draft import JobDraft, Ranks, edit_programs, retime
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.recosting import Effort, OnMachine, Recosted, count_recosted
from perfmodel.whatif.selection import LaneWord, Pattern, Selection

IN_FULL = Pattern(f"range:Optimizer.step|{BY_PARAMETERS}")
_WIDE = (DType.FP32, DType.TF32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision(OnMachine):
    """Training in 16 bits: products, convolutions and attention in *to*, half the traffic else.

    Without a machine products take *products* and memory-bound kernels *memory* of their
    time. Tasks like *keep* (optimizer, gradients) stay in 32 bits.
    """

    to: DType = DType.FP16
    products: float = 1 / 3
    memory: float = 0.5
    keep: Pattern = IN_FULL

    def __post_init__(self) -> None:
        OnMachine.__post_init__(self)
        check_factor("products", self.products)
        check_factor("memory", self.memory)

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(None, LaneWord.COMPUTE)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        how = (
            f"products take {self.products:.3g} and memory-bound kernels {self.memory:g} of their "
            "time, whatever their size"
            if self.topology is None
            else f"times are scaled by the ratio of predictions for {self.topology}"
        )
        return (
            (
                f"Products and memory-bound kernels of 32 bits run in {self.to.value}; {how}. "
                f"Tasks like {self.keep} stay as they are."
            ),
            "Casts, loss scaling and launches add nothing, and training still converges.",
        )

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of the time on compute streams is of known kernels."""
        return count_recosted(
            job,
            self.selection,
            lambda op: isinstance(op.work, Gemm | Convolution | Attention | MemoryBound),
            what="the time on compute streams",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        keep = Selection(self.keep, LaneWord.DEVICE)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            kept = keep.mask(job, program.program)
            chosen = self.selection.mask(job, program.program) & ~kept
            for number in np.flatnonzero(chosen & (program.program.slot == PLAIN)).tolist():
                task = program.tasks[number]
                task.op = draft.op(self._narrow(draft.op_at(task.op), ()))

        return edit_programs(job, edit, assumptions=self.assumptions)

    def _narrow(self, op: Op, ranks: Ranks) -> Op:
        duration_ns = duration_of(op)
        assert isinstance(op, Fixed)
        work = op.work
        if isinstance(work, Gemm | Convolution | Attention) and work.dtype in _WIDE:
            narrow: Gemm | Convolution | Attention | MemoryBound = replace(work, dtype=self.to)
            share = self.products
        elif isinstance(work, MemoryBound) and work.dtype in _WIDE:
            read, written = work.read_bytes // 2, work.write_bytes // 2
            narrow = replace(work, dtype=self.to, read_bytes=read, write_bytes=written)
            share = self.memory
        else:
            return op
        if self.machine is not None:
            share = self.time_ratio(Effort(work, ranks), Effort(narrow, ranks))
        return retime(op, duration_ns * share, work=narrow)


BATCH_NORM = Pattern("batch_norm|BatchNorm|batchnorm|bn_fw|bn_bw")
ACTIVATION = Pattern("relu|clamp_min|threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestructureBatchNorm:
    """Batch norms are split and joined to the convolutions beside them.

    Kernels like *match* take *factor* of their time, and those like *activation* next to one
    on its stream are done in the convolutions.
    """

    match: Pattern = BATCH_NORM
    activation: Pattern = ACTIVATION
    factor: float = 0.5

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Batch norms like {self.match} read and write {self.factor:g} of what they did; "
                f"kernels like {self.activation} right beside one cost nothing and are not "
                "launched, and convolutions take no longer for doing their work."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        norms = Selection(self.match, LaneWord.COMPUTE)
        beside = Selection(self.activation, LaneWord.COMPUTE)
        norms.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            found = norms.mask(job, program.program)
            lanes = program.program.task_lanes()
            gone = []
            for number in np.flatnonzero(beside.mask(job, program.program) & ~found).tolist():
                near = [one for one in (number - 1, number + 1) if 0 <= one < len(found)]
                if any(found[one] and lanes[one] == lanes[number] for one in near):
                    gone.append(number)
            for number in np.flatnonzero(found).tolist():
                task = program.tasks[number]
                task.op = draft.op(_less(draft.op_at(task.op), self.factor))
            program.remove([*gone, *sorted(lone_launches(program, gone))])

        return edit_programs(job, edit, assumptions=self.assumptions)


def _less(op: Op, factor: float) -> Fixed:
    work = op.work if isinstance(op, Fixed) else None
    if isinstance(work, MemoryBound):
        read, written = round(work.read_bytes * factor), round(work.write_bytes * factor)
        work = replace(work, read_bytes=read, write_bytes=written)
    return retime(op, duration_of(op) * factor, work=work)
