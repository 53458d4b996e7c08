"""Comparison: a job before and after what-ifs, one after the other, and over a sweep.

Points of a sweep are independent questions and may run anywhere; each comes
on top of all the what-ifs that were applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.execution.executor import Executor
from perfmodel.execution.serial import SerialExecutor
from perfmodel.prediction.outcome import Outcome, find_outcome
from perfmodel.prediction.scenario import Mode
from perfmodel.prediction.subject import Subject
from perfmodel.recordings.self_replay import SelfReplay
from perfmodel.whatif.parsing import Sweep
from perfmodel.whatif.transformation import Transformation, apply_one


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A what-if as it was typed, and what it stands for."""

    text: str
    transformation: Transformation


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome once a change, and all before it, were applied."""

    text: str
    outcome: Outcome
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """The outcome for every value of one parameter."""

    name: str
    key: str
    values: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome before, after each change, and over a sweep.

    *score* is how well the job replays itself, if it was recorded.
    """

    job: str
    score: SelfReplay | None
    before: Outcome
    steps: tuple[Step, ...]
    sweep: SweepAnswer | None
    own_assumptions: tuple[str, ...]

    @property
    def after(self) -> Outcome:
        """The outcome with all changes."""
        return self.steps[-1].outcome if self.steps else self.before

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted by the changes, in their order."""
        swept = self.sweep.steps if self.sweep is not None else ()
        sentences = [line for step in (*self.steps, *swept) for line in step.assumptions]
        return tuple(dict.fromkeys(sentences))


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """What all points of a sweep share."""

    subject: Subject
    mode: Mode


def compare(
    subject: Subject,
    changes: Sequence[NamedChange],
    *,
    sweep: Sweep | None = None,
    mode: Mode = Mode.PERIOD,
    executor: Executor | None = None,
) -> Comparison:
    """*subject* before and after *changes*, and after each point of *sweep* on top of them."""
    place = SerialExecutor() if executor is None else executor
    before = find_outcome(place.replay, subject, mode=mode)
    steps = []
    changed = subject
    for change in changes:
        changed = _apply(changed, change)
        outcome = find_outcome(place.replay, changed, mode=mode)
        steps.append(Step(change.text, outcome, change.transformation.assumptions))
    answer = None
    if sweep is not None:
        points = [
            NamedChange(f"{sweep.name}:{sweep.key}={point.value}", point.transformation)
            for point in sweep.points
        ]
        answer = SweepAnswer(
            sweep.name,
            sweep.key,
            tuple(point.value for point in sweep.points),
            tuple(place.map(_answer_point, _Base(changed, mode), points)),
        )
    facts = subject.job.facts
    return Comparison(facts.name, subject.score, before, tuple(steps), answer, facts.assumptions)


def _answer_point(base: _Base, change: NamedChange) -> Step:
    changed = _apply(base.subject, change)
    outcome = find_outcome(SerialExecutor().replay, changed, mode=base.mode)
    return Step(change.text, outcome, change.transformation.assumptions)


def _apply(subject: Subject, change: NamedChange) -> Subject:
    return subject.changed_to(apply_one(subject.job, change.transformation, name=change.text))
