"""What-ifs: a job before and after changes, over a sweep, and on another machine.

Changes are applied one after the other. The points of a sweep are independent, each on top of all
changes. `predict --job` moves a whole recording to another machine, which is a change too. Where
a change leaves open how fast the job is, the question keeps both ends of what it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.base.errors import ScenarioError
from perfmodel.base.shown import Shown
from perfmodel.execution.executor import Executor
from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.predict import predict, price
from perfmodel.prediction.question import Question
from perfmodel.prediction.scenario import JobScenario
from perfmodel.recordings.recorded_job import SelfReplay
from perfmodel.whatif.parsing import Sweep
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine, pin_prices
from perfmodel.whatif.scaling_out import ChangeMachine, Doubt
from perfmodel.whatif.touching import Touched
from perfmodel.whatif.transformation import Applied, Transformation, apply_one
from topologies import find_machine


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

    Its tasks state their durations, see `prepare_changes`. With
    *force* changes that can work out little of the time anew are answered, too.
    """
    place = SerialExecutor() if executor is None else executor
    # The job itself, every change and the sweep count as one piece of work each.
    pieces = 1 + len(changes) + (sweep is not None)
    on_phase("replaying the job", 0.0)
    before = predict(question, executor=place)
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
    outcome = predict(changed, executor=place)
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


def prepare_changes(question: Question, *, force: bool = False) -> Question:
    """*question* about a job that what-ifs can change: every task states its duration.

    A recording that does not replay itself is refused, unless *force* is set.
    """
    check_trust(question, force=force)
    if question.cluster is None:
        named = question.job if question.recording is not None else with_own_origins(question.job)
        return replace(question, job=named)
    pinned = pin_prices(price(question, question.job))
    return replace(question, job=pinned.job, known=pinned)


def check_trust(question: Question, *, force: bool) -> None:
    """Refuse a recording that does not replay itself, unless *force* is set."""
    score = question.score
    if score is not None and not score.is_trusted and not force:
        raise ScenarioError(
            f"{question.job.facts.name}: {score.distrust}. Record it again, or ask with --force "
            "and do not trust the answer."
        )


def recorded_machine(job: JobGraph) -> str | None:
    """The machine of the catalog that *job* was recorded on, as far as its GPUs tell."""
    if not job.facts.device:
        return None
    machine = find_machine(job.facts.device, job.facts.gpus_per_host)
    return None if machine is None else machine.name


def about_machine(job: JobGraph) -> str:
    """How the machine of a recording was found."""
    return (
        f"The recording names {job.facts.gpus_per_host} x {job.facts.device}: taken for "
        f"{recorded_machine(job)} of the catalog."
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
                f"({question.job.facts.device or 'no GPU is named'}), so that nobody knows what "
                f"{scenario.topology} changes. Name it with --was, for example --was dgx_a100."
            )
        assumptions = (*assumptions, about_machine(question.job))
    assert scenario.topology is not None
    stack = scenario.stack or DEFAULT_STACK
    wish = ChangeMachine(topology=scenario.topology, was=was, hosts=scenario.hosts, stack=stack)
    target = PricingMachine(scenario.topology, scenario.hosts, stack)
    hosts = target.cluster(question.job.rank_count).host_count
    if question.recording is None:
        question = replace(question, job=with_own_origins(question.job))
    text = f"machine:topology={scenario.topology},was={was}"
    moved, applied = apply_change(question, wish, name=text, force=scenario.force)
    return replace(
        moved,
        assumptions=(*assumptions, *applied.sentences),
        scenario=replace(scenario, hosts=hosts, stack=stack, was=was),
    )


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
    if question.ends is not None or isinstance(wish, ChangeMachine):
        fastest, slowest = question.ends or (question.job, question.job)
        ends = (
            _at_end(wish, Doubt.FASTEST).apply(fastest),
            _at_end(wish, Doubt.SLOWEST).apply(slowest),
        )
    return replace(question.changed_to(applied.job), ends=ends), applied


def _at_end(wish: Transformation, doubt: Doubt) -> Transformation:
    return wish.doubted(doubt) if isinstance(wish, ChangeMachine) else wish
