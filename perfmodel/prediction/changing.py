"""What-if: a job before and after what-ifs, one after the other, and over a sweep.

Points of a sweep are independent questions and may run anywhere; each comes
on top of all the what-ifs that were applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.shown import Shown
from perfmodel.execution.executor import Executor
from perfmodel.execution.serial import SerialExecutor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.answering import answer_in_full
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.question import Question
from perfmodel.recordings.recorded_job import SelfReplay
from perfmodel.whatif.parsing import Sweep
from perfmodel.whatif.transformation import Transformation, apply_one


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A what-if as it was typed, and what it stands for."""

    text: str
    transformation: Transformation


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """The answer once a change, and all before it, were applied."""

    text: str
    outcome: Prediction
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """The outcome for every value of one parameter."""

    name: str
    key: str
    values: tuple[str, ...]
    steps: tuple[ChangeStep, ...]


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf(Shown):
    """The outcome before, after each change, and over a sweep.

    *score* is how well the job replays itself, if it was recorded.
    """

    job: str
    score: SelfReplay | None
    before: Prediction
    steps: tuple[ChangeStep, ...]
    sweep: SweepAnswer | None
    own_assumptions: tuple[str, ...]

    @property
    def after(self) -> Prediction:
        """The outcome with all changes."""
        return self.steps[-1].outcome if self.steps else self.before

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted by the changes, in their order."""
        swept = self.sweep.steps if self.sweep is not None else ()
        sentences = [line for step in (*self.steps, *swept) for line in step.assumptions]
        return tuple(dict.fromkeys(sentences))


def answer_changes(
    question: Question,
    changes: Sequence[NamedChange],
    *,
    sweep: Sweep | None = None,
    executor: Executor | None = None,
    on_phase: OnPhase = ignore_phase,
) -> WhatIf:
    """The job of *question* before and after *changes*, and at each point of *sweep* after them.

    Its tasks state their durations, see `answering.prepare_changes`.
    """
    place = SerialExecutor() if executor is None else executor
    # The job itself, every change and the sweep count as one piece of work each.
    pieces = 1 + len(changes) + (sweep is not None)
    on_phase("replaying the job", 0.0)
    before = answer_in_full(question, executor=place)
    steps = []
    changed = question
    for number, change in enumerate(changes, start=1):
        on_phase(f"after {change.text}", number / pieces)
        changed = _apply(changed, change)
        outcome = answer_in_full(changed, executor=place)
        steps.append(ChangeStep(change.text, outcome, change.transformation.assumptions))
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
            tuple(
                map_in_steps(
                    place, _answer_point, changed, points, on_phase=on_phase, phase="point"
                )
            ),
        )
    name = question.job.facts.name
    return WhatIf(name, question.score, before, tuple(steps), answer, before.assumptions)


def _answer_point(base: Question, change: NamedChange) -> ChangeStep:
    outcome = answer_in_full(_apply(base, change), executor=SerialExecutor())
    return ChangeStep(change.text, outcome, change.transformation.assumptions)


def _apply(question: Question, change: NamedChange) -> Question:
    return question.changed_to(apply_one(question.job, change.transformation, name=change.text))
