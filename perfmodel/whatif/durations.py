"""What-ifs that change how long tasks take and leave the structure alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.units import format_duration
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Attention, Convolution, Fixed, Gemm, Op, duration_of
from perfmodel.whatif.job_draft import Ranks, change_ops, retime
from perfmodel.whatif.recosting import Effort, OnMachine, Recosted, count_recosted
from perfmodel.whatif.selection import LaneWord, Numbers, Pattern, RankSet, Selection

PRODUCTS = Pattern("gemm|attention|convolution")
BY_PARAMETERS = Pattern("optimizer|gradients/|multi_tensor|adam|sgd|adagrad|AllReduce|zero_grad")
_PRODUCTS = (Gemm, Attention, Convolution)
_UNCHANGED = "All other tasks, launches and dependencies stay as they are."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Tasks like *match* take *factor* times as long: a faster GEMM, a slower link."""

    match: Pattern
    factor: float
    lane: LaneWord = LaneWord.DEVICE
    rank: RankSet | None = None

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.match, self.lane)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "" if self.rank is None else f" of rank {self.rank}"
        return (f"Tasks like {self.match}{where} take {self.factor:g} times as long. {_UNCHANGED}",)

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return _retimed(job, self, lambda op: duration_of(op) * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDuration:
    """Tasks like *match* take *to*; *number* picks some of those in a rank, from 0."""

    to_ns: int
    match: Pattern | None = None
    lane: LaneWord = LaneWord.ANY
    rank: RankSet | None = None
    longer_ns: int = -1
    number: Numbers | None = None

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.match, self.lane, self.longer_ns, self.number)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "all ranks" if self.rank is None else f"rank {self.rank}"
        to = format_duration(self.to_ns)
        return (f"On {where} a task that is {self.selection.words} takes {to}. {_UNCHANGED}",)

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return _retimed(job, self, lambda _: self.to_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverhead:
    """Host threads take *factor* times as long over everything they do; 0 is no overhead."""

    factor: float = 0.0
    match: Pattern | None = None
    rank: RankSet | None = None

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.match, LaneWord.HOST)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Host work takes {self.factor:g} times as long; waits of the host for the device "
                "and latencies of launches stay."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return _retimed(job, self, lambda op: duration_of(op) * self.factor)


def _retimed(
    job: JobGraph, wish: Scale | SetDuration | HostOverhead, length_ns: Callable[[Op], float]
) -> JobGraph:
    return change_ops(
        job,
        wish.selection,
        lambda op, _: retime(op, length_ns(op)),
        assumptions=wish.assumptions,
        ranks=wish.rank,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceDType(OnMachine):
    """Products, convolutions and attention like *match* run in the number format *to*.

    *was* is the format of kernels whose shapes are not known.
    """

    to: DType
    match: Pattern = PRODUCTS
    was: DType = DType.FP32

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        ratio = self.to.size_bytes / self.was.size_bytes
        return (
            (
                f"Tasks like {self.match} run in {self.to.value}; no kernel that casts is added, "
                "and what is stored and communicated keeps its format."
            ),
            (
                f"Where shapes are not known, {self.was.value} becomes {self.to.value} and takes "
                f"{ratio:g} times as long, as its numbers have that many bytes."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return change_ops(job, self.selection, self._change, assumptions=self.assumptions)

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.match, LaneWord.COMPUTE)

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of the time of the products has known shapes."""
        return count_recosted(
            job,
            self.selection,
            lambda op: isinstance(op.work, _PRODUCTS),
            what=f"the time of tasks like {self.match}",
        )

    def _change(self, op: Op, ranks: Ranks) -> Op:
        duration_ns = duration_of(op)
        assert isinstance(op, Fixed)
        if isinstance(op.work, _PRODUCTS):
            work = replace(op.work, dtype=self.to)
            ratio = self.time_ratio(Effort(op.work, ranks), Effort(work, ranks))
            return retime(op, duration_ns * ratio, work=work)
        if op.work is None:
            return retime(op, duration_ns * self.to.size_bytes / self.was.size_bytes)
        return op


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBatch:
    """Every rank works on *factor* times as many samples.

    Device work beyond *floor* grows with them, except what is like *fixed*:
    gradients, weights and the optimizer, which do not depend on the batch.
    """

    factor: float
    fixed: Pattern = BY_PARAMETERS
    floor_ns: int = 2_000

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"With {self.factor:g} times the batch, device work takes that much longer beyond "
                f"a floor of {format_duration(self.floor_ns)} a task: kernels neither gain nor "
                "lose efficiency with size, and memory suffices."
            ),
            f"Tasks like {self.fixed} and all host work do not depend on the batch.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        keep = Selection(self.fixed, LaneWord.DEVICE)
        grown = change_ops(job, self.selection, self._change, assumptions=self.assumptions)
        programs = tuple(
            replace(new, op=np.where(keep.mask(job, old), old.op, new.op))
            for old, new in zip(job.programs, grown.programs, strict=True)
        )
        return replace(grown, programs=programs)

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(None, LaneWord.DEVICE)

    def _change(self, op: Op, _: Ranks) -> Op:
        duration_ns = duration_of(op)
        beyond_ns = max(duration_ns - self.floor_ns, 0)
        return retime(op, duration_ns + beyond_ns * (self.factor - 1))


def check_factor(name: str, value: float) -> None:
    """Raise unless *value* can multiply a duration."""
    if not 0 <= value < float("inf"):
        raise ScenarioError(f"{name}: must be zero or more, got {value:g}.")
