"""Replaying a job that lies in a folder, without asking why it takes as long as it does.

A recording is held beside what was recorded; any other job is replayed until
its loop repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import ScenarioError
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.outcome import find_outcome
from perfmodel.prediction.subject import load_subject
from perfmodel.recordings.recorded_job import ImportReport
from perfmodel.recordings.self_replay import SelfReplay, self_replay
from perfmodel.recordings.storage import is_recorded_job, load_recorded_job
from perfmodel.whatif.pinning import Machine


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedJob:
    """A job and the time of its iteration; *score* and *report* where it was recorded.

    *span_ns* is one pass from the first task to the last.
    """

    graph: JobGraph
    iteration_ns: int
    span_ns: int
    score: SelfReplay | None = None
    report: ImportReport | None = None


def replay_job(folder: Path, *, executor: Executor, machine: Machine | None = None) -> ReplayedJob:
    """Replay the job in *folder*, priced on *machine* where its tasks state no duration."""
    if is_recorded_job(folder):
        if machine is not None:
            raise ScenarioError(
                f"{folder}: was recorded, so that a machine ({machine.topology}) would change "
                "nothing. Replay it without --topology, or ask `perfmodel whatif JOB --apply "
                "machine`; `perfmodel whatif --list` shows its parameters."
            )
        recorded = load_recorded_job(folder)
        score = self_replay(recorded, replayer=executor.replay)
        return ReplayedJob(
            graph=recorded.graph,
            iteration_ns=score.iteration.replayed_ns,
            span_ns=max(rank.replayed_ns for rank in score.ranks),
            score=score,
            report=recorded.report,
        )
    subject = load_subject(folder, machine=machine)
    outcome = find_outcome(executor.replay, subject)
    return ReplayedJob(subject.job, outcome.iteration_ns, outcome.span_ns)
