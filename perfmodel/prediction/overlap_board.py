"""Overlap board: a priced job with one row a task of every rank, and what of it can interfere.

Ranks that share prices may overlap differently, so that losses are kept by
rank; rows are shared again at the end where ranks lost the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.collective import CollectiveKind
from perfmodel.costs.interference import Phase
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.layout import FlatJob, Int32s, Int64s, build_layout
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication, Op
from perfmodel.graph.program import PLAIN
from perfmodel.prediction.kernel_slowdown import Codes, Floats, Lanes


class Calls(NamedTuple):
    """Members of rendezvous, rank after rank: flat task, rank, lane, rendezvous and member.

    *is_beside* is False for transfers between two ranks.
    """

    task: Int64s
    rank: Int64s
    lane: Int32s
    rendezvous: Int64s
    member: Int64s
    is_beside: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class FlatCosts:
    """Tasks of rank r are the rows `first[r]` to `first[r + 1]`; *row* is theirs in *priced*."""

    priced: PricedJob
    first: Int64s
    row: Int64s
    alone_ns: Floats
    family: Codes
    calls: Calls
    lanes: Lanes
    speed: Floats

    @property
    def job(self) -> JobGraph:
        """The job."""
        return self.priced.job

    def durations(self, lost_ns: Floats) -> DurationTable:
        """Every task alone and what it lost, on the clock."""
        values_ns = np.rint(self.alone_ns + lost_ns).astype(np.int64)[:, np.newaxis]
        return DurationTable(values_ns, self.first[:-1].copy())

    def price(self, lost_ns: Floats) -> PricedJob:
        """The job with what its tasks lost; ranks of one price that lost the same share rows."""
        priced, offsets = self.priced, np.empty(self.job.rank_count, dtype=np.int64)
        kept: list[Int64s] = []
        place_of: dict[tuple[int, bytes], int] = {}
        total = 0
        for rank in range(self.job.rank_count):
            rows = slice(int(self.first[rank]), int(self.first[rank + 1]))
            key = (int(priced.durations.rank_offset[rank]), lost_ns[rows].tobytes())
            if key not in place_of:
                place_of[key] = total
                kept.append(np.arange(rows.start, rows.stop))
                total += rows.stop - rows.start
            offsets[rank] = place_of[key]
        chosen = np.concatenate(kept)
        return replace(
            priced.take(self.row[chosen], offsets, job=self.job),
            durations=DurationTable(self.durations(lost_ns).values_ns[chosen], offsets),
            float_ns=(self.alone_ns + lost_ns)[chosen],
        )


def build_board(priced: PricedJob) -> FlatCosts:
    """The board of *priced*."""
    layout = build_layout(priced.job)
    first = layout.r_task
    counts = np.diff(first)
    within = np.arange(int(first[-1])) - np.repeat(first[:-1], counts)
    row = np.repeat(priced.durations.rank_offset, counts) + within
    calls = _find_calls(priced.job, layout)
    family = priced.family[row]
    # A member advances with the others of its rendezvous, whatever is beside it.
    family[calls.task] = FAMILIES.index(COMMUNICATION_FAMILY)
    speed = _speeds(priced)
    is_slowed: NDArray[np.bool_] = np.any(speed < 1, axis=1)
    return FlatCosts(
        priced=priced,
        first=first,
        row=row,
        alone_ns=priced.float_ns[row],
        family=family,
        calls=calls,
        lanes=_slowed_lanes(priced.job, layout, is_slowed[family]),
        speed=speed,
    )


def _speeds(priced: PricedJob) -> Floats:
    """How fast each family advances in each phase."""
    slowdowns = priced.slowdowns
    return np.array(
        [[1 / slowdowns.factor(family, phase) for phase in Phase] for family in FAMILIES]
    )


def _find_calls(job: JobGraph, layout: FlatJob) -> Calls:
    is_pair = np.array([_is_pair(op) for op in job.ops], dtype=bool)
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
                is_beside=~is_pair[program.op[tasks]],
            )
        )
    return Calls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _is_pair(op: Op) -> bool:
    return isinstance(op, Communication) and op.collective.kind is CollectiveKind.SEND_RECV


def _slowed_lanes(job: JobGraph, layout: FlatJob, is_slowed: NDArray[np.bool_]) -> Lanes:
    """Lanes with a task that something could slow."""
    firsts, stops, ranks = [], [], []
    reached = np.concatenate([[0], np.cumsum(is_slowed)])
    for rank in range(job.rank_count):
        lane_start = layout.r_task[rank] + job.program_of(rank).lane_start
        has_slowed = np.diff(reached[lane_start]) > 0
        firsts.append(lane_start[:-1][has_slowed])
        stops.append(lane_start[1:][has_slowed])
        ranks.append(np.full(int(has_slowed.sum()), rank, dtype=np.int64))
    return Lanes(np.concatenate(firsts), np.concatenate(stops), np.concatenate(ranks))
