"""Interference: the costs of a job with equal ranks folded, alone and with what overlap costs.

Ranks that share prices may overlap differently, so each rank is settled with rows of its own.
Rows are shared again at the end where ranks lost the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.folding import fold
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Replay, Replayer
from perfmodel.engine.settle import Round, Rules, settle
from perfmodel.graph.durations import DurationTable, OpDurations
from perfmodel.prediction.overlaps import STILL_RATIO, contention_rules, task_rows


@dataclass(frozen=True, slots=True, eq=False)
class FoldedCosts:
    """A priced job with one rank per class; its rank r represents the ranks `class_ranks[r]`.

    After *rounds* of settling durations include what overlap costs. *moved_ratio* is how much the
    last round still moved the iteration, *replay* is that round.
    """

    priced: PricedJob
    class_ranks: tuple[tuple[int, ...], ...]
    rounds: int = 0
    moved_ratio: float = 0.0
    replay: Replay | None = None

    @property
    def has_losses(self) -> bool:
        """Whether overlap costs anything: if not, the first round is the last."""
        return self.rounds > 1

    @property
    def is_settled(self) -> bool:
        """Whether the last round moved almost nothing."""
        return self.moved_ratio < STILL_RATIO


def fold_costs(priced: PricedJob, *, is_folded: bool = True) -> FoldedCosts:
    """Fold the ranks of *priced* that are equal in all samples of their costs.

    Uncertainties are compared too, so folding is exact for the interval. Without *is_folded*
    every rank stays.
    """
    if not is_folded:
        return FoldedCosts(priced, tuple((rank,) for rank in range(priced.job.rank_count)))
    # Everything that decides a task's samples, and how it is known, as columns of integers.
    signatures = np.column_stack(
        [
            priced.float_ns.view(np.int64),
            priced.relative_sigma.view(np.int64),
            priced.family.astype(np.int64),
            priced.provenance.astype(np.int64),
            priced.link_use.view(np.int64),
        ]
    )
    folded = fold(priced.job, replace(priced.durations, values_ns=signatures))
    lowest = [ranks[0] for ranks in folded.class_ranks]
    if isinstance(priced.durations, OpDurations):
        durations = priced.durations.of_ranks(np.array(lowest))
        return FoldedCosts(replace(priced, job=folded.job, durations=durations), folded.class_ranks)
    blocks = [priced.rows_of_rank(rank) for rank in lowest]
    rows, offsets = _share_rows([block.start for block in blocks], blocks)
    return FoldedCosts(priced.take(rows, offsets, job=folded.job), folded.class_ranks)


def settle_interference(replay: Replayer, alone: FoldedCosts) -> FoldedCosts:
    """Replay *alone* until kernels and collectives that overlap lose as much as before."""
    rules = contention_rules(alone.priced)
    return alone if rules is None else settle_costs(replay, alone, rules)


def settle_costs(replay: Replayer, alone: FoldedCosts, rules: Rules) -> FoldedCosts:
    """Replay *alone* until *rules* are at rest."""
    priced, row = alone.priced, task_rows(alone.priced)
    last = settle(replay, priced.job, priced.float_ns[row], rules)
    if last.count == 1:
        return replace(alone, rounds=1, replay=last.replay)
    slowed = _price(priced, row, last)
    return FoldedCosts(slowed, alone.class_ranks, last.count, last.moved_ratio, last.replay)


def _price(priced: PricedJob, row: Int64s, last: Round) -> PricedJob:
    """*priced* as in the *last* round; ranks of one price that lost the same share rows."""
    lost_ns = last.lost_ns.sum(axis=0)
    blocks = [slice(*edge) for edge in pairwise(last.job.rank_rows().tolist())]
    keys = [
        (offset, lost_ns[rows].tobytes())
        for offset, rows in zip(priced.durations.rank_offset.tolist(), blocks, strict=True)
    ]
    chosen, offsets = _share_rows(keys, blocks)
    return replace(
        priced.take(row[chosen], offsets, job=last.job),
        durations=DurationTable(last.durations.values_ns[chosen], offsets),
        float_ns=priced.float_ns[row[chosen]] + lost_ns[chosen],
    )


def _share_rows(keys: Sequence[Hashable], blocks: Sequence[slice]) -> tuple[Int64s, Int64s]:
    """Rows of *blocks*, those of equal *keys* once, and where each block begins among them."""
    place_of: dict[Hashable, int] = {}
    kept, total = [], 0
    for key, block in zip(keys, blocks, strict=True):
        if key not in place_of:
            place_of[key] = total
            kept.append(np.arange(block.start, block.stop, dtype=np.int64))
            total += block.stop - block.start
    return np.concatenate(kept), np.array([place_of[key] for key in keys], dtype=np.int64)
