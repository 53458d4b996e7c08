"""Observing: how the iteration of a question follows each family of kernels.

One replay more than a prediction: with all times of one family a step longer, for each family. The
interference of the prediction stays as it settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import MeasurementError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import features_of, price_job
from perfmodel.engine.replay import find_period
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.measurements.calibration.anchors import FACTORS, Anchor, Kind, kind_of
from perfmodel.extensions.measurements.checking import check_run
from perfmodel.graph.durations import DurationTable
from perfmodel.prediction.interference import contention_rules, fold_costs, settle_costs
from perfmodel.prediction.loops import replay_samples
from perfmodel.prediction.predict import count_guesses
from perfmodel.prediction.question import Question
from perfmodel.stacks.spread import NO_SPREAD

STEP = 0.15
"""How much longer each family is made, as a logarithm, to see what it carries."""
MOST_SHARE = 3.0


@dataclass(frozen=True, slots=True)
class Observed:
    """The period of a question, and the derivative of its logarithm by each family's.

    *kernel_sigma* is what kernels alone make unsure, where some were drawn; *features* are those of
    the job that widen the spread of its family.
    """

    kind: Kind
    period_ns: float
    shares: NDArray[np.float64]
    kernel_sigma: float
    features: Mapping[str, float]


def observe(question: Question, *, draws: int = 0) -> Observed:
    """How the period of *question* follows each of FAMILIES."""
    assert question.cluster is not None
    assert question.stack is not None
    jobs = [price_job(job, cluster=question.cluster, stack=question.stack) for job in question.jobs]
    times_ns = _times_ns(jobs[0], draws)
    if question.extrapolation is not None:
        larger_ns = _times_ns(jobs[1], draws)
        times_ns = times_ns + float(question.extrapolation.steps) * (larger_ns - times_ns)
    priced = jobs[0]
    logs = np.log(times_ns / times_ns[0])
    count = 1 + len(FAMILIES)
    return Observed(
        kind_of(priced, question.cluster, question.stack),
        float(times_ns[0]),
        logs[1:count] / STEP,
        float(np.std(logs[count:])) if draws else 0.0,
        features_of(priced.job, priced.family, priced.float_ns, priced.relative_sigma)
        | {"guesses": count_guesses(question)},
    )


def observe_run(question: Question, *, run: str, measured_ns: float) -> Anchor:
    """The anchor of a *run* of *question* that took *measured_ns* per iteration."""
    if question.cluster is None or question.stack is None:
        raise MeasurementError(
            f"run {run}: states its durations, so a time that was measured says nothing of costs. "
            "Give a model or a job with shapes, and --topology."
        )
    check_run(question, measured_ns)
    return anchor_of(observe(question), run=run, measured_ns=measured_ns)


def anchor_of(found: Observed, *, run: str, measured_ns: float) -> Anchor:
    """The *run* that was *found* to follow its families so, and took *measured_ns*."""
    shares = dict(zip(FAMILIES, found.shares.tolist(), strict=True))
    return Anchor(
        **{one.name: getattr(found.kind, one.name) for one in fields(Kind)},
        run=run,
        measured_ns=measured_ns,
        predicted_ns=found.period_ns,
        shares={name: round(min(max(shares[name], -1.0), MOST_SHARE), 4) for name in FACTORS},
    )


def _times_ns(priced: PricedJob, draws: int) -> NDArray[np.float64]:
    """The period of a job, then with each family a step longer, then with kernels drawn."""
    replay = SerialExecutor().replay
    alone = fold_costs(priced)
    settled = settle_costs(replay, alone, contention_rules(alone.priced)).priced
    steady = find_period(replay, settled.job, settled.durations)
    longer = [np.where(settled.family == code, STEP, 0.0) for code in range(len(FAMILIES))]
    factors = np.exp(np.column_stack([np.zeros(len(settled.float_ns)), *longer]))
    values_ns = np.rint(settled.float_ns[:, None] * factors).astype(np.int64)
    if draws:
        samples = replace(settled, spread=NO_SPREAD).sample(draws, seed=0)
        values_ns = np.concatenate([values_ns, samples.vectors(0, draws).values_ns], axis=1)
    table = DurationTable(np.ascontiguousarray(values_ns), settled.durations.rank_offset)
    iterations = steady.replay.iteration_count
    return replay_samples(replay, settled.job, table, iterations=iterations)
