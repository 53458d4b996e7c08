"""Batches: how the time of a plan spreads over iterations with different batches.

Lookups, updates and index exchanges follow what each batch draws; the frame
and the pooled exchanges do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from embeddings.plan import ShardingPlan
from perfmodel.engine.condensed import evaluate_variants
from perfmodel.planning.draws import draw_shards
from perfmodel.planning.evaluator import PlanEvaluator, partial_width
from perfmodel.planning.frame import EMPTY, HOLDER
from perfmodel.prediction.scenario import Mode

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95


@dataclass(frozen=True, slots=True)
class BatchSpread:
    """Times of a plan over sampled batches."""

    mean_ns: float
    low_ns: float
    middle_ns: float
    high_ns: float
    batches: int

    def scaled(self, ratio: float) -> BatchSpread:
        """The same spread around a time that is *ratio* times as long."""
        return replace(
            self,
            mean_ns=ratio * self.mean_ns,
            low_ns=ratio * self.low_ns,
            middle_ns=ratio * self.middle_ns,
            high_ns=ratio * self.high_ns,
        )


def sample_batches(
    evaluator: PlanEvaluator, plan: ShardingPlan, *, mode: Mode, batches: int, seed: int
) -> BatchSpread:
    """The spread of *plan* over *batches* batches drawn from *seed*."""
    drawn = draw_shards(evaluator, plan, batches=batches, seed=seed)
    loads = evaluator.catalog.load_batches(drawn)
    widths = np.full(batches, partial_width(plan), dtype=np.int64)
    costs = evaluator.pricer.price(loads, widths)
    kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
    found = evaluate_variants(evaluator.frame(plan), kinds, costs.durations_ns)
    times = found.period_ns if mode is Mode.PERIOD else found.isolated_ns
    low, middle, high = np.quantile(times, [LOW, MIDDLE, HIGH])
    return BatchSpread(float(times.mean()), float(low), float(middle), float(high), batches)
