"""Kernel slow-down: how long kernels take with the collectives of a replay beside them.

A kernel advances at 1/f while a collective runs on another lane of its rank.
A lane is walked in its order: a kernel that started when the one before ended
starts earlier or later with it, so that one pass settles a whole chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from perfmodel.costs.interference import Phase
from perfmodel.engine.layout import Int64s

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]
NOTICED_NS = 1e-3
"""Less is the last bit of a sum, not a loss."""


class OverlapTimeline(NamedTuple):
    """What the collectives of each rank do from each of *moments_ns* on.

    Rows of rank r are `rank_first[r]` to `rank_first[r + 1]`; before the first
    and after the last nothing runs.
    """

    moments_ns: Int64s
    phase: Codes
    rank_first: Int64s


class Lanes(NamedTuple):
    """The lanes that are walked: their tasks, by flat number, and the rank of each lane."""

    first: Int64s
    stop: Int64s
    rank: Int64s


class CommIntervals(NamedTuple):
    """When collectives of a *rank* were ready, started and ended, one row a call."""

    rank: Int64s
    ready_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s

    def joined(self, other: CommIntervals) -> CommIntervals:
        """These and the *other* spells."""
        return CommIntervals(
            *(np.concatenate([self[part], other[part]]) for part in range(len(self)))
        )

    def only(self, is_wanted: NDArray[np.bool_]) -> CommIntervals:
        """Those that are wanted."""
        return CommIntervals(*(column[is_wanted] for column in self))


def find_company(spells: CommIntervals, rank_count: int) -> OverlapTimeline:
    """What runs beside the kernels of each rank: who moves bytes outweighs who waits.

    From ready to start a collective waits for other ranks; its kernel is on the
    device already.
    """
    count = len(spells.rank)
    moments = np.concatenate([spells.ready_ns, spells.start_ns, spells.start_ns, spells.end_ns])
    ranks = np.tile(spells.rank, 4)
    waiting = np.repeat(np.array([1, -1, 0, 0], dtype=np.int64), count)
    moving = np.repeat(np.array([0, 0, 1, -1], dtype=np.int64), count)
    order = np.lexsort((moments, ranks))
    # Every call ends, so that sums are back at zero where the next rank begins.
    is_moving = np.cumsum(moving[order]) > 0
    is_waiting = np.cumsum(waiting[order]) > 0
    phase = np.where(is_moving, Phase.MOVING, np.where(is_waiting, Phase.WAITING, Phase.NONE))
    edges = np.arange(rank_count + 1, dtype=ranks.dtype)
    first = np.searchsorted(ranks[order], edges).astype(np.int64)
    return OverlapTimeline(moments[order], phase.astype(np.int8), first)


class KernelLanes(NamedTuple):
    """Tasks of a replay by flat number: when they ran, their work alone, and their family.

    *speed* is families x phases: how fast a family advances.
    """

    start_ns: Int64s
    end_ns: Int64s
    work_ns: Floats
    family: Codes
    speed: Floats


def find_losses(walk: KernelLanes, lanes: Lanes, company: OverlapTimeline) -> Floats:
    """How much longer than its work every task takes, zero on lanes that are not walked."""
    lost_ns = np.zeros(len(walk.work_ns))
    _walk_lanes(walk, lanes, company, lost_ns)
    lost_ns[lost_ns < NOTICED_NS] = 0.0
    return lost_ns


@numba.njit(cache=True, nogil=True)
def _walk_lanes(walk: KernelLanes, lanes: Lanes, company: OverlapTimeline, lost_ns: Floats) -> None:
    for lane in range(len(lanes.first)):
        rank = lanes.rank[lane]
        here, last = company.rank_first[rank], company.rank_first[rank + 1]
        beside = 0
        now_ns = -1.0
        for task in range(lanes.first[lane], lanes.stop[lane]):
            is_chained = task > lanes.first[lane] and walk.start_ns[task] == walk.end_ns[task - 1]
            if not is_chained:
                now_ns = max(now_ns, float(walk.start_ns[task]))
            began_ns = now_ns
            while here < last and company.moments_ns[here] <= now_ns:
                beside = company.phase[here]
                here += 1
            left_ns = walk.work_ns[task]
            while here < last:
                reach_ns = (company.moments_ns[here] - now_ns) * walk.speed[
                    walk.family[task], beside
                ]
                if reach_ns >= left_ns:
                    break
                left_ns -= reach_ns
                now_ns = float(company.moments_ns[here])
                beside = company.phase[here]
                here += 1
            now_ns += left_ns / walk.speed[walk.family[task], beside]
            lost_ns[task] = now_ns - began_ns - walk.work_ns[task]
