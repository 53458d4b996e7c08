"""What-if: a job before and after what-ifs, one after the other, and over a sweep.

Points of a sweep are independent questions and may run anywhere; each comes
on top of all the what-ifs that were applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.base.errors import ScenarioError
from perfmodel.base.shown import Shown
from perfmodel.execution.executor import Executor
from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import Interval, Prediction
from perfmodel.prediction.answering import answer, answer_in_full
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.question import Question
from perfmodel.recordings.recorded_job import SelfReplay
from perfmodel.whatif.parsing import Sweep
from perfmodel.whatif.scaling_out import COUNTED_DOUBT, ESTIMATED_DOUBT, ChangeMachine, Doubt
from perfmodel.whatif.touching import Touched
from perfmodel.whatif.transformation import Transformation, apply_one

DOUBT = (
    "The interval reaches from all ratios between the machines "
    f"{COUNTED_DOUBT - 1:.0%} too long to {COUNTED_DOUBT - 1:.0%} too short, and "
    f"{ESTIMATED_DOUBT - 1:.0%} where the work was estimated from recorded times."
)


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
    asked = _Asking(question, question.job, question.job, before, force=force)
    steps = []
    for number, change in enumerate(changes, start=1):
        on_phase(f"after {change.text}", number / pieces)
        asked, step = _answer_step(asked, change, place, may_touch_nothing=False)
        steps.append(step)
    swept = None
    if sweep is not None:
        points = [
            NamedChange(f"{sweep.name}:{sweep.key}={point.value}", point.transformation)
            for point in sweep.points
        ]
        found = tuple(
            map_in_steps(place, _answer_point, asked, points, on_phase=on_phase, phase="point")
        )
        if not any(step.touched.tasks for step in found):
            raise ScenarioError(f"sweep of {sweep.name}: touches no task at any value.")
        values = tuple(point.value for point in sweep.points)
        swept = SweepAnswer(sweep.name, sweep.key, values, found)
    name = question.job.facts.name
    return WhatIf(name, question.score, before, tuple(steps), swept, before.assumptions)


@dataclass(frozen=True, slots=True, eq=False)
class _Asking:
    """A question on its way through changes, its job at both ends of what could be so."""

    question: Question
    fastest: JobGraph
    slowest: JobGraph
    outcome: Prediction
    force: bool

    @property
    def is_doubted(self) -> bool:
        """Whether a change left room for faster and slower."""
        return self.fastest is not self.question.job or self.slowest is not self.question.job


def _answer_point(asked: _Asking, change: NamedChange) -> ChangeStep:
    return _answer_step(asked, change, SerialExecutor(), may_touch_nothing=True)[1]


def _answer_step(
    asked: _Asking, change: NamedChange, place: Executor, *, may_touch_nothing: bool
) -> tuple[_Asking, ChangeStep]:
    wish = change.transformation
    applied = apply_one(
        asked.question.job,
        wish,
        name=change.text,
        force=asked.force,
        may_touch_nothing=may_touch_nothing,
    )
    fastest = slowest = applied.job
    if asked.is_doubted or isinstance(wish, ChangeMachine):
        fastest = _at_end(wish, Doubt.FASTEST).apply(asked.fastest)
        slowest = _at_end(wish, Doubt.SLOWEST).apply(asked.slowest)
    changed = _Asking(
        asked.question.changed_to(applied.job), fastest, slowest, asked.outcome, force=asked.force
    )
    outcome = answer_in_full(changed.question, executor=place)
    if changed.is_doubted:
        outcome = _with_doubt(changed, outcome, place)
    step = ChangeStep(
        text=change.text,
        outcome=outcome,
        assumptions=(*wish.assumptions, *applied.sentences),
        touched=applied.touched,
        share=_share(applied.touched, asked),
    )
    return replace(changed, outcome=outcome), step


def _at_end(wish: Transformation, doubt: Doubt) -> Transformation:
    return wish.doubted(doubt) if isinstance(wish, ChangeMachine) else wish


def _with_doubt(asked: _Asking, outcome: Prediction, place: Executor) -> Prediction:
    """*outcome* with an interval as wide as what was worked out anew may be off."""
    ends = []
    for job in (asked.fastest, asked.slowest):
        question = asked.question.changed_to(job)
        asked_for = replace(question.asked, is_explained=False)
        ends.append(answer(replace(question, asked=asked_for), executor=place).interval)
    low_ns = min(ends[0].low_ns, outcome.interval.low_ns)
    high_ns = max(ends[1].high_ns, outcome.interval.high_ns)
    return replace(
        outcome,
        interval=Interval(low_ns, high_ns),
        assumptions=(*outcome.assumptions, DOUBT),
    )


def _share(touched: Touched, asked: _Asking) -> float:
    """What the touched tasks took of the time that all ranks had."""
    before = asked.outcome
    ranks_ns = before.span_ns * asked.question.job.rank_count
    return touched.before.duration_ns / max(ranks_ns, 1)
