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
    found = _evaluate(kinds, durations_ns, _columns(frame, vector))
    return PlanTimes(found[:, 0], found[:, 1], found[:, 2], found[:, 3])


def mean_times(
    frame: Frame, kinds: Int8s, durations_ns: Int64s, *, vector: int, iterations: int
) -> NDArray[np.float64]:
    """Mean iteration time of every plan over the second half of *iterations*."""
    ends = _replay_ends(kinds, durations_ns, iterations, _columns(frame, vector))
    span = max(iterations // 2, 1)
    before = ends[:, -1 - span] if iterations > 1 else np.zeros(len(ends), dtype=np.int64)
    times: NDArray[np.float64] = (ends[:, -1] - before) / span
    return times


def start_and_end(frame: Frame, kinds: Int8s, durations_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Ready and end of every slot x rank of one plan in its first iteration."""
    slots, ranks = len(frame.changing), kinds.shape[0]
    history = int(frame.wait_distance.max(initial=0)) + 1
    starts = np.zeros((history, slots, ranks), dtype=np.int64)
    ends = np.zeros((history, slots, ranks), dtype=np.int64)
    ready = np.zeros((slots, ranks), dtype=np.int64)
    _advance(0, kinds, durations_ns, starts, ends, ready, _columns(frame, 0))
    return ready, ends[0]


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
def _advance(iteration, kinds, durations, starts, ends, ready, columns):  # type: ignore[no-untyped-def]
    """One iteration: ready, start and end of every slot on every rank."""
    history = starts.shape[0]
    now = iteration % history
    ranks = kinds.shape[0]
    for slot in range(columns.changing.shape[0]):
        latest = 0
        column = columns.changing[slot]
        for rank in range(ranks):
            kind = kinds[rank]
            if not columns.is_present[kind, slot]:
                ends[now, slot, rank] = 0
                continue
            moment = 0
            for row in range(columns.wait_start[kind, slot], columns.wait_start[kind, slot + 1]):
                source, distance = columns.wait_slot[row], columns.wait_distance[row]
                value = columns.wait_lag_ns[row]
                if source >= 0:
                    if distance > iteration:
                        continue
                    then = (iteration - distance) % history
                    if columns.wait_is_start[row]:
                        value += starts[then, source, rank]
                    else:
                        value += ends[then, source, rank]
                moment = max(moment, value)
            ready[slot, rank] = moment
            latest = max(latest, moment)
        for rank in range(ranks):
            kind = kinds[rank]
            if not columns.is_present[kind, slot]:
                continue
            begin = latest if columns.is_rendezvous[slot] else ready[slot, rank]
            took = durations[column, rank] if column >= 0 else columns.fixed_ns[kind, slot]
            starts[now, slot, rank] = begin
            ends[now, slot, rank] = begin + took


@numba.njit(cache=True, nogil=True)
def _evaluate(kinds, durations, columns):  # type: ignore[no-untyped-def]
    plans, ranks = kinds.shape
    slots = columns.changing.shape[0]
    history = max(columns.wait_distance.max(), LONGEST_CYCLE) + 1
    starts = np.zeros((history, slots, ranks), dtype=np.int64)
    ends = np.zeros((history, slots, ranks), dtype=np.int64)
    ready = np.zeros((slots, ranks), dtype=np.int64)
    totals = np.zeros(MOST_ITERATIONS, dtype=np.int64)
    found = np.zeros((plans, 4), dtype=np.int64)
    for plan in range(plans):
        wanted = FIRST_ITERATIONS
        iteration = 0
        while True:
            while iteration < wanted:
                _advance(iteration, kinds[plan], durations[plan], starts, ends, ready, columns)
                last = 0
                for lane in columns.lane_slots:
                    for rank in range(ranks):
                        last = max(last, ends[iteration % history, lane, rank])
                totals[iteration] = last
                iteration += 1
            cycle = _cycle(totals, iteration, ends, columns.lane_slots, history, ranks)
            if cycle != NOT_SETTLED or wanted >= MOST_ITERATIONS:
                break
            wanted = min(2 * wanted, MOST_ITERATIONS)
        span = cycle if cycle != NOT_SETTLED else iteration // 2
        total = totals[iteration - 1] - totals[iteration - 1 - span]
        found[plan, 0] = totals[0]
        found[plan, 1] = (2 * total + span) // (2 * span)
        found[plan, 2] = iteration
        found[plan, 3] = cycle
    return found


@numba.njit(cache=True, nogil=True)
def _cycle(totals, count, ends, lane_slots, history, ranks):  # type: ignore[no-untyped-def]
    """The shortest cycle that the last iterations repeat, as the engine finds it."""
    for cycle in range(1, LONGEST_CYCLE + 1):
        if count < 2 * cycle + 1:
            continue
        length = totals[count - 1] - totals[count - 1 - cycle]
        is_same = True
        for step in range(cycle):
            late = totals[count - 1 - step] - totals[count - 2 - step]
            early = totals[count - 1 - step - cycle] - totals[count - 2 - step - cycle]
            if late != early:
                is_same = False
        if not is_same:
            continue
        for lane in lane_slots:
            for rank in range(ranks):
                now = ends[(count - 1) % history, lane, rank]
                then = ends[(count - 1 - cycle) % history, lane, rank]
                if now - then > length:
                    is_same = False
        if is_same:
            return cycle
    return NOT_SETTLED


@numba.njit(cache=True, nogil=True)
def _replay_ends(kinds, durations, iterations, columns):  # type: ignore[no-untyped-def]
    plans, ranks = kinds.shape
    slots = columns.changing.shape[0]
    history = columns.wait_distance.max() + 1
    starts = np.zeros((history, slots, ranks), dtype=np.int64)
    ends = np.zeros((history, slots, ranks), dtype=np.int64)
    ready = np.zeros((slots, ranks), dtype=np.int64)
    totals = np.zeros((plans, iterations), dtype=np.int64)
    for plan in range(plans):
        for iteration in range(iterations):
            _advance(iteration, kinds[plan], durations[plan], starts, ends, ready, columns)
            for lane in columns.lane_slots:
                for rank in range(ranks):
                    totals[plan, iteration] = max(
                        totals[plan, iteration], ends[iteration % history, lane, rank]
                    )
    return totals
