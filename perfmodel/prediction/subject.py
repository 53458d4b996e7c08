"""Subject: a job that what-ifs are asked about, and what a recording says beside it.

While a recorded job is changed, every task carries a label of its own (equal
in words, different in number), so that what was recorded finds its task again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.storage import load_job
from perfmodel.recordings.hold_back import HoldRule
from perfmodel.recordings.recorded_job import Int64s, RecordedJob
from perfmodel.recordings.self_replay import MAX_TRUSTED_ERROR_PCT, SelfReplay, self_replay
from perfmodel.recordings.storage import is_recorded_job, load_recorded_job
from perfmodel.whatif.pinning import Machine, is_pinned, pin_job


@dataclass(frozen=True, slots=True, eq=False)
class Notes:
    """What a recording says about tasks, by number of their label.

    *step_ends* names the tasks that end each step.
    """

    hold_ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]
    step_ends: tuple[Int64s, ...]

    def hold_rule(self, job: JobGraph) -> HoldRule:
        """The rule for the tasks of *job*; new ones neither hold nor are held."""
        labels = _labels_by_row(job)
        is_known = labels < len(self.hold_ratio)
        known = np.where(is_known, labels, 0)
        return HoldRule(
            np.where(is_known, self.hold_ratio[known], 0.0), is_known & self.can_be_held[known]
        )

    def step_moments_ns(self, job: JobGraph, end_ns: Int64s) -> list[int] | None:
        """When each step of *job* ended; None where tasks that end one are gone."""
        labels = _labels_by_row(job)
        rows = [np.flatnonzero(np.isin(labels, ends)) for ends in self.step_ends]
        if not all(len(of_step) for of_step in rows):
            return None
        return [int(end_ns[of_step].max()) for of_step in rows]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A job in which every task states its duration; *notes* where it was recorded."""

    job: JobGraph
    notes: Notes | None = None
    score: SelfReplay | None = None

    def changed_to(self, job: JobGraph) -> Subject:
        """The same subject after a change."""
        return replace(self, job=job)


def load_subject(folder: Path, *, machine: Machine | None, force: bool = False) -> Subject:
    """The job in *folder*, priced on *machine* where tasks state no duration.

    A recording that does not replay itself is refused, unless *force* is set.
    """
    if is_recorded_job(folder):
        subject = from_recording(load_recorded_job(folder))
        _check_score(folder, subject, force)
        return subject
    job = load_job(folder)
    if is_pinned(job):
        return Subject(job)
    if machine is None:
        raise ScenarioError(
            f"{folder}: its tasks have shapes and no durations. Say on which machine they run, "
            "for example --topology dgx_h100."
        )
    return Subject(pin_job(job, machine))


def from_recording(recorded: RecordedJob) -> Subject:
    """The subject that a recorded job is."""
    job, notes = tag_recording(recorded)
    return Subject(job, notes, self_replay(recorded))


def tag_recording(recorded: RecordedJob) -> tuple[JobGraph, Notes]:
    """The job of a recording with a label a task, and what was recorded by label."""
    graph = recorded.graph
    labels = _labels_by_row(graph)
    bounds = recorded.rank_rows()
    programs = tuple(
        replace(
            graph.program_of(rank),
            label=np.arange(bounds[rank], bounds[rank + 1], dtype=np.int32),
        )
        for rank in range(graph.rank_count)
    )
    tagged = replace(
        graph,
        labels=tuple(graph.labels[label] for label in labels.tolist()),
        programs=programs,
        rank_program=np.arange(graph.rank_count, dtype=np.int32),
    )
    return tagged, Notes(recorded.hold_ratio, recorded.can_be_held, recorded.step_ends)


def _check_score(folder: Path, subject: Subject, force: bool) -> None:
    if force or subject.score is None or subject.score.is_trusted:
        return
    raise ScenarioError(
        f"{folder}: replays itself with an error of {subject.score.iteration.error_pct:.1f} %, "
        f"and what-ifs need {MAX_TRUSTED_ERROR_PCT:g} % or less. Record it again, or ask with "
        "--force and do not trust the answer."
    )


def _labels_by_row(job: JobGraph) -> NDArray[np.int32]:
    return np.concatenate([job.program_of(rank).label for rank in range(job.rank_count)])
