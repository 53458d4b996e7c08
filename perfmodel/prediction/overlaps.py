"""Overlaps: what kernels and collectives of a replay lose because they run at the same time.

A kernel advances at 1/f while a collective runs on another lane of its rank. A lane is walked in
order: a kernel that started when the one before ended moves with it, so one pass settles a whole
chain.

Ranks that share prices may overlap differently, so losses are kept by rank. Rows are shared
again at the end where ranks lost the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from collectives.collective import CollectiveKind
from perfmodel.costs.interference import Phase
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.layout import FlatJob, Int32s, Int64s, build_layout
from perfmodel.engine.replay import Timeline
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import PLAIN, offsets

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]
NOTICED_NS = 1e-3
"""Less is rounding, not a loss."""


class Calls(NamedTuple):
    """Members of rendezvous, rank after rank: flat task, rank, lane, rendezvous and member.

    *slows_kernels* is False for transfers between two ranks.
    """

    task: Int64s
    rank: Int64s
    lane: Int32s
    rendezvous: Int64s
    member: Int64s
    slows_kernels: NDArray[np.bool_]


class CommIntervals(NamedTuple):
    """When collectives of a *rank* were ready, started and ended, one row per call."""

    rank: Int64s
    ready_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s

    def joined(self, other: CommIntervals) -> CommIntervals:
        """These and the *other* intervals."""
        return CommIntervals(
            *(np.concatenate([self[part], other[part]]) for part in range(len(self)))
        )

    def only(self, is_wanted: NDArray[np.bool_]) -> CommIntervals:
        """Those that are wanted."""
        return CommIntervals(*(column[is_wanted] for column in self))


class OverlapTimeline(NamedTuple):
    """What the collectives of each rank do from each of *moments_ns* on.

    Rows of rank r are `rank_first[r]` to `rank_first[r + 1]`; before the first and after the last
    nothing runs.
    """

    moments_ns: Int64s
    phase: Codes
    rank_first: Int64s


class KernelLanes(NamedTuple):
    """Lanes with kernels that can be slowed, and all tasks of a replay by flat number.

    A lane has the tasks *first* to *stop* and a *rank*. *work_ns* is how long a task takes alone;
    *speed* is families x phases: how fast a family advances.
    """

    first: Int64s
    stop: Int64s
    rank: Int64s
    start_ns: Int64s
    end_ns: Int64s
    work_ns: Floats
    family: Codes
    speed: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FlatCosts:
    """A priced job with one row per task of every rank.

    Tasks of rank r are the rows `first[r]` to `first[r + 1]`; *row* is theirs in *priced*. *lanes*
    are the first three columns of `KernelLanes`; *sharing* are the ranks that communicate on more
    than one lane.
    """

    priced: PricedJob
    first: Int64s
    row: Int64s
    alone_ns: Floats
    family: Codes
    calls: Calls
    lanes: tuple[Int64s, Int64s, Int64s]
    speed: Floats
    sharing: Int64s

    @property
    def job(self) -> JobGraph:
        """The job."""
        return self.priced.job

    @property
    def can_lose(self) -> bool:
        """Whether anything can overlap at a loss."""
        return bool(len(self.calls.task)) and bool(len(self.lanes[0]) or len(self.sharing))

    def durations(self, lost_ns: Floats) -> DurationTable:
        """What every task takes alone and what it lost, on the clock."""
        values_ns = np.rint(self.alone_ns + lost_ns).astype(np.int64)[:, np.newaxis]
        return DurationTable(values_ns, self.first[:-1].copy())

    def price(self, lost_ns: Floats) -> PricedJob:
        """The job with what its tasks lost; ranks of one price that lost the same share rows."""
        priced, edges = self.priced, self.first.tolist()
        blocks = [slice(*edge) for edge in pairwise(edges)]
        keys = [
            (offset, lost_ns[rows].tobytes())
            for offset, rows in zip(priced.durations.rank_offset.tolist(), blocks, strict=True)
        ]
        chosen, offsets = share_rows(keys, blocks)
        return replace(
            priced.take(self.row[chosen], offsets, job=self.job),
            durations=DurationTable(self.durations(lost_ns).values_ns[chosen], offsets),
            float_ns=(self.alone_ns + lost_ns)[chosen],
        )


def share_rows(keys: Sequence[Hashable], blocks: Sequence[slice]) -> tuple[Int64s, Int64s]:
    """Rows of *blocks*, those of equal *keys* once, and where each block begins among them."""
    place_of: dict[Hashable, int] = {}
    kept, total = [], 0
    for key, block in zip(keys, blocks, strict=True):
        if key not in place_of:
            place_of[key] = total
            kept.append(np.arange(block.start, block.stop, dtype=np.int64))
            total += block.stop - block.start
    return np.concatenate(kept), np.array([place_of[key] for key in keys], dtype=np.int64)


def flatten_costs(priced: PricedJob) -> FlatCosts:
    """*priced* with a row per task of every rank."""
    job, layout = priced.job, build_layout(priced.job)
    first = layout.r_task
    counts = np.diff(first)
    within = np.arange(int(first[-1])) - np.repeat(first[:-1], counts)
    row = np.repeat(priced.durations.rank_offset, counts) + within
    calls = _find_calls(job, layout)
    family = priced.family[row]
    # A member advances with the others of its rendezvous, whatever overlaps it.
    family[calls.task] = FAMILIES.index(COMMUNICATION_FAMILY)
    factor = priced.slowdowns.factor
    speed = np.array([[1 / factor(family, phase) for phase in Phase] for family in FAMILIES])
    is_slowed: NDArray[np.bool_] = np.any(speed < 1, axis=1)
    sharing = np.zeros(0, dtype=np.int64)
    if priced.link_use.any():
        lanes = np.unique(np.column_stack([calls.rank, calls.lane]), axis=0)
        ranks, lane_counts = np.unique(lanes[:, 0], return_counts=True)
        sharing = ranks[lane_counts > 1].astype(np.int64)
    return FlatCosts(
        priced=priced,
        first=first,
        row=row,
        alone_ns=priced.float_ns[row],
        family=family,
        calls=calls,
        lanes=_slowed_lanes(job, layout, is_slowed[family]),
        speed=speed,
        sharing=sharing,
    )


def _find_calls(job: JobGraph, layout: FlatJob) -> Calls:
    kinds = [op.collective.kind if isinstance(op, Communication) else None for op in job.ops]
    is_pair = np.array([kind is CollectiveKind.SEND_RECV for kind in kinds], dtype=bool)
    parts = []
    for rank in range(job.rank_count):
        program = job.program_of(rank)
        tasks = np.flatnonzero(program.slot != PLAIN)
        slots, sequences = program.slot[tasks], program.sequence[tasks]
        groups = job.rank_group[rank, slots]
        members = layout.g_member[groups] + sequences * layout.g_size[groups]
        parts.append(
            Calls(
                task=layout.r_task[rank] + tasks,
                rank=np.full(len(tasks), rank, dtype=np.int64),
                lane=program.task_lanes()[tasks],
                rendezvous=layout.g_rendezvous[groups] + sequences,
                member=members + layout.r_position[rank, slots],
                slows_kernels=~is_pair[program.op[tasks]],
            )
        )
    return Calls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _slowed_lanes(
    job: JobGraph, layout: FlatJob, is_slowed: NDArray[np.bool_]
) -> tuple[Int64s, Int64s, Int64s]:
    """First task, stop and rank of the lanes with a task that something could slow."""
    firsts, stops, ranks = [], [], []
    reached = offsets(is_slowed)
    for rank in range(job.rank_count):
        lane_start = layout.r_task[rank] + job.program_of(rank).lane_start
        has_slowed = np.diff(reached[lane_start]) > 0
        firsts.append(lane_start[:-1][has_slowed])
        stops.append(lane_start[1:][has_slowed])
        ranks.append(np.full(int(has_slowed.sum()), rank, dtype=np.int64))
    return np.concatenate(firsts), np.concatenate(stops), np.concatenate(ranks)


def find_overlaps(calls: CommIntervals, rank_count: int) -> OverlapTimeline:
    """What overlaps the kernels of each rank: moving bytes outweighs waiting.

    From ready to start a collective waits for other ranks; its kernel is on the device already.
    """
    count = len(calls.rank)
    moments = np.concatenate([calls.ready_ns, calls.start_ns, calls.start_ns, calls.end_ns])
    ranks = np.tile(calls.rank, 4)
    waiting = np.repeat(np.array([1, -1, 0, 0], dtype=np.int64), count)
    moving = np.repeat(np.array([0, 0, 1, -1], dtype=np.int64), count)
    order = np.lexsort((moments, ranks))
    # Every call ends, so sums are back at zero where the next rank begins.
    is_moving = np.cumsum(moving[order]) > 0
    is_waiting = np.cumsum(waiting[order]) > 0
    phase = np.where(is_moving, Phase.MOVING, np.where(is_waiting, Phase.WAITING, Phase.NONE))
    edges = np.arange(rank_count + 1, dtype=ranks.dtype)
    first = np.searchsorted(ranks[order], edges).astype(np.int64)
    return OverlapTimeline(moments[order], phase.astype(np.int8), first)


def slow_kernels(
    flat: FlatCosts,
    timeline: Timeline,
    duration_ns: Int64s,
    *,
    calls: CommIntervals,
    work_ns: Floats,
) -> Floats:
    """How much longer than *work_ns* every task of *timeline* takes while *calls* run."""
    end_ns = np.ascontiguousarray(timeline.end_ns[:, 0])
    kernels = KernelLanes(
        *flat.lanes, end_ns - duration_ns, end_ns, work_ns, flat.family, flat.speed
    )
    lost_ns = np.zeros(len(work_ns))
    _walk_lanes(kernels, find_overlaps(calls, flat.job.rank_count), lost_ns)
    lost_ns[lost_ns < NOTICED_NS] = 0.0
    return lost_ns


@numba.njit(cache=True, nogil=True)
def _walk_lanes(kernels: KernelLanes, overlaps: OverlapTimeline, lost_ns: Floats) -> None:
    for lane in range(len(kernels.first)):
        rank = kernels.rank[lane]
        here, last = overlaps.rank_first[rank], overlaps.rank_first[rank + 1]
        phase = 0
        now_ns = -1.0
        for task in range(kernels.first[lane], kernels.stop[lane]):
            is_chained = (
                task > kernels.first[lane] and kernels.start_ns[task] == kernels.end_ns[task - 1]
            )
            if not is_chained:
                now_ns = max(now_ns, float(kernels.start_ns[task]))
            began_ns = now_ns
            while here < last and overlaps.moments_ns[here] <= now_ns:
                phase = overlaps.phase[here]
                here += 1
            speed = kernels.speed[kernels.family[task]]
            left_ns = kernels.work_ns[task]
            while here < last:
                reach_ns = (overlaps.moments_ns[here] - now_ns) * speed[phase]
                if reach_ns >= left_ns:
                    break
                left_ns -= reach_ns
                now_ns = float(overlaps.moments_ns[here])
                phase = overlaps.phase[here]
                here += 1
            now_ns += left_ns / speed[phase]
            lost_ns[task] = now_ns - began_ns - kernels.work_ns[task]
