"""Condensed job: kinds of rank with only the tasks that matter, evaluated for many variants.

The common part of all variants (such as sharding plans) is condensed once to slots and exact waits
between them. A variant adds only its own durations and the kind of every rank. Rules and
nanoseconds are those of a replay of the whole job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.compiling import compiled
from perfmodel.engine.condensing import ORIGIN, Bools, Ways, choose_kept, condense, lane_ends
from perfmodel.engine.layout import Int32s, Int64s
from perfmodel.engine.replay import (
    FIRST_ITERATIONS,
    LONGEST_CYCLE,
    MOST_ITERATIONS,
    is_repeated,
    mean_period_ns,
)
from perfmodel.graph.program import PLAIN, Anchor, Program

Int8s = NDArray[np.int8]
Slot = tuple[int, int, int]
"""Lane, origin and number of a kept task."""

FIXED = -1
"""Column of a task whose duration no variant changes."""
NOT_SETTLED = 0


class CondensedJob(NamedTuple):
    """Slots of both kinds of rank, as columns for the compiled evaluation.

    Waits of slot s on a rank of kind v are rows `wait_start[v, s]` to `wait_start[v, s + 1]`.
    *changing* is the column of a variant's durations for a slot, or FIXED; then `fixed_ns[v, s]`
    applies. *reach* is how many iterations dependencies go back.
    """

    is_present: Bools
    is_rendezvous: Bools
    changing: Int32s
    fixed_ns: Int64s
    wait_start: Int32s
    wait_slot: Int32s
    wait_is_start: Bools
    wait_distance: Int32s
    wait_lag_ns: Int64s
    lane_slots: Int32s
    reach: int


@dataclass(frozen=True, slots=True, eq=False)
class RankKind:
    """A kind of rank: its program, durations of tasks and columns that variants change."""

    program: Program
    durations_ns: Int64s
    changing: Int32s


def condense_job(kinds: Sequence[RankKind]) -> CondensedJob:
    """Condense the *kinds* of rank of a job in which all ranks take part in all rendezvous.

    Slots are the tasks that any kind keeps, matched by their origin.
    """
    waits = [
        condense(kind.program, kind.durations_ns, choose_kept(kind.program, kind.changing != FIXED))
        for kind in kinds
    ]
    slot_of = [_find_slots(kind.program, kept) for kind, kept in zip(kinds, waits, strict=True)]
    return _fill(_merge(slot_of, waits), slot_of, kinds, waits)


def _find_slots(program: Program, kept: Collection[int]) -> dict[int, Slot]:
    """Kept tasks by lane, origin and number among the tasks of that origin on the lane."""
    counts: Counter[tuple[int, int]] = Counter()
    slot_of: dict[int, Slot] = {}
    of_task = zip(program.task_lanes().tolist(), program.origin.tolist(), strict=True)
    for task, (lane, origin) in enumerate(of_task):
        slot_of[task] = (lane, origin, counts[lane, origin])
        counts[lane, origin] += 1
    return {task: slot_of[task] for task in kept}


def _merge(slot_of: list[dict[int, Slot]], waits: list[dict[int, Ways]]) -> list[Slot]:
    """All slots, in an order that both kinds of rank can execute."""
    sources: dict[Slot, set[Slot]] = {slot: set() for one in slot_of for slot in one.values()}
    for of_kind, waits_of in zip(slot_of, waits, strict=True):
        for task, slot in of_kind.items():
            sources[slot] |= {
                of_kind[moment.task]
                for moment in waits_of[task]
                if moment.task != ORIGIN and moment.distance == 0
            }
    # Both kinds of rank issue their collectives in one order, so there is no cycle.
    return list(TopologicalSorter(sources).static_order())


def _fill(
    slots: list[Slot],
    slot_of: list[dict[int, Slot]],
    rank_kinds: Sequence[RankKind],
    waits: list[dict[int, Ways]],
) -> CondensedJob:
    kinds = len(rank_kinds)
    is_present = np.zeros((kinds, len(slots)), dtype=bool)
    is_rendezvous = np.zeros(len(slots), dtype=bool)
    changing = np.full(len(slots), FIXED, dtype=np.int32)
    fixed_ns = np.zeros((kinds, len(slots)), dtype=np.int64)
    wait_start = np.zeros((kinds, len(slots) + 1), dtype=np.int32)
    rows: list[tuple[int, bool, int, int]] = []
    lane_slots: set[int] = set()
    for kind, (of_kind, found) in enumerate(zip(slot_of, rank_kinds, strict=True)):
        place_of = {task: slots.index(slot) for task, slot in of_kind.items()}
        task_of = {place: task for task, place in place_of.items()}
        lane_slots |= {place_of[task] for task in lane_ends(found.program)}
        wait_start[kind, 0] = len(rows)
        for place in range(len(slots)):
            task = task_of.get(place)
            if task is not None:
                is_present[kind, place] = True
                is_rendezvous[place] |= bool(found.program.slot[task] != PLAIN)
                changing[place] = max(changing[place], found.changing[task])
                fixed_ns[kind, place] = found.durations_ns[task]
                for moment, lag in sorted(waits[kind][task].items()):
                    source = place_of.get(moment.task, ORIGIN)
                    rows.append((source, moment.anchor is Anchor.START, moment.distance, lag))
            wait_start[kind, place + 1] = len(rows)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return CondensedJob(
        is_present=is_present,
        is_rendezvous=is_rendezvous,
        changing=changing,
        fixed_ns=fixed_ns,
        wait_start=wait_start,
        wait_slot=columns[:, 0].astype(np.int32),
        wait_is_start=columns[:, 1].astype(bool),
        wait_distance=columns[:, 2].astype(np.int32),
        wait_lag_ns=columns[:, 3].copy(),
        lane_slots=np.array(sorted(lane_slots), dtype=np.int32),
        reach=max(int(one.program.dep_distance.max(initial=0)) for one in rank_kinds),
    )


class VariantTimes(NamedTuple):
    """Times of variants: isolated time, period, and the iterations needed to find it."""

    isolated_ns: Int64s
    period_ns: Int64s
    iterations: Int64s
    cyclicity: Int64s


def evaluate_variants(job: CondensedJob, kinds: Int8s, durations_ns: Int64s) -> VariantTimes:
    """Times; *kinds* are variants x ranks, *durations_ns* variants x columns x ranks."""
    slots, ranks = len(job.changing), kinds.shape[1]
    history = max(int(job.wait_distance.max(initial=0)), LONGEST_CYCLE) + 1
    moments = _Moments(
        np.zeros((history, slots, ranks), dtype=np.int64),
        np.zeros((history, slots, ranks), dtype=np.int64),
        np.zeros((len(job.is_present), ranks), dtype=np.int64),
    )
    return VariantTimes(*_evaluate(kinds, durations_ns, moments, job).T)


class _Moments(NamedTuple):
    """Times that compiled code writes: iterations x slots x ranks, and kinds x ranks."""

    starts: Int64s
    ends: Int64s
    ready_of_kind: Int64s


@compiled
def _advance(
    iteration: int,
    kinds: Int8s,
    durations: Int64s,
    moments: _Moments,
    columns: CondensedJob,
) -> None:
    """One iteration: ready, start and end of every slot on every rank.

    Waits are computed for all ranks as if each were of every kind, in loops that compile to vector
    instructions; then each rank takes those of its own kind.
    """
    history = moments.starts.shape[0]
    now = iteration % history
    ranks = len(kinds)
    for slot in range(len(columns.changing)):
        for kind in range(len(moments.ready_of_kind)):
            ready = moments.ready_of_kind[kind]
            ready[:] = 0
            for row in range(columns.wait_start[kind, slot], columns.wait_start[kind, slot + 1]):
                source, distance = columns.wait_slot[row], columns.wait_distance[row]
                lag = columns.wait_lag_ns[row]
                if source < 0:
                    for rank in range(ranks):
                        ready[rank] = max(ready[rank], lag)
                elif distance <= iteration:
                    then = (iteration - distance) % history
                    if columns.wait_is_start[row]:
                        values = moments.starts[then, source]
                    else:
                        values = moments.ends[then, source]
                    for rank in range(ranks):
                        ready[rank] = max(ready[rank], values[rank] + lag)
        _begin(slot, kinds, durations, moments, columns, now)


@compiled
def _begin(
    slot: int, kinds: Int8s, durations: Int64s, moments: _Moments, columns: CondensedJob, now: int
) -> None:
    """Start and end of one slot on every rank, once all are ready."""
    latest = 0
    for rank in range(len(kinds)):
        kind = kinds[rank]
        if columns.is_present[kind, slot]:
            latest = max(latest, moments.ready_of_kind[kind, rank])
    column = columns.changing[slot]
    for rank in range(len(kinds)):
        kind = kinds[rank]
        if not columns.is_present[kind, slot]:
            moments.ends[now, slot, rank] = 0
            continue
        begin = latest if columns.is_rendezvous[slot] else moments.ready_of_kind[kind, rank]
        took = durations[column, rank] if column >= 0 else columns.fixed_ns[kind, slot]
        moments.starts[now, slot, rank] = begin
        moments.ends[now, slot, rank] = begin + took


@compiled
def _last_end(now: int, moments: _Moments, columns: CondensedJob) -> int:
    """When the last lane of the iteration was done."""
    last = 0
    for lane in columns.lane_slots:
        for end in moments.ends[now, lane]:
            last = max(last, end)
    return last


@compiled
def _evaluate(kinds: Int8s, durations: Int64s, moments: _Moments, columns: CondensedJob) -> Int64s:
    totals = np.zeros(MOST_ITERATIONS, dtype=np.int64)
    found = np.zeros((len(kinds), 4), dtype=np.int64)
    history = moments.starts.shape[0]
    for variant in range(len(kinds)):
        wanted, iteration, cycle = FIRST_ITERATIONS, 0, NOT_SETTLED
        while True:
            while iteration < wanted:
                _advance(iteration, kinds[variant], durations[variant], moments, columns)
                totals[iteration] = _last_end(iteration % history, moments, columns)
                iteration += 1
            for length in range(1, LONGEST_CYCLE + 1):
                if is_repeated(
                    totals, iteration, moments.ends, columns.lane_slots, length, columns.reach
                ):
                    cycle = length
                    break
            if cycle != NOT_SETTLED or wanted >= MOST_ITERATIONS:
                break
            wanted = min(2 * wanted, MOST_ITERATIONS)
        span = cycle if cycle != NOT_SETTLED else iteration // 2
        total = totals[iteration - 1] - totals[iteration - 1 - span]
        found[variant, 0] = totals[0]
        found[variant, 1] = mean_period_ns(total, span)
        found[variant, 2] = iteration
        found[variant, 3] = cycle
    return found
