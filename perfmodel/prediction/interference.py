"""Interference: the costs of a job with equal ranks folded, alone and with what overlap costs.

Ranks that do the same are replayed once: folding changes the work, never the nanoseconds.
Collectives of a rank share links, kernels of several streams share the device, and kernels slow
down while collectives run. These rules are applied by `perfmodel.engine.settle`. Ranks that share
prices may overlap differently, so each rank is settled with rows of its own; rows are shared again
at the end where ranks lost the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.compiling import compiled
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Replay, Replayer
from perfmodel.engine.settle import Effects, Floats, Round, Rule, Rules, settle
from perfmodel.graph.durations import DurationTable, OpDurations
from perfmodel.graph.job import NO_GROUP, Endpoints, Group, JobGraph, split_bytes
from perfmodel.prediction.overlaps import find_calls, find_kernels, find_slowdown, task_rows

MOST_ROUNDS = 8
STILL_RATIO = 1e-4
"""A round that moves the iteration by less than this is the last."""
ITERATIONS = 3
"""Enough for two iterations in a row that follow another one."""
MOST_LOSS_RATIO = 0.9
Classes = tuple[tuple[int, ...], ...]
"""Ranks that are equal, lowest first."""


@dataclass(frozen=True, slots=True, eq=False)
class FoldedCosts:
    """A priced job with one rank per class; its rank r represents the ranks `class_ranks[r]`.

    After *rounds* of settling durations include what overlap costs. *moved_ratio* is how much the
    last round still moved the iteration, *replay* is that round.
    """

    priced: PricedJob
    class_ranks: Classes
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
    # Everything that decides a task's samples, and how it is known.
    columns = (priced.float_ns, priced.relative_sigma, priced.family, priced.provenance)
    job, class_ranks = fold(priced.job, priced.durations, (*columns, priced.link_use))
    lowest = [ranks[0] for ranks in class_ranks]
    if isinstance(priced.durations, OpDurations):
        durations = priced.durations.of_ranks(np.array(lowest))
        return FoldedCosts(replace(priced, job=job, durations=durations), class_ranks)
    blocks = [priced.rows_of_rank(rank) for rank in lowest]
    rows, offsets = _share_rows([block.start for block in blocks], blocks)
    return FoldedCosts(priced.take(rows, offsets, job=job), class_ranks)


def fold(
    job: JobGraph, durations: DurationTable, columns: Sequence[NDArray[Any]] = ()
) -> tuple[JobGraph, Classes]:
    """*job* with one rank for all that are equal under *durations*, and whom each represents.

    *columns* are what tasks must agree in, by row of *durations*; by default their times.
    Ranks are classified by program and columns, then by the classes in their groups, until
    nothing changes (colour refinement). Ranks of a class then have equal times to the nanosecond:
    a rendezvous starts when the last member is ready, however many there are.
    """
    endpoints = job.endpoints()
    colours = _first_colours(job, durations, columns or (durations.values_ns,))
    while True:
        group_colours = _colour_groups(job, endpoints, colours)
        # Ranks by their colour so far and the colours of their groups, slot by slot.
        padded = np.append(group_colours, NO_GROUP)
        rows = np.column_stack([colours, padded[job.rank_group]])
        refined = _number(row.tobytes() for row in np.ascontiguousarray(rows))
        if refined.max() == colours.max():
            break
        colours = refined
    # Colours are numbered in order of appearance, so they are the classes.
    order = np.argsort(colours, kind="stable")
    classes = np.split(order, np.cumsum(np.bincount(colours))[:-1])
    representative = np.array([ranks[0] for ranks in classes])
    folded = _folded_job(job, representative, colours, group_colours)
    return folded, tuple(tuple(ranks.tolist()) for ranks in classes)


def _first_colours(
    job: JobGraph, durations: DurationTable, columns: Sequence[NDArray[Any]]
) -> Int64s:
    """Ranks by program, columns and used slots; numbered in order of appearance."""
    places = list(zip(job.rank_program.tolist(), durations.rank_offset.tolist(), strict=True))
    # Rows are read only where ranks of a program do not share them: programs may be in files.
    count = Counter(program for program, _ in dict.fromkeys(places))
    marks: dict[tuple[int, int], tuple[bytes, ...]] = {}
    for rank, place in enumerate(places):
        if place not in marks:
            rows = durations.rows_of(job, rank) if count[place[0]] > 1 else slice(0)
            marks[place] = tuple(_digest(column[rows]) for column in columns)
    used = job.rank_group != NO_GROUP
    return _number(
        (place[0], marks[place], used[rank].tobytes()) for rank, place in enumerate(places)
    )


def _digest(column: NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(column).tobytes(), digest_size=32).digest()


def _colour_groups(job: JobGraph, endpoints: Endpoints, colours: Int64s) -> Int64s:
    """Groups by the set of (colour, slot) of their endpoints."""
    slots, count = job.rank_group.shape[1], len(job.groups)
    codes = colours[endpoints.rank] * slots + endpoints.slot
    base = int(codes.max(initial=0)) + 1
    group = np.repeat(np.arange(count), np.diff(endpoints.group_start))
    group, codes = np.divmod(np.unique(group * base + codes), base)
    return _number(split_bytes(codes, np.searchsorted(group, np.arange(count + 1))))


def _number(keys: Iterable[Hashable]) -> Int64s:
    """Number the keys in order of appearance; equal keys get equal numbers."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def _folded_job(
    job: JobGraph, representative: Int64s, class_of_rank: Int64s, group_colours: Int64s
) -> JobGraph:
    padded = np.append(group_colours, NO_GROUP)
    rank_group = padded[job.rank_group[representative]].astype(np.int32)
    _, first_of_colour = np.unique(group_colours, return_index=True)
    groups = tuple(
        Group(
            job.groups[int(first)].name,
            tuple(sorted({int(class_of_rank[rank]) for rank in job.groups[int(first)].ranks})),
        )
        for first in first_of_colour
    )
    peaks = job.facts.peak_memory_bytes
    facts = replace(
        job.facts, peak_memory_bytes=tuple(peaks[rank] for rank in representative if peaks)
    )
    return replace(
        job,
        facts=facts,
        rank_program=job.rank_program[representative],
        groups=groups,
        rank_group=rank_group,
    )


def settle_costs(replay: Replayer, alone: FoldedCosts, rules: Rules | None) -> FoldedCosts:
    """Replay *alone* until *rules* are at rest; without any it stays as it is."""
    if rules is None:
        return alone
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


def contention_rules(priced: PricedJob) -> Rules | None:
    """What kernels and collectives of *priced* cost each other; None if nothing can overlap."""
    if not (priced.slowdowns.of or priced.link_use.any()):
        return None
    calls, row = find_calls(priced.job), task_rows(priced)
    rules: list[Rule] = []
    if len(calls.task):
        slowed = find_slowdown(priced, row, calls)
        rules += [slowed] if len(slowed.lane_rank) else []
        place = np.unique(calls.rendezvous, return_inverse=True)[1]
        where = np.stack([calls.task, calls.rank, calls.lane])
        rules += _share(where, priced.link_use[row[calls.task], :2], place)
    if priced.slowdowns.of:
        kernels = find_kernels(priced, row, calls)
        # A kernel alone has the whole device.
        rules += _share(kernels, np.ones_like(kernels[:1].T, float), np.arange(kernels.shape[1]))
    return Rules(rules, MOST_ROUNDS, ITERATIONS, STILL_RATIO) if rules else None


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Tasks on several lanes of a rank share what they use: collectives links, kernels the device.

    By task: its number, its use of each resource, and its place among all or that of its
    rendezvous. *ranks* are the tasks of every rank that has them on several lanes.
    """

    task: Int64s
    use: Floats
    place: Int64s
    ranks: list[slice]

    def __call__(self, last: Round, found: Effects) -> None:
        """Lengthen every task by what it loses; of a collective the worst member decides."""
        lengths_ns = last.duration_ns[self.task]
        ends_ns = [timeline.end_ns[self.task, 0] for timeline in last.replay.timelines[-2:]]
        share = np.zeros(len(self.task))
        for own in self.ranks:
            ends = np.concatenate([end_ns[own] for end_ns in ends_ns])
            starts = ends - np.tile(lengths_ns[own], 2)
            both = overlap_losses(starts, ends, np.tile(self.use[own], (2, 1)))
            share[own] = both.reshape(2, -1).max(axis=0)
        worst = np.zeros(len(self.place))
        np.maximum.at(worst, self.place, share)
        ratio = np.minimum(worst[self.place], MOST_LOSS_RATIO)
        # A collective is on no lane that slows down, or holds its own time there.
        found.lost_ns[0, self.task] += last.alone_ns[self.task] * ratio / (1 - ratio)


def _share(where: Int64s, use: Floats, place: Int64s) -> list[Rule]:
    """The rule for tasks, *where* being task, rank and lane; none if no rank has several lanes."""
    lane_count = where[2].max(initial=0) + 1
    lanes = np.unique(where[1] * lane_count + where[2])
    ranks, lane_counts = np.unique(lanes // lane_count, return_counts=True)
    sharing = ranks[lane_counts > 1] if use.any() else ranks[:0]
    bounds = np.searchsorted(where[1], np.column_stack([sharing, sharing + 1]))
    own = [slice(*bound) for bound in bounds.tolist()]
    return [Sharing(where[0], use, place, own)] if own else []


def overlap_losses(starts_ns: Int64s, ends_ns: Int64s, link_use: Floats) -> Floats:
    """The share of each interval lost to the others, its worst link deciding.

    Where intervals ask a link for d > 1 times what it can carry, each that uses it all the time
    advances at 1/d.
    """
    if not len(starts_ns):
        return np.zeros(0)
    # Calls of a lane are in order already; equal moments are a span of no length.
    moments = np.sort(np.concatenate([starts_ns, ends_ns]), kind="stable")
    first, last = np.searchsorted(moments, starts_ns), np.searchsorted(moments, ends_ns)
    shares = np.zeros(len(starts_ns))
    _share_links(moments, first, last, np.asarray(link_use, dtype=np.float64), shares)
    return shares


@compiled
def _share_links(
    moments: Int64s, first: Int64s, last: Int64s, link_use: Floats, shares: Floats
) -> None:
    demand, idle_ns = np.empty(len(moments)), np.empty(len(moments))
    for link in range(link_use.shape[1]):
        demand[:] = 0.0
        for call in range(len(first)):
            demand[first[call]] += link_use[call, link]
        for call in range(len(first)):
            demand[last[call]] -= link_use[call, link]
        asked = reached_ns = idle_ns[0] = 0.0
        for place in range(len(moments) - 1):
            asked += demand[place]
            span_ns = moments[place + 1] - moments[place]
            reached_ns += span_ns * (1 - 1 / max(asked, 1.0))
            idle_ns[place + 1] = reached_ns
        for call in range(len(first)):
            lost_ns = (idle_ns[last[call]] - idle_ns[first[call]]) * min(link_use[call, link], 1.0)
            length_ns = max(moments[last[call]] - moments[first[call]], 1)
            shares[call] = max(shares[call], lost_ns / length_ns)
    for call in range(len(shares)):
        # Sums of shares may miss 1 by the last bit.
        if shares[call] < 1e-9:
            shares[call] = 0.0
