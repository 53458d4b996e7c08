"""What-ifs about what collectives carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collectives import Collective
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication, Fixed, Op, duration_of
from perfmodel.whatif.durations import check_factor
from perfmodel.whatif.job_draft import Ranks, change_ops, retime
from perfmodel.whatif.recosting import Effort, OnMachine
from perfmodel.whatif.selection import LaneWord, Pattern, Selection

ALL_REDUCE = Pattern("all_reduce|AllReduce")
UNKNOWN_BYTES = "Collectives whose bytes are not known take time in proportion to their bytes."


@dataclass(frozen=True, slots=True, kw_only=True)
class Compress(OnMachine):
    """Collectives like *match* carry *ratio* of their bytes."""

    ratio: float
    match: Pattern = ALL_REDUCE

    def __post_init__(self) -> None:
        OnMachine.__post_init__(self)
        check_factor("ratio", self.ratio)

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.match, LaneWord.DEVICE)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} carry {self.ratio:g} of their bytes; "
                "packing and unpacking are free, and training still converges."
            ),
            UNKNOWN_BYTES,
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return change_collectives(
            job,
            self,
            lambda collective: carry(collective, ratio=self.ratio),
            unknown_ratio=self.ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantise(OnMachine):
    """Collectives like *match* carry numbers in the format *to*.

    *was* is the format of collectives of which it is not known.
    """

    to: DType
    match: Pattern = ALL_REDUCE
    was: DType = DType.FP32

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.match, LaneWord.DEVICE)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} carry {self.to.value}; casting is free, and "
                "training still converges."
            ),
            UNKNOWN_BYTES,
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""

        def quantise(collective: Collective) -> Collective:
            ratio = self.to.size_bytes / collective.dtype.size_bytes
            return replace(carry(collective, ratio=ratio), dtype=self.to)

        unknown_ratio = self.to.size_bytes / self.was.size_bytes
        return change_collectives(job, self, quantise, unknown_ratio=unknown_ratio)


def carry(collective: Collective, *, ratio: float) -> Collective:
    """*collective* with *ratio* of its bytes."""
    matrix = collective.byte_matrix
    if matrix is not None:
        matrix = tuple(tuple(round(sent * ratio) for sent in row) for row in matrix)
    return replace(collective, size_bytes=round(collective.size_bytes * ratio), byte_matrix=matrix)


def change_collectives(
    job: JobGraph,
    transformation: Compress | Quantise,
    change: Callable[[Collective], Collective],
    *,
    unknown_ratio: float,
) -> JobGraph:
    """*job* with other collectives where *transformation* matches.

    Those whose bytes are not known take *unknown_ratio* times as long.
    """

    def change_op(op: Op, ranks: Ranks) -> Op:
        if isinstance(op, Fixed) and not isinstance(op.work, Communication):
            return retime(op, op.duration_ns * unknown_ratio)
        collective = collective_of(op)
        work = Communication(change(collective))
        before, after = Effort(Communication(collective), ranks), Effort(work, ranks)
        ratio = transformation.time_ratio(before, after)
        return retime(op, duration_of(op) * ratio, work=work)

    return change_ops(
        job,
        transformation.selection,
        change_op,
        assumptions=transformation.assumptions,
    )


def collective_of(op: Op) -> Collective:
    """The collective that *op* carries out; a task that does not say is refused."""
    duration_of(op)
    if isinstance(op, Fixed) and isinstance(op.work, Communication):
        return op.work.collective
    name = op.name if isinstance(op, Fixed) else type(op).__name__
    raise ScenarioError(
        f"{name!r}: matches, but is not a collective whose bytes are known. Narrow the pattern, "
        "or change the duration itself with `scale`."
    )
