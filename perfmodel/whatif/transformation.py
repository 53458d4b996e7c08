"""Transformation: the role of a what-if, a change that takes one job to another.

A transformation is a frozen dataclass; its fields are its parameters. It adds
its assumptions to the job, so that no later answer comes without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from perfmodel.base.errors import GraphError, PerfModelError
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobGraph


class Transformation(Protocol):
    """A change of a job."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted, in sentences."""
        ...

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job; *job* itself stays as it is."""
        ...


def apply_one(job: JobGraph, transformation: Transformation, *, name: str) -> JobGraph:
    """*job* after *transformation*, audited; *name* stands in errors."""
    try:
        changed = transformation.apply(job)
        check_job(changed)
    except GraphError as fault:
        raise GraphError(f"what-if {name!r} leaves a job that cannot run: {fault}") from None
    except PerfModelError as fault:
        raise type(fault)(f"what-if {name!r}: {fault}") from None
    return changed


def apply_all(job: JobGraph, transformations: Iterable[Transformation]) -> JobGraph:
    """*job* after all *transformations*, one after the other, each result audited."""
    for transformation in transformations:
        job = apply_one(job, transformation, name=type(transformation).__name__)
    return job
