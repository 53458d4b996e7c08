"""Draws of batches: what the pieces of a plan are asked for in batches that differ, by formula.

A batch draws, for every table, how many rows its samples look up and how many
of them are different. Where the hot rows of a table lie is the same in every
batch, and a piece by rows is asked for those it holds. No index is drawn one by one.

Leaves out: tables whose draws move together, and rows that are hot for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from embeddings.plan import ShardingPlan
from perfmodel.costs.embedding.terms import Term, table_terms
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.placements import DrawnShards
from perfmodel.planning.plan_costs import Floats

POISSON = 1.0
"""Deviation of a bag over the square root of its mean where a table does not state one."""
_STEP = 1.02
_DISTINCT = (Term.READ_BYTES, Term.UPDATE_BYTES, Term.SHORT_CACHE_BYTES, Term.SUMMED_BYTES)
"""Terms that grow with the different rows of a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class _TableDraws:
    """Relative draws of one table, one a batch."""

    lookups: Floats
    distinct: Floats


def draw_shards(
    evaluator: PlanEvaluator, plan: ShardingPlan, *, batches: int, seed: int
) -> DrawnShards:
    """What the shards of *plan* are asked for in *batches* batches.

    Draws are made from *seed* and the place of a table, so that all plans see the same batches.
    """
    pieces = evaluator.catalog.placements([plan]).piece
    columns = evaluator.catalog.columns
    expected = columns.terms[:, pieces]
    terms = np.repeat(expected[np.newaxis].astype(np.float64), batches, axis=0)
    indices = np.ones((batches, len(pieces)))
    tables: dict[int, _TableDraws] = {}
    for number, shard in enumerate(plan.shards):
        place = shard.table
        if place not in tables:
            tables[place] = _draw_table(evaluator, plan, place, batches, seed)
        drawn = tables[place]
        lookups = drawn.lookups
        factors = _factors(evaluator, int(pieces[number]), lookups, drawn)
        terms[:, :, number] *= factors[:, None, :]
        indices[:, number] = lookups
    return DrawnShards(
        np.rint(np.maximum(terms, 0.0)).astype(np.int64),
        np.rint(columns.index_counts[pieces] * indices).astype(np.int64),
        columns.widths[pieces],
        np.array([shard.rank for shard in plan.shards], dtype=np.int32),
    )


def _draw_table(
    evaluator: PlanEvaluator, plan: ShardingPlan, place: int, batches: int, seed: int
) -> _TableDraws:
    table, samples = plan.tables[place], evaluator.spec.batch
    generator = np.random.default_rng([seed, place])
    normal = generator.standard_normal((2, batches))
    mean = table.pooling_factor
    deviation = table.pooling_deviation or POISSON * mean**0.5
    relative = deviation / mean / samples**0.5 if mean > 0 else 0.0
    popularity, draws = table.popularity, max(samples * mean, 1.0)
    return _TableDraws(
        lookups=np.maximum(1 + relative * normal[0], 0.0),
        distinct=popularity.distinct_deviation(draws) * normal[1],
    )


def _factors(evaluator: PlanEvaluator, piece: int, lookups: Floats, drawn: _TableDraws) -> Floats:
    """How terms of a piece change with its lookups, batches x terms.

    Each grows by its own power of them, found by asking for two per cent more.
    """
    table, spec = evaluator.catalog.table(piece), evaluator.spec
    device = evaluator.cluster.device
    here, more = (
        table_terms(
            replace(table, pooling_factor=table.pooling_factor * step),
            batch_size=spec.batch,
            optimizer=spec.embedding.optimizer,
            l2_bytes=device.l2_bytes,
            at_once=1,
        )
        for step in (1.0, _STEP)
    )
    growth = np.log(np.maximum(more, 1) / np.maximum(here, 1)) / np.log(_STEP)
    growth[Term.TAIL_ROWS] = 0.0
    factors: Floats = np.maximum(lookups, 1e-9)[:, None] ** np.clip(growth, 0.0, 1.0)[None, :]
    factors[:, _DISTINCT] *= np.maximum(1 + drawn.distinct, 0.0)[:, None]
    return factors
