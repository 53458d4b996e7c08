"""Dealing: which ranks make a block.

Blocks are neighbouring ranks with about the same number of tasks. A cut may
move a little from the even place to cross fewer rendezvous, since each that
is crossed must be talked about.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.layout import Int64s, sequence_counts
from perfmodel.graph.job import NO_GROUP, JobGraph

MOST_IMBALANCE_RATIO = 0.05
"""How far a cut may move, as a share of one block's tasks."""


def deal_ranks(job: JobGraph, *, block_count: int) -> tuple[range, ...]:
    """The ranks of *job* in at most *block_count* blocks, none of them empty."""
    block_count = min(block_count, job.rank_count)
    before = np.concatenate([[0], np.cumsum(job.task_counts())])
    crossed = crossed_rendezvous(job)
    cuts = [0]
    for block in range(1, block_count):
        # Every block, those that follow too, gets a rank at least.
        first, last = cuts[-1] + 1, job.rank_count - (block_count - block)
        cuts.append(_best_cut(before, crossed, (first, last), block / block_count, block_count))
    cuts.append(job.rank_count)
    return tuple(range(start, stop) for start, stop in pairwise(cuts))


def crossed_rendezvous(job: JobGraph) -> Int64s:
    """How many rendezvous a cut before each rank, and one after the last, would cross."""
    ranks, slots = np.nonzero(job.rank_group != NO_GROUP)
    group = job.rank_group[ranks, slots]
    first = np.full(len(job.groups), job.rank_count, dtype=np.int64)
    last = np.full(len(job.groups), -1, dtype=np.int64)
    np.minimum.at(first, group, ranks)
    np.maximum.at(last, group, ranks)
    counts = np.where(first < last, sequence_counts(job), 0)
    change = np.zeros(job.rank_count + 2, dtype=np.int64)
    np.add.at(change, np.minimum(first + 1, job.rank_count), counts)
    np.add.at(change, last + 1, -counts)
    crossed: Int64s = np.cumsum(change)[: job.rank_count + 1]
    return crossed


def _best_cut(
    before: Int64s, crossed: Int64s, limits: tuple[int, int], share: float, block_count: int
) -> int:
    """The cut within *limits* that crosses least among those close to *share* of the tasks."""
    total = int(before[-1])
    places = np.arange(limits[0], limits[1] + 1)
    off: NDArray[np.float64] = np.abs(before[places] - share * total)
    near = off <= max(float(off.min()), MOST_IMBALANCE_RATIO * total / block_count)
    # Fewest crossed, then closest, then first.
    order = np.lexsort((places, off, crossed[places], ~near))
    return int(places[order[0]])
