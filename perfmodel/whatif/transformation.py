"""Transformation: the role of a what-if, a change that takes one job to another.

A transformation is a frozen dataclass; its fields are its parameters. It adds
its assumptions to the job, so that no later answer comes without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from perfmodel.base.errors import GraphError, PerfModelError, ScenarioError
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.whatif.recosting import Recosted
from perfmodel.whatif.selection import RankSet, Selection
from perfmodel.whatif.touching import Touched, count_matched, find_touched


class Transformation(Protocol):
    """A change of a job."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted, in sentences."""
        ...

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job; *job* itself stays as it is."""
        ...


@runtime_checkable
class Selecting(Protocol):
    """A transformation of some tasks, which may leave a few of them as they are."""

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        ...


@runtime_checkable
class Recosting(Protocol):
    """A transformation that works times out anew where it can."""

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of *job* that is."""
        ...


LEAST_RECOSTED = 0.5
"""A change that can work out less of the time than this is refused, unless forced."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A changed job and what the change touched; *recosted* is None where nothing is re-costed."""

    job: JobGraph
    touched: Touched
    recosted: Recosted | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """How much was worked out anew, where that was asked."""
        if self.recosted is None:
            return ()
        return (f"{self.recosted.words}.",)


def apply_one(
    job: JobGraph,
    transformation: Transformation,
    *,
    name: str,
    force: bool = False,
    may_touch_nothing: bool = False,
) -> Applied:
    """*job* after *transformation*, audited; *name* stands in errors.

    Tasks must have origins of their own. What could work out less than half of
    its time anew is refused unless *force* is set.
    """
    try:
        recosted = None
        if isinstance(transformation, Recosting):
            recosted = transformation.recosted(job)
            _check_recosted(recosted, force=force)
        changed = transformation.apply(job)
        check_job(changed)
        touched = find_touched(job, changed, _matched(job, transformation))
        if not touched.tasks and not may_touch_nothing:
            raise ScenarioError(
                "touches no task: what it is about was found, but nothing of it changes (kernels "
                "that do not follow each other, or collectives of a rank that was recorded alone, "
                "cannot be joined or cut). Look at the tasks with `perfmodel predict --job JOB "
                "--trace-out FILE`, and name others."
            )
    except GraphError as fault:
        raise GraphError(f"what-if {name!r} leaves a job that cannot run: {fault}") from None
    except PerfModelError as fault:
        raise type(fault)(f"what-if {name!r}: {fault}") from None
    return Applied(changed, touched, recosted)


def _check_recosted(recosted: Recosted, *, force: bool) -> None:
    if recosted.ratio >= LEAST_RECOSTED or force:
        return
    raise ScenarioError(
        f"only {recosted.words}, less than half. Import the recording with shapes (execution "
        "traces beside it), or ask with --force."
    )


def _matched(job: JobGraph, transformation: Transformation) -> int:
    if not isinstance(transformation, Selecting):
        return 0
    # Few are about some ranks only.
    ranks: RankSet | None = getattr(transformation, "rank", None)
    chosen = range(job.rank_count) if ranks is None else ranks.ranks
    selection = transformation.selection
    return count_matched(job, lambda program: selection.mask(job, program), chosen)


def apply_all(job: JobGraph, transformations: Iterable[Transformation]) -> JobGraph:
    """*job* after all *transformations*, one after the other, each result audited.

    Each must touch something, and be able to work out what it is about.
    """
    changes = list(transformations)
    if changes:
        job = with_own_origins(job)
    for change in changes:
        job = apply_one(job, change, name=type(change).__name__).job
    return job
