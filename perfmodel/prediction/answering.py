"""Answering: priced, settled, replayed, sampled, explained. The one way to an answer.

Everything but the executor and the clock of phases is decided by the question,
so equal questions have equal answers, whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.engine.breakdown import Window
from perfmodel.engine.history import History
from perfmodel.engine.replay import Replay
from perfmodel.engine.steady import SteadyState, find_period
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import (
    Answer,
    Explanation,
    Facts,
    InterferenceLoss,
    Interval,
    Prediction,
    Run,
)
from perfmodel.prediction.assumptions import list_assumptions
from perfmodel.prediction.continuing import continue_explanation
from perfmodel.prediction.evidence import Evidence, build_evidence
from perfmodel.prediction.explain import explain
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.interference import SettledCosts, leave_out, settle_interference
from perfmodel.prediction.phases import OnPhase, PhaseClock, ignore_phase
from perfmodel.prediction.question import Notes, Question, build_question
from perfmodel.prediction.sampling import build_interval, replay_samples
from perfmodel.prediction.scenario import Interference, JobScenario, Mode, Scenario
from perfmodel.recordings.hold_back import HeldReplay, replay_held
from perfmodel.recordings.recorded_job import MAX_TRUSTED_ERROR_PCT, SelfReplay
from perfmodel.whatif.pinning import pin_prices, stated_prices

NO_DOUBT = "The interval is empty: the job states its durations and no doubt about them."


def predict_scenario(
    scenario: Scenario | JobScenario, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Prediction:
    """Answer *scenario*, replaying on *executor*."""
    clock = PhaseClock(on_phase)
    with clock.phase("building the job", done=0.0):
        question = build_question(scenario)
    return _explained(_answer(question, executor, clock))


def answer_in_full(
    question: Question, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Prediction:
    """Answer *question* and explain it, whether it asks for that or not."""
    asked = replace(question, asked=replace(question.asked, is_explained=True))
    return _explained(answer(asked, executor=executor, on_phase=on_phase))


def answer(question: Question, *, executor: Executor, on_phase: OnPhase = ignore_phase) -> Answer:
    """Answer *question*, replaying on *executor*; a Prediction where it is to be explained."""
    return _answer(question, executor, PhaseClock(on_phase))


def prepare_changes(question: Question, *, force: bool = False) -> Question:
    """*question* about a job that what-ifs can change: every task states its duration.

    A recording that does not replay itself is refused, unless *force* is set.
    """
    score = question.score
    if score is not None and not score.is_trusted and not force:
        raise ScenarioError(
            f"{question.job.facts.name}: replays itself with an error of "
            f"{score.iteration.error_pct:.1f} %, and what-ifs need {MAX_TRUSTED_ERROR_PCT:g} % or "
            "less. Record it again, or ask with --force and do not trust the answer."
        )
    if question.cluster is None:
        return question
    pinned = pin_prices(price_question(question))
    return replace(question, job=pinned.job, known=pinned.prices)


def price_question(question: Question) -> PricedJob:
    """The job of *question* with a price for every task."""
    return _price(question, question.job)


def _price(question: Question, job: JobGraph) -> PricedJob:
    if question.cluster is None or question.known is not None:
        return stated_prices(job, question.known)
    assert question.stack is not None
    return price_job(job, cluster=question.cluster, stack=question.stack)


def _explained(found: Answer) -> Prediction:
    assert isinstance(found, Prediction)
    return found


def _answer(question: Question, executor: Executor, clock: PhaseClock) -> Answer:
    with clock.phase("pricing", done=0.2):
        priced = price_question(question)
    if question.notes is not None:
        return _answer_recording(question, question.notes, priced, executor, clock)
    return _answer_loop(question, priced, executor, clock)


@dataclass(frozen=True, eq=False)
class _Loop:
    """A priced job whose overlaps have settled, replayed until its rhythm showed."""

    alone: FoldedCosts
    settled: SettledCosts
    steady: SteadyState
    executor: Executor

    @property
    def priced(self) -> PricedJob:
        """The folded job, overlaps counted."""
        return self.settled.folded.priced

    def iteration_ns(self, mode: Mode) -> int:
        """The answer in *mode*; the first iteration of a loop is an isolated one."""
        if mode is Mode.PERIOD:
            return int(self.steady.period_ns[0])
        return int(self.steady.replay.iteration_end_ns[0, 0])

    def replay_of(self, mode: Mode) -> Replay:
        """The replay that the answer in *mode* is read from."""
        if mode is Mode.PERIOD:
            return self.steady.replay
        return self.executor.replay(self.priced.job, self.priced.durations, 1)

    @cached_property
    def without_interference(self) -> _Loop:
        """The same loop with everything as long as alone."""
        if not self.settled.has_losses:
            return self
        return _find_loop(leave_out(self.alone), self.alone, self.executor)

    def lost_ns(self, mode: Mode) -> int:
        """What overlaps cost the iteration."""
        return self.iteration_ns(mode) - self.without_interference.iteration_ns(mode)


def _settle(priced: PricedJob, question: Question, executor: Executor, clock: PhaseClock) -> _Loop:
    with clock.phase("folding equal ranks", done=0.35):
        alone = fold_costs(priced)
    with clock.phase("letting overlaps slow down", done=0.4):
        is_counted = question.asked.interference is Interference.COUNTED
        settled = settle_interference(executor.replay, alone) if is_counted else leave_out(alone)
    with clock.phase("replaying", done=0.45):
        return _find_loop(settled, alone, executor)


def _find_loop(settled: SettledCosts, alone: FoldedCosts, executor: Executor) -> _Loop:
    priced = settled.folded.priced
    steady = find_period(executor.replay, priced.job, priced.durations)
    return _Loop(alone, settled, steady, executor)


@dataclass(frozen=True, slots=True, eq=False)
class _Loops:
    """The loop of a question and, where it is continued, that of the larger job."""

    question: Question
    small: _Loop
    large: _Loop | None

    def reach(self, small: int, large: int) -> int:
        """A quantity of the whole iteration from those of the two jobs."""
        continuation = self.question.continuation
        return small if continuation is None else continuation.reach(small, large)

    def iteration_ns(self, mode: Mode) -> int:
        """The answer in *mode*."""
        large = self.large or self.small
        return self.reach(self.small.iteration_ns(mode), large.iteration_ns(mode))

    def loss(self) -> InterferenceLoss | None:
        """What overlaps cost; None where they were left out."""
        asked = self.question.asked
        if asked.interference is Interference.LEFT_OUT:
            return None
        large = self.large or self.small
        lost_ns = self.reach(self.small.lost_ns(asked.mode), large.lost_ns(asked.mode))
        return InterferenceLoss(lost_ns, self.small.settled.rounds)

    def facts(self) -> Facts:
        """What is said beside the answer."""
        whole = self.question.job
        larger = self.question.continuation and self.question.continuation.larger
        task_count = self.reach(whole.task_count, (larger or whole).task_count)
        is_period = self.question.asked.mode is Mode.PERIOD
        iterations = self.small.steady.replay.iteration_count if is_period else 1
        return replace(_facts(self.question, iterations), task_count=task_count)


def _answer_loop(
    question: Question, priced: PricedJob, executor: Executor, clock: PhaseClock
) -> Answer:
    large = None
    small = _settle(priced, question, executor, clock)
    if question.continuation is not None:
        bigger = _price(question, question.continuation.larger)
        large = _settle(bigger, question, executor, clock)
    loops, asked = _Loops(question, small, large), question.asked
    iteration_ns = loops.iteration_ns(asked.mode)
    with clock.phase("replaying samples", done=0.55):
        drawn_ns = _draw(small, question, iteration_ns)
    # Losses need a second loop, so only explanations name them.
    loss = loops.loss() if asked.is_explained else None
    found = Answer(
        mode=asked.mode,
        period_ns=loops.iteration_ns(Mode.PERIOD),
        isolated_ns=loops.iteration_ns(Mode.ISOLATED),
        interval=_interval_of(drawn_ns, iteration_ns),
        assumptions=(
            *list_assumptions(small.priced, small.steady, small.settled, asked, loss),
            *_about_continuing(question),
            *(() if drawn_ns or not asked.samples else (NO_DOUBT,)),
            *question.assumptions,
        ),
        facts=loops.facts(),
        span_ns=loops.iteration_ns(Mode.ISOLATED),
        periods_ns=(iteration_ns,),
        drawn_ns=drawn_ns,
    )
    if not asked.is_explained:
        return found
    with clock.phase("explaining", done=0.9):
        evidence, explanation = _explain_loop(small, question, small.iteration_ns(asked.mode))
        if large is not None:
            assert question.continuation is not None
            _, of_large = _explain_loop(large, question, large.iteration_ns(asked.mode))
            explanation = continue_explanation(
                explanation, of_large, question.continuation, iteration_ns=iteration_ns
            )
    return _as_prediction(
        found, question, evidence, explanation, executor=executor, clock=clock, loss=loss
    )


def _draw(loop: _Loop, question: Question, iteration_ns: int) -> tuple[float, ...]:
    """Times under drawn costs; those of a smaller job are kept in proportion."""
    asked, priced = question.asked, loop.priced
    if not asked.samples or not priced.relative_sigma.any():
        return ()
    is_period = asked.mode is Mode.PERIOD
    times_ns = replay_samples(
        loop.executor.replay,
        priced.job,
        priced.sample(asked.samples, seed=asked.seed),
        iterations=loop.steady.replay.iteration_count if is_period else 1,
    )
    own_ns = loop.iteration_ns(asked.mode)
    if question.continuation is not None:
        times_ns = times_ns * (iteration_ns / own_ns)
    return tuple(times_ns.tolist())


def _interval_of(drawn_ns: tuple[float, ...], iteration_ns: int) -> Interval:
    if not drawn_ns:
        return Interval(iteration_ns, iteration_ns)
    return build_interval(np.array(drawn_ns), nominal_ns=iteration_ns)


def _explain_loop(
    loop: _Loop, question: Question, iteration_ns: int
) -> tuple[Evidence, Explanation]:
    evidence = build_evidence(loop.settled.folded, loop.replay_of(question.asked.mode))
    explanation = explain(
        evidence,
        priced=loop.priced,
        memory_of_rank=question.memory_of_rank,
        iteration_ns=iteration_ns,
    )
    return evidence, explanation


def _answer_recording(
    question: Question, notes: Notes, priced: PricedJob, executor: Executor, clock: PhaseClock
) -> Answer:
    job = question.job
    with clock.phase("replaying", done=0.3):
        rule = notes.hold_rule(job)
        held = replay_held(job, priced.durations, rule, replayer=executor.replay)
    moments_ns = notes.step_moments_ns(job, held.start_ns, held.end_ns)
    periods_ns = tuple(np.diff(moments_ns).tolist())
    iteration_ns = round(float(np.median(periods_ns)))
    interval, sentence = _recorded_interval(question.score, iteration_ns)
    sentences = (*job.facts.assumptions, sentence, *_distrust(question.score))
    found = Answer(
        period_ns=iteration_ns,
        isolated_ns=None,
        interval=interval,
        assumptions=tuple(dict.fromkeys((*sentences, *question.assumptions))),
        facts=_facts(question, 1),
        span_ns=notes.span_ns(job, held.start_ns, held.end_ns),
        periods_ns=periods_ns,
        score=question.score,
    )
    if not question.asked.is_explained:
        return found
    with clock.phase("explaining", done=0.6):
        evidence = _recorded_evidence(held, priced, Window(moments_ns[0], moments_ns[-1]))
        explanation = explain(evidence, priced=priced, memory_of_rank=(), iteration_ns=iteration_ns)
    return _as_prediction(
        found, question, evidence, explanation, executor=executor, clock=clock, loss=None
    )


def _recorded_evidence(held: HeldReplay, priced: PricedJob, window: Window) -> Evidence:
    return Evidence(
        history=History(held.graph, priced.durations, held.replay),
        iteration=0,
        window=window,
        class_ranks=tuple((rank,) for rank in range(held.graph.rank_count)),
    )


def _recorded_interval(score: SelfReplay | None, iteration_ns: int) -> tuple[Interval, str]:
    """Where the recorded periods lie, and the sentence that says so.

    Of a changed job they are kept in proportion.
    """
    count = 0 if score is None else len(score.periods)
    if score is None or count < 2:
        return Interval(iteration_ns, iteration_ns), (
            "The interval is empty: the recording has fewer than two periods, so nothing "
            "is known about their spread."
        )
    recorded_ns = np.array([period.recorded_ns for period in score.periods], dtype=np.float64)
    ratio = iteration_ns / max(score.iteration.replayed_ns, 1)
    return build_interval(recorded_ns * ratio, nominal_ns=iteration_ns), (
        f"The interval is the spread of the {count} recorded periods, from the 5th to the 95th "
        "percentile."
    )


def _distrust(score: SelfReplay | None) -> tuple[str, ...]:
    if score is None or score.is_trusted:
        return ()
    sentence = (
        f"The recording replays itself with an error of {score.iteration.error_pct:.1f} %, beyond "
        f"the {MAX_TRUSTED_ERROR_PCT:g} % up to which answers from it mean something."
    )
    return (sentence,)


def _about_continuing(question: Question) -> tuple[str, ...]:
    if question.continuation is None:
        return ()
    sentence = (
        f"The {question.continuation.micro_batches} equal micro-batches are continued in a "
        "straight line from two smaller numbers of them, which is within 0.2 % of replaying all."
    )
    return (sentence,)


def _facts(question: Question, iterations_replayed: int) -> Facts:
    cluster, stack, job = question.cluster, question.stack, question.job
    return Facts(
        job=job.facts.name,
        device=None if cluster is None else cluster.device.name,
        device_memory_bytes=None if cluster is None else cluster.device.memory_bytes,
        stack=None if stack is None else stack.name,
        batch=question.batch,
        rank_count=job.rank_count,
        task_count=job.task_count,
        iterations_replayed=iterations_replayed,
        work=question.work,
    )


def _as_prediction(
    found: Answer,
    question: Question,
    evidence: Evidence,
    explanation: Explanation,
    *,
    executor: Executor,
    clock: PhaseClock,
    loss: InterferenceLoss | None,
) -> Prediction:
    return Prediction(
        **{name: getattr(found, name) for name in Answer.__slots__},
        scenario=question.scenario,
        explanation=explanation,
        run=Run(executor.description, dict(clock.phase_s)),
        evidence=evidence,
        interference=loss,
    )
