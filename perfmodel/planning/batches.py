"""Batches: how the time of a plan spreads over iterations with different batches.

A batch draws how many rows its samples look up in each table, from the mean
and deviation of the table's pooling; lookups, updates and index exchanges grow
with it. The frame and the pooled exchanges do not depend on it.

Leaves out: tables whose pooling moves together, and what the rows are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import ShardingPlan
from perfmodel.planning.evaluate import evaluate_plans
from perfmodel.planning.evaluator import PlanEvaluator, partial_width
from perfmodel.planning.frame import EMPTY, HOLDER
from perfmodel.planning.placements import Placements
from perfmodel.prediction.scenario import Mode

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95
POISSON = 1.0
"""Deviation of a bag over the square root of its mean where a table does not state one."""


@dataclass(frozen=True, slots=True)
class BatchSpread:
    """Times of a plan over sampled batches."""

    mean_ns: float
    low_ns: float
    middle_ns: float
    high_ns: float
    batches: int


def sample_batches(
    evaluator: PlanEvaluator, plan: ShardingPlan, *, mode: Mode, batches: int, seed: int
) -> BatchSpread:
    """The spread of *plan* over *batches* batches drawn from *seed*."""
    one = evaluator.catalog.placements([plan])
    factors = _factors(evaluator, plan, one, batches, seed)
    placements = Placements(
        np.tile(one.piece, batches),
        np.tile(one.rank, batches),
        np.arange(batches + 1, dtype=np.int64) * len(one.piece),
    )
    loads = evaluator.catalog.load(placements, factors=factors)
    widths = np.full(batches, partial_width(plan), dtype=np.int64)
    costs = evaluator.pricer.price(loads, widths)
    kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
    found = evaluate_plans(evaluator.frame(plan), kinds, costs.durations_ns)
    times = found.period_ns if mode is Mode.PERIOD else found.isolated_ns
    low, middle, high = np.quantile(times, [LOW, MIDDLE, HIGH])
    return BatchSpread(float(times.mean()), float(low), float(middle), float(high), batches)


def _factors(
    evaluator: PlanEvaluator, plan: ShardingPlan, one: Placements, batches: int, seed: int
) -> NDArray[np.float64]:
    """Draws of every piece over their mean, batches x pieces; one draw a table and batch."""
    generator = np.random.default_rng(seed)
    normal = generator.standard_normal((batches, len(plan.tables)))
    factors = np.ones((batches, len(evaluator.catalog.columns.widths)))
    for shard, piece in zip(plan.shards, one.piece.tolist(), strict=True):
        table = plan.tables[shard.table]
        mean = table.pooling_factor
        if mean <= 0:
            continue
        deviation = table.pooling_deviation or POISSON * mean**0.5
        relative = deviation / mean / evaluator.spec.batch**0.5
        factors[:, piece] = np.maximum(1 + relative * normal[:, shard.table], 0.0)
    return factors
