"""Folded costs: a priced job with one rank a class, and prices only for those.

Ranks are alike only if their uncertainties are alike too; then every sample
of the costs keeps them alike, and folding stays exact for the interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.folding import Folded, fold
from perfmodel.engine.layout import Int64s
from perfmodel.graph.durations import OpDurations


@dataclass(frozen=True, slots=True, eq=False)
class FoldedCosts:
    """*priced* is the folded job; its rank r stands for the ranks `class_ranks[r]`."""

    priced: PricedJob
    class_ranks: tuple[tuple[int, ...], ...]


def fold_costs(priced: PricedJob) -> FoldedCosts:
    """Fold the ranks of *priced* that are alike in all samples of their costs."""
    folded = fold(priced.job, replace(priced.durations, values_ns=_signatures(priced)))
    order = np.argsort(folded.class_of_rank, kind="stable")
    bounds = np.cumsum(folded.class_size)[:-1]
    return FoldedCosts(
        priced=_of_classes(priced, folded),
        class_ranks=tuple(tuple(ranks.tolist()) for ranks in np.split(order, bounds)),
    )


def _of_classes(priced: PricedJob, folded: Folded) -> PricedJob:
    """The prices of the ranks that stand for others."""
    if isinstance(priced.durations, OpDurations):
        durations = priced.durations.of_ranks(folded.representative)
        return replace(priced, job=folded.job, durations=durations)
    rows, offsets = _kept_rows(priced, folded.representative.tolist())
    return priced.take(rows, offsets, job=folded.job)


def _signatures(priced: PricedJob) -> Int64s:
    """Everything that decides a task's samples, and how it is known, as columns of integers."""
    return np.column_stack(
        [
            priced.float_ns.view(np.int64),
            priced.relative_sigma.view(np.int64),
            priced.family.astype(np.int64),
            priced.provenance.astype(np.int64),
            priced.link_use.view(np.int64),
        ]
    )


def _kept_rows(priced: PricedJob, ranks: list[int]) -> tuple[Int64s, Int64s]:
    """Rows of *ranks*, each stored once, and where those of every rank begin among them."""
    place_of_offset: dict[int, int] = {}
    kept: list[Int64s] = []
    offsets = np.empty(len(ranks), dtype=np.int64)
    total = 0
    for place, rank in enumerate(ranks):
        rows = priced.rows_of_rank(rank)
        if rows.start not in place_of_offset:
            place_of_offset[rows.start] = total
            kept.append(np.arange(rows.start, rows.stop, dtype=np.int64))
            total += rows.stop - rows.start
        offsets[place] = place_of_offset[rows.start]
    return np.concatenate(kept), offsets
