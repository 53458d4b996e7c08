"""The path of a prediction: price, fold, settle, find the period, sample, explain.

Every command asks a `Question` and takes this path, so equal questions have equal nanoseconds.
`perfmodel.prediction.question` makes a question of a scenario: what it names is loaded once into a
`Setting`, and its job is built. Executor and clock cannot change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.extensions import has_extension, load_extension
from perfmodel.costs.priced_job import PricedJob, stated_prices
from perfmodel.costs.pricing import price_alike
from perfmodel.engine.replay import Replayer
from perfmodel.engine.settle import Rules
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import (
    Facts,
    InterferenceLoss,
    Interval,
    Narrowing,
    OpenSetting,
    Prediction,
    Reasons,
    Run,
)
from perfmodel.prediction.assumptions import list_assumptions
from perfmodel.prediction.explain import explain, name_tables
from perfmodel.prediction.gate import check_question
from perfmodel.prediction.interference import contention_rules, fold_costs, settle_costs
from perfmodel.prediction.loops import (
    Loop,
    build_interval,
    find_loop,
    replay_samples,
)
from perfmodel.prediction.open_settings import LEAST_CHANGE, spread_draws
from perfmodel.prediction.phases import PhaseClock
from perfmodel.prediction.question import Ends, Question, build_question
from perfmodel.prediction.scenario import Interference, Mode
from perfmodel.prediction.time_parts import extrapolate_explanation

_GUESSED = ("parallel.dispatcher",)
"""Defaults whose runs are further off than those that state them."""


def predict(
    question: Question,
    *,
    executor: Executor,
    clock: PhaseClock | None = None,
    loops: list[Loop] | None = None,
) -> Prediction:
    """How long an iteration of *question* takes and, unless it asks for times alone, why.

    *loops* keeps what was replayed for a question about the same jobs.
    """
    clock, replay, recording = clock or PhaseClock(), executor.replay, question.recording
    loops = [] if loops is None else loops
    # An iteration of many equal micro-batches has two smaller jobs, and is extrapolated.
    with clock.phase("pricing", done=0.2):
        all_priced = price(question, question.jobs[len(loops) :])
    for priced in all_priced:
        with clock.phase("folding equal ranks", done=0.35):
            alone = fold_costs(priced, is_folded=recording is None)
        with clock.phase("modelling contention", done=0.4):
            settled = settle_costs(replay, alone, _rules_of(question, alone.priced))
        with clock.phase("replaying", done=0.45):
            if recording is None:
                loops.append(find_loop(replay, alone, settled))
            else:
                loops.append(recording.find_loop(replay, alone, settled))
    with clock.phase("replaying samples", done=0.55):
        drawn_ns = _draw(question, loops, replay)
    reasons = None
    if question.options.is_explained:
        with clock.phase("explaining", done=0.9):
            reasons = _explain(question, loops, replay)
    found = _conclude(question, loops, drawn_ns, reasons)
    if question.open_questions:
        with clock.phase("predicting what is not stated", done=0.95):
            found = _span(found, question, executor)
    if question.ends is not None:
        found = _widen(found, question, question.ends, executor)
    if question.options.is_explained and has_extension("measurements"):
        list_narrowings = load_extension("measurements", "measuring").list_narrowings
        said = list_narrowings(question, loops[0].alone.priced, found)
        found = replace(found, narrowed_by=(*found.narrowed_by, *said))
    return replace(found, run=Run(executor.description, dict(clock.phase_s)))


def price(question: Question, jobs: Sequence[JobGraph]) -> list[PricedJob]:
    """*jobs* of *question* with a price for every task; durations that they state stay."""
    if question.cluster is None or question.known is not None:
        return [stated_prices(job, question.known) for job in jobs]
    assert question.stack is not None
    guesses = count_guesses(question)
    return price_alike(jobs, cluster=question.cluster, stack=question.stack, guesses=guesses)


def count_guesses(question: Question) -> int:
    """Settings of *question* that its framework decides, and differently from run to run."""
    return sum(one.setting in _GUESSED for one in question.defaults_taken)


def _rules_of(question: Question, priced: PricedJob) -> Rules | None:
    """What tasks that overlap cost each other; a recording has rules of its own."""
    if question.recording is not None:
        return question.recording.rules(priced.job)
    is_counted = question.options.interference is Interference.COUNTED
    return contention_rules(priced) if is_counted else None


def _whole(question: Question, loops: Sequence[Loop], of: Callable[[Loop], int]) -> int:
    """A quantity of the whole iteration, from those of its loops."""
    return question.extrapolate(of(loops[0]), of(loops[-1]))


def _iteration_ns(question: Question, loops: Sequence[Loop], mode: Mode) -> int:
    return _whole(question, loops, lambda loop: loop.iteration_ns(mode))


def _draw(question: Question, loops: Sequence[Loop], replay: Replayer) -> tuple[float, ...]:
    """Times under drawn costs; those of a smaller job are kept in proportion."""
    options, loop = question.options, loops[0]
    priced = loop.settled.priced
    if not options.samples or not priced.relative_sigma.any():
        return ()
    times_ns = replay_samples(
        replay,
        priced.job,
        priced.sample(options.samples, seed=options.seed),
        iterations=loop.replay.iteration_count if options.mode is Mode.PERIOD else 1,
    )
    if len(loops) > 1:
        whole_ns = _iteration_ns(question, loops, options.mode)
        times_ns = times_ns * (whole_ns / loop.iteration_ns(options.mode))
    return tuple(times_ns.tolist())


def _explain(question: Question, loops: Sequence[Loop], replay: Replayer) -> Reasons:
    """Why the iteration takes as long as it does, and what contention adds to it."""
    mode = question.options.mode
    evidences = [loop.evidence(mode, replay) for loop in loops]
    explanations = [
        explain(
            evidence,
            priced=loop.alone.priced,
            memory_of_rank=question.memory_of_rank,
            iteration_ns=loop.iteration_ns(mode),
        )
        for loop, evidence in zip(loops, evidences, strict=True)
    ]
    explanation = explanations[0]
    if question.extrapolation is not None:
        explanation = extrapolate_explanation(
            explanation,
            explanations[-1],
            question.extrapolation,
            iteration_ns=_iteration_ns(question, loops, mode),
        )
    if question.cluster is not None and question.stack is not None:
        device = question.cluster.device
        waits = name_tables(explanation.waits, evidences[0], device, question.stack)
        explanation = replace(explanation, waits=waits)
    is_counted = question.options.interference is Interference.COUNTED
    if question.recording is not None or not is_counted:
        return Reasons(explanation, evidences[0])

    def lost_ns(loop: Loop) -> int:
        if not loop.settled.has_losses:
            return 0
        undisturbed = find_loop(replay, loop.alone, loop.alone)
        return loop.iteration_ns(mode) - undisturbed.iteration_ns(mode)

    loss = InterferenceLoss(_whole(question, loops, lost_ns), loops[0].settled.rounds)
    return Reasons(explanation, evidences[0], loss)


def _conclude(
    question: Question, loops: Sequence[Loop], drawn_ns: tuple[float, ...], reasons: Reasons | None
) -> Prediction:
    """The times of *loops* as those of the whole iteration, with everything that is assumed."""
    options, recording, first = question.options, question.recording, loops[0]
    iteration_ns = _iteration_ns(question, loops, options.mode)
    if recording is None:
        interval = build_interval(np.array(drawn_ns), nominal_ns=iteration_ns)
        isolated_ns = span_ns = _iteration_ns(question, loops, Mode.ISOLATED)
        periods_ns: tuple[int, ...] = (iteration_ns,)
    else:
        interval = recording.interval(iteration_ns)
        isolated_ns, span_ns, periods_ns = None, first.span_ns, first.periods_ns
    loss = None if reasons is None else reasons.interference
    return Prediction(
        mode=options.mode,
        period_ns=_iteration_ns(question, loops, Mode.PERIOD),
        isolated_ns=isolated_ns,
        interval=interval,
        assumptions=list_assumptions(question, first, loss, is_drawn=bool(drawn_ns)),
        facts=_find_facts(question, first),
        span_ns=span_ns,
        periods_ns=periods_ns,
        drawn_ns=drawn_ns,
        score=None if recording is None else recording.score,
        recorded=None if recording is None else recording.recorded(question.job),
        scenario=question.scenario,
        defaults_taken=question.defaults_taken,
        reasons=reasons,
        cautions=check_question(question, first.alone.priced),
        run=Run("", {}),
    )


def _find_facts(question: Question, loop: Loop) -> Facts:
    cluster, stack, job = question.cluster, question.stack, question.job
    is_period = question.options.mode is Mode.PERIOD
    return Facts(
        job=job.facts.name,
        device=None if cluster is None else cluster.device.name,
        device_memory_bytes=None if cluster is None else cluster.device.memory_bytes,
        stack=None if stack is None else stack.name,
        batch=None if question.work is None else question.work.samples,
        rank_count=job.rank_count,
        task_count=question.extrapolate(job.task_count, question.jobs[-1].task_count),
        iterations_replayed=loop.replay.iteration_count if is_period else 1,
        work=question.work,
    )


def _span(found: Prediction, question: Question, executor: Executor) -> Prediction:
    """*found* with an interval that spans the values of its open settings, and their times."""
    answered = []
    options = replace(question.options, is_explained=False, samples=0)
    for one in question.open_questions:
        times_ns = [found.iteration_ns]
        for branch in one.branches[1:]:
            other = build_question(replace(branch.setting, options=options))
            alone = replace(other, open_questions=())
            times_ns.append(predict(alone, executor=executor).iteration_ns)
        furthest = max(abs(time_ns / times_ns[0] - 1.0) for time_ns in times_ns)
        if furthest > LEAST_CHANGE:
            answered.append(one.answered(times_ns))
    if not answered:
        return found
    said = (
        f"{one.setting} is not stated: {one.chosen} is the likelier value. State it with "
        f"{one.state_with}."
        for one in answered
    )
    drawn_ns = _spread_over(found, answered)

    def without(setting: OpenSetting) -> Narrowing:
        rest = _spread_over(found, [one for one in answered if one is not setting])
        left = build_interval(np.array(rest), nominal_ns=found.iteration_ns)
        return Narrowing("setting", f"state it: {setting.state_with}", left.half_width_ns)

    return replace(
        found,
        interval=build_interval(np.array(drawn_ns), nominal_ns=found.iteration_ns),
        drawn_ns=drawn_ns,
        open_settings=tuple(answered),
        narrowed_by=tuple(map(without, answered)),
        assumptions=(*found.assumptions, *said),
    )


def _spread_over(found: Prediction, answered: Sequence[OpenSetting]) -> tuple[float, ...]:
    """The draws of *found*, each open setting among them by its weights."""
    drawn_ns = found.drawn_ns
    for one in answered:
        drawn_ns = spread_draws(drawn_ns, found.iteration_ns, one)
    return drawn_ns


def _widen(found: Prediction, question: Question, ends: Ends, executor: Executor) -> Prediction:
    """*found* with an interval that reaches to both *ends* of what the job could be."""
    times = replace(question, options=replace(question.options, is_explained=False))
    low, high = (
        predict(times.changed_to(job), executor=executor).interval
        for job in (ends.fastest, ends.slowest)
    )
    interval = Interval(
        min(low.low_ns, found.interval.low_ns), max(high.high_ns, found.interval.high_ns)
    )
    return replace(found, interval=interval, assumptions=(*found.assumptions, ends.reason))
