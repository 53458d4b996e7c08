"""Batches: how the time of a plan varies over iterations with different batches.

A batch draws, for every table, how many rows its samples look up and how many of them are
distinct. Lookups, updates and index exchanges follow these draws; the rest of the iteration and
the pooled exchanges do not depend on them. The hot rows of a table are the same in every batch,
and a row-wise piece gets the lookups of the rows it holds. No index is drawn one by one.

Leaves out: correlations between tables, and rows that are hot only for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embeddings.plan import ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.costs.embedding_terms import Term, TermsSetting, tables_terms
from perfmodel.engine.condensed import evaluate_variants
from perfmodel.prediction.plans.evaluator import PlanEvaluator, times_in_mode
from perfmodel.prediction.plans.placements import Int32s, PieceColumns, PlanColumns
from perfmodel.prediction.plans.plan_costs import Floats
from perfmodel.prediction.scenario import Mode

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95
POISSON = 1.0
"""Deviation of a bag over the square root of its mean, if a table does not state one."""
_STEP = 1.02
DISTINCT = (Term.READ_BYTES, Term.UPDATE_BYTES, Term.SHORT_CACHE_BYTES, Term.SUMMED_BYTES)
"""Terms that grow with the distinct rows of a batch."""


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
    columns = evaluator.catalog.columns_of(plan)
    drawn = draw_pieces(evaluator, plan, columns, batches=batches, seed=seed)
    of_batch = replace(columns, piece=np.arange(len(columns.piece), dtype=np.int32))
    priced = evaluator.price([of_batch] * batches, drawn)
    found = evaluate_variants(evaluator.frame(plan), priced.kinds, priced.durations_ns)
    times = times_in_mode(found, mode)
    low, middle, high = np.quantile(times, [LOW, MIDDLE, HIGH])
    return BatchSpread(float(times.mean()), float(low), float(middle), float(high), batches)


def draw_pieces(
    evaluator: PlanEvaluator,
    plan: ShardingPlan,
    columns: PlanColumns,
    *,
    batches: int,
    seed: int,
) -> PieceColumns:
    """The load of every shard of *plan*, which has *columns*, in each of *batches* batches.

    Draws depend on *seed* and the position of a table, so all plans see the same batches.
    """
    pieces, known = columns.piece, evaluator.catalog.columns
    growth = find_growth(evaluator, pieces)
    terms = np.repeat(known.terms[:, :, pieces].astype(np.float64), batches, axis=0)
    indices = np.ones((batches, len(pieces)))
    tables: dict[int, tuple[Floats, Floats]] = {}
    for number, shard in enumerate(sorted(plan.shards)):
        place = shard.table
        if place not in tables:
            tables[place] = draw_table(
                plan.tables[place], evaluator.spec.batch, batches, [seed, place]
            )
        lookups, distinct = tables[place]
        terms[:, :, number] *= scale_terms(growth[number], lookups, distinct)[:, None, :]
        indices[:, number] = lookups
    return PieceColumns(
        np.rint(np.maximum(terms, 0.0)).astype(np.int64),
        np.rint(known.index_counts[0, pieces] * indices).astype(np.int64),
        known.made_numbers[pieces],
        known.sent_numbers[pieces],
        known.memory_bytes[pieces],
    )


def draw_table(
    table: EmbeddingTable, samples: int, batches: int, seed: Sequence[int]
) -> tuple[Floats, Floats]:
    """Lookups of one table per batch over their mean, and the deviation of its distinct rows."""
    normal = np.random.default_rng(seed).standard_normal((2, batches))
    mean = table.pooling_factor
    deviation = table.pooling_deviation or POISSON * mean**0.5
    relative = deviation / mean / samples**0.5 if mean > 0 else 0.0
    popularity, draws = table.popularity, max(samples * mean, 1.0)
    lookups = np.maximum(1 + relative * normal[0], 0.0)
    return lookups, popularity.distinct_deviation(draws) * normal[1]


def find_growth(evaluator: PlanEvaluator, pieces: Int32s) -> Floats:
    """The exponent with which each term of a piece grows with its lookups, pieces x terms.

    Found from two per cent more lookups.
    """
    tables = [evaluator.catalog.tables[piece] for piece in pieces.tolist()]
    setting = TermsSetting(
        evaluator.spec.batch,
        evaluator.spec.embedding.optimizer,
        evaluator.cluster.device.l2_bytes,
    )
    here = tables_terms(tables, setting)
    more = tables_terms(tables, replace(setting, lookup_ratio=_STEP))
    growth = np.log(np.maximum(more, 1) / np.maximum(here, 1)) / np.log(_STEP)
    growth[:, Term.TAIL_ROWS] = 0.0
    powers: Floats = np.clip(growth, 0.0, 1.0)
    return powers


def scale_terms(growth: Floats, lookups: Floats, distinct: Floats) -> Floats:
    """How the terms of a piece change with its lookups and distinct rows, batches x terms."""
    factors: Floats = np.maximum(lookups, 1e-9)[:, None] ** growth[None, :]
    factors[:, DISTINCT] *= np.maximum(1 + distinct, 0.0)[:, None]
    return factors
