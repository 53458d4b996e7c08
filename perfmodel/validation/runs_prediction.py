"""Predicting a measured run: costs, interference and engine, as for any scenario."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import InputError
from perfmodel.costs.pricing import price_job
from perfmodel.engine.steady import find_period
from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.interference import settle_interference
from perfmodel.prediction.sampling import build_interval, replay_samples
from perfmodel.validation.runs_question import RunQuestion, RunSetting, build_question
from perfmodel.validation.runs_table import RunRow

SAMPLES = 64
SEED = 0


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The prediction of a run in nanoseconds, or the *reason* why there is none."""

    predicted_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    reason: str = ""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rhythm:
    """A period, and how many iterations it took to find it."""

    period_ns: int
    iterations: int


def predict_run(setting: RunSetting, row: RunRow) -> RunAnswer:
    """Answer for *row*; what cannot be asked gets the reason instead."""
    if row.measured_s is None:
        return RunAnswer(reason="no time was measured")
    try:
        return answer_run(build_question(setting, row))
    except InputError as fault:
        return RunAnswer(reason=" ".join(str(fault).split()))


def answer_run(question: RunQuestion) -> RunAnswer:
    """The period of *question*'s job, continued where it has many micro-batches.

    The interval is drawn for the smaller job and kept in proportion.
    """
    folded = _price(question, question.run.job)
    rhythm = _find_rhythm(folded)
    predicted_ns = _continue(question, rhythm)
    samples = folded.priced.sample(SAMPLES, seed=SEED)
    times_ns = replay_samples(
        SerialExecutor().replay, folded.priced.job, samples, iterations=rhythm.iterations
    )
    interval = build_interval(times_ns, nominal_ns=rhythm.period_ns)
    return RunAnswer(
        predicted_ns=predicted_ns,
        low_ns=predicted_ns * interval.low_ns / rhythm.period_ns,
        high_ns=predicted_ns * interval.high_ns / rhythm.period_ns,
        assumptions=question.assumptions,
    )


def _continue(question: RunQuestion, rhythm: _Rhythm) -> float:
    run = question.run
    if run.larger is None:
        return float(rhythm.period_ns)
    larger = _find_rhythm(_price(question, run.larger))
    return rhythm.period_ns + run.steps * (larger.period_ns - rhythm.period_ns)


def _price(question: RunQuestion, job: JobGraph) -> FoldedCosts:
    alone = fold_costs(price_job(job, cluster=question.cluster, stack=question.stack))
    return settle_interference(SerialExecutor().replay, alone).folded


def _find_rhythm(folded: FoldedCosts) -> _Rhythm:
    steady = find_period(SerialExecutor().replay, folded.priced.job, folded.priced.durations)
    return _Rhythm(int(steady.period_ns[0]), steady.replay.iteration_count)
