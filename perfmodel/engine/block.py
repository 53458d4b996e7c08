"""Block: the replay of some ranks of a job, advanced as far as its information allows.

A block with all ranks needs no other. Several blocks of one job exchange only the rendezvous that
cross them: each reports when its last member was ready and gets the time of the last of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.advance import (
    COUNTS,
    ITERATION,
    LANES_LEFT,
    NOT_DONE,
    NOTHING,
    OUTBOX_LENGTH,
    STACK_HEIGHT,
    TO_THE_END,
    State,
    advance,
    begin_iteration,
    is_repeated,
    resolve,
)
from perfmodel.engine.layout import FlatJob, Int32s, Int64s, in_big_pages
from perfmodel.graph.durations import DurationTable


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Rendezvous whose members in one block, or in all, are ready.

    Rows of *rendezvous*: iteration, group, sequence. *ready_ns* is when the
    last of those members was ready, by duration vector.
    """

    rendezvous: Int64s
    ready_ns: Int64s

    def __len__(self) -> int:
        return len(self.rendezvous)


def no_arrivals(vector_count: int) -> Arrivals:
    """Arrivals without rows."""
    return Arrivals(np.empty((0, 3), dtype=np.int64), np.empty((0, vector_count), dtype=np.int64))


def join_arrivals(parts: Sequence[Arrivals]) -> Arrivals:
    """The arrivals of all *parts*, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Arrivals(
        np.concatenate([part.rendezvous for part in parts]),
        np.concatenate([part.ready_ns for part in parts]),
    )


class BlockReplay:
    """The replay of *layout*. Its state changes only through its methods."""

    def __init__(self, layout: FlatJob, durations: DurationTable, *, kept_iterations: int) -> None:
        self.layout = layout
        self._state = _new_state(layout, durations, kept_iterations)
        self._early: list[Arrivals] = []

    @property
    def iteration(self) -> int:
        """The number of the iteration being replayed."""
        return int(self._state.counts[ITERATION])

    @property
    def heads(self) -> Int32s:
        """The next task of every lane of every rank; past the lane's last when it is done."""
        return self._state.head.copy()

    @property
    def stops(self) -> Int32s:
        """Where the lanes of every rank end."""
        layout = self.layout
        first = layout.p_lane[layout.r_program][layout.lane_rank]
        stops: Int32s = layout.lane_stop[
            first + np.arange(len(layout.lane_rank)) - layout.r_lane[layout.lane_rank]
        ]
        return stops

    @property
    def is_done(self) -> bool:
        """Whether every lane has run to its end in this iteration."""
        return int(self._state.counts[LANES_LEFT]) == 0

    @property
    def can_walk(self) -> bool:
        """Whether the last walk stopped before all lanes that could run."""
        return int(self._state.counts[STACK_HEIGHT]) > 0

    def awaited(self) -> NDArray[np.bool_]:
        """The rendezvous with other blocks in which others wait for members of this one.

        Valid right after `begin_iteration`.
        """
        is_external = self.layout.g_is_external.astype(bool)
        counts = np.diff(self.layout.g_rendezvous)
        return np.repeat(is_external, counts) & (self._state.missing > 1)

    def begin_iteration(self) -> None:
        """Begin the next iteration; lanes keep their times."""
        begin_iteration(self.layout, self._state, self.iteration + 1)
        if self._early:
            early, self._early = join_arrivals(self._early), []
            self.resolve(early)

    def resolve(self, resolved: Arrivals) -> None:
        """Apply rendezvous that were *resolved* outside.

        Those of a finished iteration are ignored: members that only signal do not wait for the
        others. Those of a later iteration are stored: a block that only waits may be behind.
        """
        iteration = resolved.rendezvous[:, 0]
        now, later = iteration == self.iteration, iteration > self.iteration
        if now.any():
            rows = np.ascontiguousarray(resolved.rendezvous[now, 1:])
            resolve(self.layout, self._state, rows, resolved.ready_ns[now])
        if later.any():
            self._early.append(Arrivals(resolved.rendezvous[later], resolved.ready_ns[later]))

    def advance(self, patience: int = TO_THE_END) -> Arrivals:
        """Continue the walk, and return which members are ready.

        If others wait for the answer, the walk ends after *patience* tasks.
        """
        state = self._state
        advance(self.layout, state, patience)
        count = int(state.counts[OUTBOX_LENGTH])
        state.counts[OUTBOX_LENGTH] = 0
        found = np.empty((count, 3), dtype=np.int64)
        found[:, 0], found[:, 1:] = self.iteration, state.outbox[:count]
        rows = self.layout.g_rendezvous[found[:, 1]] + found[:, 2]
        return Arrivals(found, state.signal_ns[rows])

    def find_shift(self, before_ns: Int64s) -> Int64s | None:
        """How much later every further iteration copies the one just done; None if none does.

        *before_ns* is what lanes had reached before it.
        """
        shift_ns: Int64s = self._state.lane_now_ns.max(axis=0) - before_ns.max(axis=0)
        is_found = is_repeated(self.layout, self._state, before_ns, shift_ns)
        return shift_ns if is_found else None

    def end_ns(self, iteration: int) -> Int64s:
        """When every task of a kept *iteration* ended: tasks x vectors."""
        rows: Int64s = self._state.end_ns[iteration % len(self._state.end_ns)]
        return rows

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready; NOT_DONE if it was not."""
        rows: Int64s = self._state.member_ready_ns[iteration % len(self._state.end_ns)]
        return rows

    def lane_now_ns(self) -> Int64s:
        """The time that every lane has reached: lanes x vectors."""
        return self._state.lane_now_ns.copy()


def _new_state(layout: FlatJob, durations: DurationTable, kept_iterations: int) -> State:
    tasks, lanes = int(layout.r_task[-1]), int(layout.r_lane[-1])
    rendezvous, members = int(layout.g_rendezvous[-1]), int(layout.g_member[-1])
    external = int((np.diff(layout.g_rendezvous) * layout.g_is_external).sum())
    vector_count = durations.vector_count
    return State(
        values_ns=durations.values_ns,
        r_offset=durations.rank_offset,
        end_ns=in_big_pages(kept_iterations * tasks * vector_count, np.int64).reshape(
            kept_iterations, tasks, vector_count
        ),
        member_ready_ns=np.full((kept_iterations, members, vector_count), NOT_DONE, np.int64),
        head=np.zeros(lanes, dtype=np.int32),
        lane_now_ns=np.zeros((lanes, vector_count), dtype=np.int64),
        waits_for=np.zeros(lanes, dtype=np.int32),
        first_waiter=np.full(lanes, NOTHING, dtype=np.int32),
        next_waiter=np.full(lanes, NOTHING, dtype=np.int32),
        stack=np.zeros(lanes, dtype=np.int32),
        urgent=np.zeros(lanes if external else 0, dtype=np.int32),
        missing=np.zeros(rendezvous, dtype=np.int32),
        signal_ns=np.zeros((rendezvous, vector_count), dtype=np.int64),
        member_lane=np.full(members, NOTHING, dtype=np.int32),
        ready_ns=np.zeros(vector_count, dtype=np.int64),
        outbox=np.zeros((external, 2), dtype=np.int64),
        counts=np.array([-1] + [0] * (COUNTS - 1), dtype=np.int64),
    )
