"""Evaluation: when a plan's iterations end, from the frame and the plan's own durations.

The compiled counterpart of the engine for condensed ranks: the same rules,
and the same nanoseconds, as a replay of the whole job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.steady import FIRST_ITERATIONS, LONGEST_CYCLE, MOST_ITERATIONS
from perfmodel.planning.frame import Frame

Int64s = NDArray[np.int64]
Int8s = NDArray[np.int8]

NOT_SETTLED = 0


@dataclass(frozen=True, slots=True, eq=False)
class PlanTimes:
    """Times of plans: isolated, and the period with the iterations it took to show."""

    isolated_ns: Int64s
    period_ns: Int64s
    iterations: Int64s
    cyclicity: Int64s


def evaluate_plans(
    frame: Frame, kinds: Int8s, durations_ns: Int64s, *, vector: int = 0
) -> PlanTimes:
    """Times of plans; *kinds* are plans x ranks, *durations_ns* plans x columns x ranks."""
    moments = _moments(frame, kinds.shape[1])
    found = _evaluate(kinds, durations_ns, moments, _columns(frame, vector))
    return PlanTimes(found[:, 0], found[:, 1], found[:, 2], found[:, 3])


def start_and_end(frame: Frame, kinds: Int8s, durations_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Ready and end of every slot x rank of one plan in its first iteration."""
    moments = _moments(frame, len(kinds))
    _advance(0, kinds, durations_ns, moments, _columns(frame, 0))
    return moments.ready, moments.ends[0]


class _Moments(NamedTuple):
    """Where compiled code notes what happens when: iterations x slots x ranks."""

    starts: Int64s
    ends: Int64s
    ready: Int64s
    ready_of_kind: Int64s


def _moments(frame: Frame, ranks: int) -> _Moments:
    slots = len(frame.changing)
    history = max(int(frame.wait_distance.max(initial=0)), LONGEST_CYCLE) + 1
    return _Moments(
        np.zeros((history, slots, ranks), dtype=np.int64),
        np.zeros((history, slots, ranks), dtype=np.int64),
        np.zeros((slots, ranks), dtype=np.int64),
        np.zeros((2, ranks), dtype=np.int64),
    )


class _Columns(NamedTuple):
    """The columns of a frame, for compiled code."""

    is_present: NDArray[np.bool_]
    is_rendezvous: NDArray[np.bool_]
    changing: NDArray[np.int32]
    fixed_ns: Int64s
    wait_start: NDArray[np.int32]
    wait_slot: NDArray[np.int32]
    wait_is_start: NDArray[np.bool_]
    wait_distance: NDArray[np.int32]
    wait_lag_ns: Int64s
    lane_slots: NDArray[np.int32]


def _columns(frame: Frame, vector: int) -> _Columns:
    return _Columns(
        frame.is_present,
        frame.is_rendezvous,
        frame.changing,
        np.ascontiguousarray(frame.fixed_ns[:, :, vector]),
        frame.wait_start,
        frame.wait_slot,
        frame.wait_is_start,
        frame.wait_distance,
        np.ascontiguousarray(frame.wait_lag_ns[:, vector]),
        frame.lane_slots,
    )


@numba.njit(cache=True, nogil=True)
def _advance(
    iteration: int,
    kinds: Int8s,
    durations: Int64s,
    moments: _Moments,
    columns: _Columns,
) -> None:
    """One iteration: ready, start and end of every slot on every rank.

    Waits are worked off for all ranks as if each were of both kinds, in loops
    that compile to vector instructions; then each rank takes those of its own.
    """
    history = moments.starts.shape[0]
    now = iteration % history
    ranks = len(kinds)
    for slot in range(len(columns.changing)):
        for kind in range(2):
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


@numba.njit(cache=True, nogil=True)
def _begin(
    slot: int, kinds: Int8s, durations: Int64s, moments: _Moments, columns: _Columns, now: int
) -> None:
    """Start and end of one slot on every rank, once all are ready."""
    latest = 0
    for rank in range(len(kinds)):
        kind = kinds[rank]
        if columns.is_present[kind, slot]:
            moments.ready[slot, rank] = moments.ready_of_kind[kind, rank]
            latest = max(latest, moments.ready_of_kind[kind, rank])
    column = columns.changing[slot]
    for rank in range(len(kinds)):
        kind = kinds[rank]
        if not columns.is_present[kind, slot]:
            moments.ends[now, slot, rank] = 0
            continue
        begin = latest if columns.is_rendezvous[slot] else moments.ready[slot, rank]
        took = durations[column, rank] if column >= 0 else columns.fixed_ns[kind, slot]
        moments.starts[now, slot, rank] = begin
        moments.ends[now, slot, rank] = begin + took


@numba.njit(cache=True, nogil=True)
def _last_end(now: int, moments: _Moments, columns: _Columns) -> int:
    """When the last lane of the iteration was done."""
    last = 0
    for lane in columns.lane_slots:
        for end in moments.ends[now, lane]:
            last = max(last, end)
    return last


@numba.njit(cache=True, nogil=True)
def _evaluate(kinds: Int8s, durations: Int64s, moments: _Moments, columns: _Columns) -> Int64s:
    totals = np.zeros(MOST_ITERATIONS, dtype=np.int64)
    found = np.zeros((len(kinds), 4), dtype=np.int64)
    history = moments.starts.shape[0]
    for plan in range(len(kinds)):
        wanted, iteration, cycle = FIRST_ITERATIONS, 0, NOT_SETTLED
        while True:
            while iteration < wanted:
                _advance(iteration, kinds[plan], durations[plan], moments, columns)
                totals[iteration] = _last_end(iteration % history, moments, columns)
                iteration += 1
            cycle = _cycle(totals, iteration, moments, columns)
            if cycle != NOT_SETTLED or wanted >= MOST_ITERATIONS:
                break
            wanted = min(2 * wanted, MOST_ITERATIONS)
        span = cycle if cycle != NOT_SETTLED else iteration // 2
        total = totals[iteration - 1] - totals[iteration - 1 - span]
        found[plan, 0] = totals[0]
        # Rounded half up, as the engine does.
        found[plan, 1] = (2 * total + span) // (2 * span)
        found[plan, 2] = iteration
        found[plan, 3] = cycle
    return found


@numba.njit(cache=True, nogil=True)
def _cycle(totals: Int64s, count: int, moments: _Moments, columns: _Columns) -> int:
    """The shortest cycle that the last iterations repeat, as the engine finds it."""
    history = moments.ends.shape[0]
    for cycle in range(1, LONGEST_CYCLE + 1):
        if count < 2 * cycle + 1:
            continue
        length = totals[count - 1] - totals[count - 1 - cycle]
        is_same = True
        for step in range(cycle):
            late = totals[count - 1 - step] - totals[count - 2 - step]
            early = totals[count - 1 - step - cycle] - totals[count - 2 - step - cycle]
            is_same = is_same and late == early
        if not is_same:
            continue
        for lane in columns.lane_slots:
            now = moments.ends[(count - 1) % history, lane]
            then = moments.ends[(count - 1 - cycle) % history, lane]
            for rank in range(len(now)):
                is_same = is_same and now[rank] - then[rank] <= length
        if is_same:
            return cycle
    return NOT_SETTLED
