"""Overlaps: collectives of a replay, and what kernels lose that run at the same time.

A kernel advances at 1/f while a collective runs on another lane of its rank. A lane is walked in
order: a kernel that started when the one before ended moves with it, so one pass settles a whole
chain.

Leaves out: transfers between two ranks, which hold few multiprocessors and were never recorded
with kernels at the same time, and what kernels cost collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.collective import CollectiveKind
from perfmodel.base.compiling import compiled
from perfmodel.costs.interference import SLOWED_FAMILIES, Phase
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.layout import Int32s, Int64s, build_places
from perfmodel.engine.replay import Timeline
from perfmodel.engine.settle import Effects, Floats, Round
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import PLAIN, LaneKind, offsets

Codes = NDArray[np.int8]
NOTICED_NS = 1e-3
"""Less is rounding, not a loss."""
_NONE, _WAITING, _MOVING = int(Phase.NONE), int(Phase.WAITING), int(Phase.MOVING)


def task_rows(priced: PricedJob) -> Int64s:
    """The row in *priced* of every task of every rank."""
    first_row = priced.job.rank_rows()
    counts = np.diff(first_row)
    within = np.arange(int(first_row[-1])) - np.repeat(first_row[:-1], counts)
    return np.repeat(priced.durations.rank_offset, counts) + within


class RendezvousMembers(NamedTuple):
    """Members of rendezvous, rank after rank: flat task, rank, lane, and number of the member.

    *rendezvous* is the number of its first member. *slows_kernels* is False for transfers between
    two ranks.
    """

    task: Int64s
    rank: Int64s
    lane: Int32s
    rendezvous: Int64s
    member: Int64s
    slows_kernels: NDArray[np.bool_]


def find_calls(job: JobGraph) -> RendezvousMembers:
    """All members of rendezvous of *job*."""
    places = build_places(job)
    kinds = [op.collective.kind if isinstance(op, Communication) else None for op in job.ops]
    is_pair = np.array([kind is CollectiveKind.SEND_RECV for kind in kinds], dtype=bool)
    parts = []
    for rank in range(job.rank_count):
        program = job.program_of(rank)
        tasks = np.flatnonzero(program.slot != PLAIN)
        slots, groups = program.slot[tasks], job.rank_group[rank, program.slot[tasks]]
        first = places.g_member[groups] + program.sequence[tasks] * places.g_size[groups]
        parts.append(
            RendezvousMembers(
                task=places.r_task[rank] + tasks,
                rank=np.full(len(tasks), rank, dtype=np.int64),
                lane=program.task_lanes()[tasks],
                rendezvous=first,
                member=first + places.r_position[rank, slots],
                slows_kernels=~is_pair[program.op[tasks]],
            )
        )
    return RendezvousMembers(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class KernelLanes(NamedTuple):
    """Lanes with kernels that can be slowed, and all tasks of a replay by flat number.

    A lane has the tasks *first* to *stop* and a *rank*. A task took *duration_ns* until *end_ns*;
    *work_ns* is how long it takes alone. *speed* is families x phases: how fast a family advances.
    """

    first: Int64s
    stop: Int64s
    rank: Int64s
    duration_ns: Int64s
    end_ns: Int64s
    work_ns: Floats
    family: Codes
    speed: Floats


class OverlapTimeline(NamedTuple):
    """What the collectives of each rank do from each of *moments_ns* on.

    Rows of rank r are `rank_first[r]` to `rank_first[r + 1]`; before the first and after the last
    nothing runs.
    """

    moments_ns: Int64s
    phase: Codes
    rank_first: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class KernelSlowdown:
    """Kernels advance more slowly while collectives of their rank run.

    Rows of *calls* are the task, rank and member of these collectives. *family* is by task, *speed*
    by family and phase. Lanes with kernels to slow have the tasks *lane_first* to *lane_stop*.
    """

    calls: Int64s
    family: Codes
    speed: Floats
    lane_first: Int64s
    lane_stop: Int64s
    lane_rank: Int64s

    def __call__(self, last: Round, found: Effects) -> None:
        """Lengthen kernels by what they lose to collectives, early ones of the next iteration too.

        Work of this iteration includes what was lost to the next one, and the other way round.
        """
        before, now = last.replay.timelines[-2:]
        calls = self._intervals(last, now)
        both = np.concatenate([self._intervals(last, before), calls], axis=1)
        lost_ns = self._slow(last, now, calls=both, work_ns=last.alone_ns + last.lost_ns[1])
        found.lost_ns[0] += lost_ns
        first_row = last.durations.rank_offset
        has_tasks = np.diff(first_row, append=len(lost_ns)) > 0
        ends_ns = np.zeros(len(has_tasks), dtype=np.int64)
        ends_ns[has_tasks] = np.maximum.reduceat(before.end_ns[:, 0], first_row[has_tasks])
        rank, ready_ns = calls[:2]
        early = calls[:, ready_ns < ends_ns[rank]]
        if early.size:
            work_ns = last.alone_ns + lost_ns
            found.lost_ns[1] += self._slow(last, before, calls=early, work_ns=work_ns)

    def _intervals(self, last: Round, timeline: Timeline) -> Int64s:
        """Rank, ready, start and end of the collectives of *timeline*, one column per call."""
        task, rank, member = self.calls
        end_ns = timeline.end_ns[task, 0]
        ready_ns = timeline.member_ready_ns[member, 0]
        return np.stack([rank, ready_ns, end_ns - last.duration_ns[task], end_ns])

    def _slow(self, last: Round, timeline: Timeline, *, calls: Int64s, work_ns: Floats) -> Floats:
        """How much longer than *work_ns* every task of *timeline* takes while *calls* run."""
        lanes = (self.lane_first, self.lane_stop, self.lane_rank)
        times_ns = (last.duration_ns, timeline.end_ns[:, 0], work_ns)
        lost_ns = np.zeros(len(work_ns))
        _walk_lanes(
            KernelLanes(*lanes, *times_ns, self.family, self.speed),
            find_overlaps(calls, last.undelayed.rank_count),
            lost_ns,
        )
        return lost_ns


def find_kernels(priced: PricedJob, row: Int64s, calls: RendezvousMembers) -> Int64s:
    """Task, rank and lane of the kernels of ranks with several compute streams, one a column."""
    is_kernel = np.isin(priced.family[row], [FAMILIES.index(name) for name in SLOWED_FAMILIES])
    is_kernel[calls.task] = False
    found = [np.empty((3, 0), dtype=np.int64)]
    for rank, first in enumerate(priced.job.rank_rows()[:-1].tolist()):
        program = priced.job.program_of(rank)
        is_stream = np.array([lane.kind is LaneKind.COMPUTE for lane in program.lanes])
        if is_stream.sum() > 1:
            lane = program.task_lanes()
            own = np.flatnonzero(is_kernel[first : first + len(lane)] & is_stream[lane])
            found.append(np.stack([first + own, np.full_like(own, rank), lane[own]]))
    return np.concatenate(found, axis=1)


def find_slowdown(priced: PricedJob, row: Int64s, calls: RendezvousMembers) -> KernelSlowdown:
    """The rule for kernels of *priced*, *row* being that of each task; it may have no lanes."""
    job, family = priced.job, priced.family[row]
    # A member advances with the others of its rendezvous, whatever overlaps it.
    family[calls.task] = FAMILIES.index(COMMUNICATION_FAMILY)
    factor = priced.slowdowns.factor
    speed = np.array([[1 / factor(family, phase) for phase in Phase] for family in FAMILIES])
    reached = offsets(np.any(speed < 1, axis=1)[family])
    lanes = []
    for rank, first in enumerate(job.rank_rows()[:-1].tolist()):
        lane_start = first + job.program_of(rank).lane_start.astype(np.int64)
        bounds = np.stack([lane_start[:-1], lane_start[1:], np.full(len(lane_start) - 1, rank)])
        lanes.append(bounds[:, np.diff(reached[lane_start]) > 0])
    slowing = np.stack([calls.task, calls.rank, calls.member])[:, calls.slows_kernels]
    return KernelSlowdown(slowing, family, speed, *np.concatenate(lanes, axis=1))


def find_overlaps(calls: Int64s, rank_count: int) -> OverlapTimeline:
    """What overlaps the kernels of each rank: moving bytes outweighs waiting.

    Rows of *calls* are ranks, and when collectives were ready, started and ended. From ready to
    start a collective waits for other ranks; its kernel is on the device already.
    """
    # One key of rank and moment sorts faster than two, and 64 bits hold 2^20 ranks of two hours.
    span_ns = calls[1:].max(initial=0) - calls[1:].min(initial=0) + 1
    # A call begins to move where it ends to wait, so that moment is there once.
    order = np.argsort((calls[0] * span_ns + calls[1:]).ravel(), kind="stable")
    moments_ns = np.empty(len(order), dtype=np.int64)
    phase = np.empty(len(order), dtype=np.int8)
    first = np.zeros(rank_count + 1, dtype=np.int64)
    _count_calls(order, np.ascontiguousarray(calls), moments_ns, phase, first)
    return OverlapTimeline(moments_ns, phase, np.cumsum(first))


@compiled
def _count_calls(
    order: Int64s, calls: Int64s, moments_ns: Int64s, phase: Codes, first: Int64s
) -> None:
    count = calls.shape[1]
    waiting = moving = 0
    for place in range(len(order)):
        row, call = divmod(order[place], count)
        waiting += 1 if row == 0 else -1 if row == 1 else 0
        moving += 1 if row == 1 else -1 if row == 2 else 0
        moments_ns[place] = calls[1 + row, call]
        # Every call ends, so both are back at zero where the next rank begins.
        phase[place] = _MOVING if moving > 0 else _WAITING if waiting > 0 else _NONE
        first[calls[0, call] + 1] += 1


@compiled
def _walk_lanes(kernels: KernelLanes, overlaps: OverlapTimeline, lost_ns: Floats) -> None:
    for lane in range(len(kernels.first)):
        rank = kernels.rank[lane]
        here, last = overlaps.rank_first[rank], overlaps.rank_first[rank + 1]
        phase = 0
        now_ns = -1.0
        for task in range(kernels.first[lane], kernels.stop[lane]):
            start_ns = kernels.end_ns[task] - kernels.duration_ns[task]
            if task == kernels.first[lane] or start_ns != kernels.end_ns[task - 1]:
                now_ns = max(now_ns, float(start_ns))
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
            task_lost_ns = now_ns - began_ns - kernels.work_ns[task]
            lost_ns[task] = task_lost_ns if task_lost_ns >= NOTICED_NS else 0.0
