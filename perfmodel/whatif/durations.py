"""What-ifs that change how long tasks take and leave the structure alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.base.units import format_duration
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Attention, Convolution, Fixed, Gemm, MemoryBound, Op, duration_of
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.drafts import ProgramDraft, Ranks
from perfmodel.whatif.recosting import OnMachine, Recosted, count_recosted, retime
from perfmodel.whatif.selection import LaneWord, Numbers, Pattern, Selection
from perfmodel.whatif.transformation import OpChange, Transformation

GEMM_LIKE = Pattern("gemm|attention|convolution")
BY_PARAMETERS = Pattern("optimizer|gradients/|multi_tensor|adam|sgd|adagrad|AllReduce|zero_grad")
FULL_PRECISION = Pattern(f"range:Optimizer.step|{BY_PARAMETERS}")
_GEMM_LIKE = (Gemm, Attention, Convolution)
_WIDE = (DType.FP32, DType.TF32)
_UNCHANGED = "All other tasks, launches and dependencies stay as they are."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(OpChange):
    """Tasks like *match* take *factor* times as long: a faster GEMM, a slower link."""

    match: Pattern
    factor: float
    lane: LaneWord = LaneWord.DEVICE
    rank: Numbers | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "" if self.rank is None else f" of rank {self.rank}"
        return (f"Tasks like {self.match}{where} take {self.factor:g} times as long. {_UNCHANGED}",)

    def change(self, op: Op, _: Ranks) -> Op:
        """The op with another duration."""
        return retime(op, duration_of(op) * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDuration(OpChange):
    """Tasks like *match* take *to*; *number* picks some of those in a rank, from 0."""

    to_ns: int
    match: Pattern | None = None
    lane: LaneWord = LaneWord.ANY
    rank: Numbers | None = None
    longer_ns: int = -1
    number: Numbers | None = None

    @property
    def selection(self) -> Selection:
        """The tasks that change."""
        return Selection(self.match, self.lane, self.longer_ns, self.number)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "all ranks" if self.rank is None else f"rank {self.rank}"
        to = format_duration(self.to_ns)
        return (f"On {where} a task that is {self.selection.words} takes {to}. {_UNCHANGED}",)

    def change(self, op: Op, _: Ranks) -> Op:
        """The op with the stated duration."""
        return retime(op, self.to_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverhead(OpChange):
    """All work of host threads takes *factor* times as long; 0 is no overhead."""

    lane = LaneWord.HOST
    factor: float = 0.0
    match: Pattern | None = None
    rank: Numbers | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Host work takes {self.factor:g} times as long; the host's waits for the device "
                "and launch latencies stay."
            ),
        )

    def change(self, op: Op, _: Ranks) -> Op:
        """The op with another duration."""
        return retime(op, duration_of(op) * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBatch(OpChange):
    """Every rank works on *factor* times as many samples.

    Device work beyond *floor* grows with them, except tasks like *fixed*: gradients, weights and
    the optimizer, which do not depend on the batch.
    """

    factor: float
    fixed: Pattern = BY_PARAMETERS
    floor_ns: int = 2_000

    @property
    def selection(self) -> Selection:
        """The tasks that change."""
        return Selection(None, LaneWord.DEVICE)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"With {self.factor:g} times the batch, device work takes that much longer beyond "
                f"a floor of {format_duration(self.floor_ns)} per task: kernel efficiency does not "
                "depend on size, and memory suffices."
            ),
            f"Tasks like {self.fixed} and all host work do not depend on the batch.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        keep = Selection(self.fixed, LaneWord.DEVICE)
        grown = OpChange.apply(self, job)
        programs = tuple(
            replace(new, op=np.where(keep.mask(job, old), old.op, new.op))
            for old, new in zip(job.programs, grown.programs, strict=True)
        )
        return replace(grown, programs=programs)

    def change(self, op: Op, _: Ranks) -> Op:
        """The op with the time of the larger batch."""
        duration_ns = duration_of(op)
        beyond_ns = max(duration_ns - self.floor_ns, 0)
        return retime(op, duration_ns + beyond_ns * (self.factor - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceDType(OnMachine, OpChange):
    """GEMMs, convolutions and attention like *match* run in the number format *to*.

    *was* is the format of kernels whose shapes are not known.
    """

    lane = LaneWord.COMPUTE
    to: DType
    match: Pattern = GEMM_LIKE
    was: DType = DType.FP32

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        ratio = self.to.size_bytes / self.was.size_bytes
        return (
            (
                f"Tasks like {self.match} run in {self.to.value}; no cast kernels are added, and "
                "stored and communicated data keep their format."
            ),
            (
                f"Where shapes are not known, {self.was.value} becomes {self.to.value} and takes "
                f"{ratio:g} times as long, in proportion to its bytes."
            ),
            self.cost_sentence,
        )

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of the selected time has known shapes."""
        return count_recosted(
            job,
            self.selection,
            lambda op: isinstance(op.work, _GEMM_LIKE),
            what=f"the time of tasks like {self.match}",
        )

    def change(self, op: Op, ranks: Ranks) -> Op:
        """The op in the other format."""
        duration_ns = duration_of(op)
        assert isinstance(op, Fixed)
        if isinstance(op.work, _GEMM_LIKE):
            return self.rework(op, op.work, replace(op.work, dtype=self.to), ranks)
        if op.work is None:
            return retime(op, duration_ns * self.to.size_bytes / self.was.size_bytes)
        return op


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision(OnMachine, Transformation):
    """Training in 16 bits: GEMMs, convolutions and attention in *to*, other traffic halved.

    Without a machine GEMM-like kernels take *products* and memory-bound ones *memory* of their
    time. Tasks like *keep* (optimizer, gradients) stay in 32 bits.
    """

    to: DType = DType.FP16
    products: float = 1 / 3
    memory: float = 0.5
    keep: Pattern = FULL_PRECISION

    @property
    def selection(self) -> Selection:
        """The tasks that may change."""
        return Selection(None, LaneWord.COMPUTE)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        how = (
            f"GEMMs take {self.products:.3g} and memory-bound kernels {self.memory:g} of their "
            "time, whatever their size"
            if self.topology is None
            else f"times are scaled by the ratio of predictions for {self.topology}"
        )
        return (
            (
                f"GEMMs and memory-bound kernels of 32 bits run in {self.to.value}; {how}. "
                f"Tasks like {self.keep} stay as they are."
            ),
            "Casts, loss scaling and launches add nothing, and training still converges.",
        )

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of the time on compute streams is of known kernels."""
        return count_recosted(
            job,
            self.selection,
            lambda op: isinstance(op.work, (*_GEMM_LIKE, MemoryBound)),
            what="the time on compute streams",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        kept = program.mask(Selection(self.keep, LaneWord.DEVICE))
        chosen = program.mask(self.selection) & ~kept & (program.program.slot == PLAIN)
        for number in np.flatnonzero(chosen).tolist():
            program.set_op(number, self._narrow(program.op(number)))

    def _narrow(self, op: Op) -> Op:
        duration_ns = duration_of(op)
        assert isinstance(op, Fixed)
        work = op.work
        if isinstance(work, _GEMM_LIKE) and work.dtype in _WIDE:
            narrow: Gemm | Convolution | Attention | MemoryBound = replace(work, dtype=self.to)
            share = self.products
        elif isinstance(work, MemoryBound) and work.dtype in _WIDE:
            read, written = work.read_bytes // 2, work.write_bytes // 2
            narrow = replace(work, dtype=self.to, read_bytes=read, write_bytes=written)
            share = self.memory
        else:
            return op
        if self.machine is not None:
            share = self.time_ratio(work, narrow)
        return retime(op, duration_ns * share, work=narrow)
