"""What-ifs: a job before and after changes, and over a sweep.

Changes are applied one after the other. The points of a sweep are independent, each on top of all
changes. Where a change leaves open how fast the job is, the question keeps both ends of what it
may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from perfmodel.base.errors import ScenarioError
from perfmodel.base.shown import Shown
from perfmodel.execution.executor import Executor, SerialExecutor
from perfmodel.extensions.whatif.parsing import Sweep, build_transformation
from perfmodel.extensions.whatif.pinning import pin_prices
from perfmodel.extensions.whatif.recorded_machine import about_machine, recorded_machine
from perfmodel.extensions.whatif.scaling_out import DOUBT, Doubt
from perfmodel.extensions.whatif.touching import Touched
from perfmodel.extensions.whatif.transformation import Applied, Transformation, apply_one
from perfmodel.graph.job import with_own_origins
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.predict import predict, price
from perfmodel.prediction.question import Ends, Question
from perfmodel.prediction.recording import RecordedStep, ReplayScore
from perfmodel.prediction.saved_jobs import (
    DEFAULT_STACK,
    PricingMachine,
)
from perfmodel.prediction.scenario import JobScenario

Change = tuple[str, Transformation]
"""A what-if as it was typed, and what it does."""


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """The prediction after a change and all before it.

    The tasks that it *touched* took a *share* of the time of all ranks.
    """

    text: str
    outcome: Prediction
    assumptions: tuple[str, ...]
    touched: Touched
    share: float


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """The prediction for every value of one parameter; *text* is how it was typed."""

    text: str
    name: str
    key: str
    values: tuple[str, ...]
    steps: tuple[ChangeStep, ...]


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf(Shown):
    """The prediction before changes, after each, and over a sweep.

    *score* says how well a recording replays itself, *options* how else it was asked.
    """

    SHOWN_BY: ClassVar[str] = "perfmodel.extensions.whatif.report"

    job: str
    score: ReplayScore | None
    before: Prediction
    steps: tuple[ChangeStep, ...]
    sweep: SweepAnswer | None
    own_assumptions: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def after(self) -> Prediction:
        """The prediction with all changes."""
        return self.steps[-1].outcome if self.steps else self.before

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the changes assume, in their order."""
        swept = self.sweep.steps if self.sweep is not None else ()
        sentences = [line for step in (*self.steps, *swept) for line in step.assumptions]
        return tuple(dict.fromkeys(sentences))


def answer_changes(
    question: Question,
    changes: Sequence[Change],
    *,
    sweep: Sweep | None = None,
    executor: Executor | None = None,
    on_phase: OnPhase = ignore_phase,
    force: bool = False,
) -> WhatIf:
    """The job of *question* before and after *changes*, and at each point of *sweep* after them.

    Its tasks state their durations, see `prepare_changes`. With *force* changes that can rework
    only a small part of the time are predicted too.
    """
    place = SerialExecutor() if executor is None else executor
    # The job itself, every change and the sweep count as one piece of work each.
    pieces = 1 + len(changes) + (sweep is not None)
    on_phase("replaying the job", 0.0)
    before = predict(question, executor=place)
    changed, outcome, steps = question, before, []
    for number, change in enumerate(changes, start=1):
        on_phase(f"after {change[0]}", number / pieces)
        changed, step = _apply_step((changed, outcome, force), change, place)
        outcome = step.outcome
        steps.append(step)
    swept = None
    if sweep is not None:
        points = [
            (f"{sweep.name}:{sweep.key}={value}", transformation)
            for value, transformation in sweep.points
        ]
        shared = (changed, outcome, force)
        found = tuple(
            map_in_steps(place, _sweep_point, shared, points, on_phase=on_phase, phase="point")
        )
        if not any(step.touched.tasks for step in found):
            raise ScenarioError(f"sweep of {sweep.name}: touches no task at any value.")
        values = tuple(value for value, _ in sweep.points)
        swept = SweepAnswer(sweep.text, sweep.name, sweep.key, values, found)
    name = question.job.facts.name
    return WhatIf(name, question.score, before, tuple(steps), swept, before.assumptions)


Asked = tuple[Question, Prediction, bool]
"""A question, its prediction, and whether doubtful changes of it are predicted too."""


def _sweep_point(asked: Asked, change: Change) -> ChangeStep:
    return _apply_step(asked, change, SerialExecutor(), may_touch_nothing=True)[1]


def _apply_step(
    asked: Asked, change: Change, place: Executor, *, may_touch_nothing: bool = False
) -> tuple[Question, ChangeStep]:
    (question, before, force), (text, transformation) = asked, change
    changed, applied = apply_change(
        question, transformation, name=text, force=force, may_touch_nothing=may_touch_nothing
    )
    ranks_ns = before.span_ns * question.job.rank_count
    outcome = predict(changed, executor=place)
    if changed.recording is not None:
        times = replace(changed.options, is_explained=False)
        under = replace(changed, options=times, ends=None).changed_to(changed.recording.profiled)
        outcome = replace(
            outcome, recorded=RecordedStep(predict(under, executor=place).iteration_ns)
        )
    step = ChangeStep(
        text=text,
        outcome=outcome,
        assumptions=(*transformation.assumptions, *applied.sentences),
        touched=applied.touched,
        share=applied.touched.before.duration_ns / max(ranks_ns, 1),
    )
    return changed, step


def prepare_changes(question: Question, *, force: bool = False) -> Question:
    """*question* about a job that what-ifs can change: every task states its duration.

    A recording that does not replay itself is refused, unless *force* is set.
    """
    check_trust(question, force=force)
    if question.cluster is None:
        named = question.job if question.recording is not None else with_own_origins(question.job)
        return replace(question, job=named)
    pinned = pin_prices(*price(question, [question.job]))
    return replace(question, job=pinned.job, known=pinned)


def apply_change(
    question: Question,
    wish: Transformation,
    *,
    name: str,
    force: bool = False,
    may_touch_nothing: bool = False,
) -> tuple[Question, Applied]:
    """*question* about its job after *wish*, and what that touched."""
    applied = apply_one(
        question.job, wish, name=name, force=force, may_touch_nothing=may_touch_nothing
    )
    ends = None
    if question.ends is not None or wish.is_doubtful:
        before = question.ends or Ends(question.job, question.job, DOUBT)
        ends = Ends(
            wish.at_end(Doubt.FASTEST.value).apply(before.fastest),
            wish.at_end(Doubt.SLOWEST.value).apply(before.slowest),
            DOUBT,
        )
    recording = question.recording
    if recording is not None:
        recording = recording.changed_to(wish.apply(recording.profiled))
    return replace(question.changed_to(applied.job), ends=ends, recording=recording), applied


def check_trust(question: Question, *, force: bool) -> None:
    """Refuse a recording that does not replay itself, unless *force* is set."""
    score = question.score
    if score is not None and not score.is_trusted and not force:
        raise ScenarioError(
            f"{question.job.facts.name}: {score.distrust}. Record it again, or ask with --force "
            "and do not trust the answer."
        )


def move_question(question: Question, scenario: JobScenario) -> Question:
    """*question* about the machine that *scenario* names, instead of the recorded one."""
    check_trust(question, force=scenario.force)
    was, assumptions = scenario.was, question.assumptions
    if was is None:
        was = recorded_machine(question.job)
        if was is None:
            raise ScenarioError(
                f"{scenario.job}: does not say which machine its durations are from "
                f"({question.job.facts.device or 'no GPU is named'}), so the effect of "
                f"{scenario.topology} is unknown. Name it with --was, for example --was dgx_a100."
            )
        assumptions = (*assumptions, about_machine(question.job))
    assert scenario.topology is not None
    stack = scenario.stack or DEFAULT_STACK
    target = PricingMachine(scenario.topology, scenario.hosts, stack)
    hosts = target.cluster(question.job.rank_count).host_count
    if question.recording is None:
        question = replace(question, job=with_own_origins(question.job))
    text = f"machine:topology={scenario.topology},was={was}"
    stated = {"topology": scenario.topology, "was": was, "hosts": scenario.hosts, "stack": stack}
    wish = build_transformation("machine", stated)
    moved, applied = apply_change(question, wish, name=text, force=scenario.force)
    return replace(
        moved,
        assumptions=(*assumptions, *applied.sentences),
        scenario=replace(scenario, hosts=hosts, stack=stack, was=was),
    )
