"""Answering: priced, settled, replayed, sampled, explained. The one way to an answer.

Everything but the executor and the clock of phases is decided by the question,
so equal questions have equal answers, whoever asks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.breakdown import Window
from perfmodel.engine.history import History
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import (
    Answer,
    Explanation,
    InterferenceLoss,
    Interval,
    Prediction,
    Run,
)
from perfmodel.prediction.assumptions import list_assumptions
from perfmodel.prediction.evidence import Evidence
from perfmodel.prediction.explain import explain
from perfmodel.prediction.loops import Loops, find_facts, find_loops, price_question
from perfmodel.prediction.phases import PhaseClock
from perfmodel.prediction.question import Question, RecordingInfo
from perfmodel.prediction.sampling import build_interval
from perfmodel.prediction.scenario import Mode

if TYPE_CHECKING:
    from perfmodel.recordings.hold_back import HeldReplay
    from perfmodel.recordings.recorded_job import SelfReplay

NO_DOUBT = "The interval is empty: the job states its durations and no doubt about them."


def answer_in_full(
    question: Question, *, executor: Executor, clock: PhaseClock | None = None
) -> Prediction:
    """Answer *question* and explain it, whether it asks for that or not."""
    asked = replace(question, asked=replace(question.asked, is_explained=True))
    return _explained(answer(asked, executor=executor, clock=clock))


def answer(question: Question, *, executor: Executor, clock: PhaseClock | None = None) -> Answer:
    """Answer *question*, replaying on *executor*; a Prediction where it is to be explained."""
    return _answer(question, executor, clock or PhaseClock())


def prepare_changes(question: Question, *, force: bool = False) -> Question:
    """*question* about a job that what-ifs can change: every task states its duration.

    A recording that does not replay itself is refused, unless *force* is set.
    """
    # Only what-ifs need them.
    from perfmodel.prediction.moving import check_trust
    from perfmodel.whatif.pinning import pin_prices, with_own_origins

    check_trust(question, force=force)
    if question.cluster is None:
        named = question.job if question.notes is not None else with_own_origins(question.job)
        return replace(question, job=named)
    pinned = pin_prices(price_question(question))
    return replace(question, job=pinned.job, known=pinned)


def _explained(found: Answer) -> Prediction:
    assert isinstance(found, Prediction)
    return found


def _answer(question: Question, executor: Executor, clock: PhaseClock) -> Answer:
    with clock.phase("pricing", done=0.2):
        priced = price_question(question)
    if question.notes is not None:
        found = _answer_recording(question, question.notes, priced, executor, clock)
    else:
        found = _answer_loop(question, priced, executor, clock)
    return found if question.ends is None else _doubted(found, question, question.ends, executor)


def _doubted(
    found: Answer, question: Question, ends: tuple[JobGraph, JobGraph], executor: Executor
) -> Answer:
    """*found* with an interval as wide as what was worked out anew may be off."""
    from perfmodel.whatif.scaling_out import DOUBT

    asked = replace(question.asked, is_explained=False)
    low, high = (
        answer(replace(question.changed_to(job), asked=asked), executor=executor).interval
        for job in ends
    )
    interval = Interval(
        min(low.low_ns, found.interval.low_ns), max(high.high_ns, found.interval.high_ns)
    )
    return replace(found, interval=interval, assumptions=(*found.assumptions, DOUBT))


def _answer_loop(
    question: Question, priced: PricedJob, executor: Executor, clock: PhaseClock
) -> Answer:
    asked = question.asked
    loops = find_loops(question, priced, executor, clock)
    with clock.phase("replaying samples", done=0.55):
        drawn_ns = loops.draw_ns()
    # Losses need a second loop, so only explanations name them.
    loss = loops.loss() if asked.is_explained else None
    found = _times(loops, drawn_ns, loss)
    if not asked.is_explained:
        return found
    with clock.phase("explaining", done=0.9):
        evidence, explanation = loops.explain()
    return _as_prediction(
        found, question, evidence, explanation, executor=executor, clock=clock, loss=loss
    )


def _times(loops: Loops, drawn_ns: tuple[float, ...], loss: InterferenceLoss | None) -> Answer:
    question, small = loops.question, loops.small
    asked, iteration_ns = question.asked, loops.iteration_ns(question.asked.mode)
    return Answer(
        mode=asked.mode,
        period_ns=loops.iteration_ns(Mode.PERIOD),
        isolated_ns=loops.iteration_ns(Mode.ISOLATED),
        interval=_interval_of(drawn_ns, iteration_ns),
        assumptions=(
            *list_assumptions(small.priced, small.steady, small.settled, asked, loss),
            *about_continuing(question),
            *(() if drawn_ns or not asked.samples else (NO_DOUBT,)),
            *_about_constants(question),
            *question.assumptions,
            *question.chosen,
        ),
        facts=loops.facts(),
        span_ns=loops.iteration_ns(Mode.ISOLATED),
        periods_ns=(iteration_ns,),
        drawn_ns=drawn_ns,
    )


def _about_constants(question: Question) -> tuple[str, ...]:
    files = () if question.cluster is None else question.cluster.device.calibrations
    return (f"Constants of {', '.join(files)} come before perfmodel's own.",) if files else ()


def _interval_of(drawn_ns: tuple[float, ...], iteration_ns: int) -> Interval:
    if not drawn_ns:
        return Interval(iteration_ns, iteration_ns)
    return build_interval(np.array(drawn_ns), nominal_ns=iteration_ns)


def _answer_recording(
    question: Question,
    notes: RecordingInfo,
    priced: PricedJob,
    executor: Executor,
    clock: PhaseClock,
) -> Answer:
    from perfmodel.recordings.hold_back import replay_held

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
        facts=find_facts(question, 1),
        span_ns=notes.span_ns(job, held.start_ns, held.end_ns),
        periods_ns=periods_ns,
        score=question.score,
    )
    if not question.asked.is_explained:
        return found
    with clock.phase("explaining", done=0.6):
        evidence = _recorded_evidence(held, Window(moments_ns[0], moments_ns[-1]))
        explanation = explain(evidence, priced=priced, memory_of_rank=(), iteration_ns=iteration_ns)
    return _as_prediction(
        found, question, evidence, explanation, executor=executor, clock=clock, loss=None
    )


def _recorded_evidence(held: HeldReplay, window: Window) -> Evidence:
    return Evidence(
        history=History(held.graph, held.durations, held.replay),
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
        return Interval(iteration_ns, iteration_ns, is_known=False), (
            "The interval is unknown from one step: the recording has fewer than two periods, so "
            "nothing is known about their spread."
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
    return (f"{score.distrust[:1].upper()}{score.distrust[1:]}.",)


def about_continuing(question: Question) -> tuple[str, ...]:
    """How the micro-batches of *question* are counted, where not all are replayed."""
    if question.continuation is None:
        return ()
    sentence = (
        f"The {question.continuation.micro_batches} equal micro-batches are continued in a "
        "straight line from two smaller numbers of them, which is within 0.2 % of replaying all."
    )
    return (sentence,)


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
