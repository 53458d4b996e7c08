"""What-if: a job before and after what-ifs, one after the other, and over a sweep.

Points of a sweep are independent questions and may run anywhere; each comes
on top of all the what-ifs that were applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.errors import ScenarioError
from perfmodel.base.shown import Shown
from perfmodel.execution.executor import Executor
from perfmodel.execution.serial import SerialExecutor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.answering import answer_in_full
from perfmodel.prediction.moving import apply_change
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.question import Question
from perfmodel.recordings.recorded_job import SelfReplay
from perfmodel.whatif.parsing import Sweep
from perfmodel.whatif.touching import Touched
from perfmodel.whatif.transformation import Transformation


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A what-if as it was typed, and what it stands for."""

    text: str
    transformation: Transformation


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """The answer once a change, and all before it, were applied.

    What it *touched* took that *share* of the time of all ranks before it.
    """

    text: str
    outcome: Prediction
    assumptions: tuple[str, ...]
    touched: Touched
    share: float


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """The outcome for every value of one parameter; *text* is how it was typed."""

    text: str
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
    force: bool = False,
) -> WhatIf:
    """The job of *question* before and after *changes*, and at each point of *sweep* after them.

    Its tasks state their durations, see `answering.prepare_changes`. With
    *force* changes that can work out little of the time anew are answered, too.
    """
    place = SerialExecutor() if executor is None else executor
    # The job itself, every change and the sweep count as one piece of work each.
    pieces = 1 + len(changes) + (sweep is not None)
    on_phase("replaying the job", 0.0)
    before = answer_in_full(question, executor=place)
    asked = _Asking(question, before, force=force)
    steps = []
    for number, change in enumerate(changes, start=1):
        on_phase(f"after {change.text}", number / pieces)
        asked, step = _answer_step(asked, change, place, may_touch_nothing=False)
        steps.append(step)
    swept = None
    if sweep is not None:
        points = [
            NamedChange(f"{sweep.name}:{sweep.key}={value}", transformation)
            for value, transformation in sweep.points
        ]
        found = tuple(
            map_in_steps(place, _answer_point, asked, points, on_phase=on_phase, phase="point")
        )
        if not any(step.touched.tasks for step in found):
            raise ScenarioError(f"sweep of {sweep.name}: touches no task at any value.")
        values = tuple(value for value, _ in sweep.points)
        swept = SweepAnswer(sweep.text, sweep.name, sweep.key, values, found)
    name = question.job.facts.name
    return WhatIf(name, question.score, before, tuple(steps), swept, before.assumptions)


@dataclass(frozen=True, slots=True, eq=False)
class _Asking:
    """A question on its way through changes, and its answer so far."""

    question: Question
    outcome: Prediction
    force: bool


def _answer_point(asked: _Asking, change: NamedChange) -> ChangeStep:
    return _answer_step(asked, change, SerialExecutor(), may_touch_nothing=True)[1]


def _answer_step(
    asked: _Asking, change: NamedChange, place: Executor, *, may_touch_nothing: bool
) -> tuple[_Asking, ChangeStep]:
    changed, applied = apply_change(
        asked.question,
        change.transformation,
        name=change.text,
        force=asked.force,
        may_touch_nothing=may_touch_nothing,
    )
    outcome = answer_in_full(changed, executor=place)
    step = ChangeStep(
        text=change.text,
        outcome=outcome,
        assumptions=(*change.transformation.assumptions, *applied.sentences),
        touched=applied.touched,
        share=_share(applied.touched, asked),
    )
    return _Asking(changed, outcome, force=asked.force), step


def _share(touched: Touched, asked: _Asking) -> float:
    """What the touched tasks took of the time that all ranks had."""
    before = asked.outcome
    ranks_ns = before.span_ns * asked.question.job.rank_count
    return touched.before.duration_ns / max(ranks_ns, 1)
