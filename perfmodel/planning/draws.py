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
from perfmodel.costs.embedding_terms import Term, TermsSetting, tables_terms
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.placements import DrawnShards, Int32s
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
    placements = evaluator.catalog.placements([plan])
    pieces, columns = placements.piece, evaluator.catalog.columns
    growth = _growth(evaluator, pieces)
    terms = np.repeat(columns.terms[:, pieces][np.newaxis].astype(np.float64), batches, axis=0)
    indices = np.ones((batches, len(pieces)))
    tables: dict[int, _TableDraws] = {}
    for number, shard in enumerate(sorted(plan.shards)):
        place = shard.table
        if place not in tables:
            tables[place] = _draw_table(evaluator, plan, place, batches, seed)
        drawn = tables[place]
        terms[:, :, number] *= _factors(growth[number], drawn)[:, None, :]
        indices[:, number] = drawn.lookups
    return DrawnShards(
        np.rint(np.maximum(terms, 0.0)).astype(np.int64),
        np.rint(columns.index_counts[pieces] * indices).astype(np.int64),
        columns.widths[pieces],
        placements.rank,
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


def _growth(evaluator: PlanEvaluator, pieces: Int32s) -> Floats:
    """The powers of its lookups that terms of each piece grow by, pieces x terms.

    Found by asking for two per cent more.
    """
    tables = [evaluator.catalog.table(piece) for piece in pieces.tolist()]
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


def _factors(growth: Floats, drawn: _TableDraws) -> Floats:
    """How terms of a piece change with its lookups and its different rows, batches x terms."""
    factors: Floats = np.maximum(drawn.lookups, 1e-9)[:, None] ** growth[None, :]
    factors[:, _DISTINCT] *= np.maximum(1 + drawn.distinct, 0.0)[:, None]
    return factors
