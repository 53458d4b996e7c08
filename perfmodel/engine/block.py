"""Block: some ranks of a job being replayed, advanced as far as is known.

A block that holds all ranks needs nobody else. Several blocks of one job
exchange only rendezvous that cross them: each says when the last of its own
members was ready, and hears when the last of all was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.advance import (
    ITERATION,
    NOT_DONE,
    NOTHING,
    OUTBOX_LENGTH,
    State,
    advance,
    begin_iteration,
    resolve,
)
from perfmodel.engine.layout import FlatJob, Int32s, Int64s, build_layout
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Rendezvous whose members in one block, or in all, are ready.

    Rows of *rendezvous*: its number, and the number of its group. *ready_ns*
    is when the last of those members was ready, by duration vector.
    """

    rendezvous: Int64s
    ready_ns: Int64s

    def __len__(self) -> int:
        return len(self.rendezvous)


def no_arrivals(vector_count: int) -> Arrivals:
    """Arrivals of nobody."""
    return Arrivals(np.empty((0, 2), dtype=np.int64), np.empty((0, vector_count), dtype=np.int64))


class Block:
    """The replay of some ranks. Its state changes only through its methods."""

    def __init__(
        self,
        job: JobGraph,
        durations: DurationTable,
        *,
        ranks: Int32s | None = None,
        kept_iterations: int = 1,
    ) -> None:
        self.layout: FlatJob = build_layout(job, ranks)
        self._state = _new_state(self.layout, durations, kept_iterations)

    @property
    def iteration(self) -> int:
        """The number of the iteration being replayed."""
        return int(self._state.counts[ITERATION])

    @property
    def heads(self) -> Int32s:
        """The next task of every lane of every rank; past the lane's last when it is done."""
        return self._state.head.copy()

    @property
    def is_done(self) -> bool:
        """Whether every lane has run to its end in this iteration."""
        layout = self.layout
        first = layout.p_lane[layout.r_program]
        local = np.arange(len(layout.lane_rank)) - layout.r_lane[layout.lane_rank]
        stops = layout.lane_stop[first[layout.lane_rank] + local]
        return bool(np.array_equal(self._state.head, stops))

    def awaited(self) -> NDArray[np.bool_]:
        """Of which rendezvous with other blocks this one has members that others wait for.

        To be asked right after `begin_iteration`.
        """
        is_external = self.layout.g_is_external.astype(bool)
        counts = np.diff(self.layout.g_rendezvous)
        answer: NDArray[np.bool_] = np.repeat(is_external, counts) & (self._state.missing > 1)
        return answer

    def begin_iteration(self) -> None:
        """Go on to the next iteration; lanes keep the time that they have reached."""
        begin_iteration(self.layout, self._state, self.iteration + 1)

    def advance(self, resolved: Arrivals | None = None) -> Arrivals:
        """Take in what was *resolved* outside, walk on, and say which members are ready."""
        state = self._state
        if resolved is not None and len(resolved):
            resolve(self.layout, state, resolved.rendezvous, resolved.ready_ns)
        advance(self.layout, state)
        count = int(state.counts[OUTBOX_LENGTH])
        state.counts[OUTBOX_LENGTH] = 0
        found = state.outbox[:count].copy()
        return Arrivals(found, state.signal_ns[found[:, 0]])

    def end_ns(self, iteration: int) -> Int64s:
        """When every task of a kept *iteration* ended: tasks x vectors."""
        rows: Int64s = self._state.end_ns[iteration % len(self._state.end_ns)]
        return rows

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready; NOT_DONE for those of other blocks."""
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
        r_offset=durations.rank_offset[layout.r_id],
        end_ns=np.empty((kept_iterations, tasks, vector_count), dtype=np.int64),
        member_ready_ns=np.full((kept_iterations, members, vector_count), NOT_DONE, np.int64),
        head=np.zeros(lanes, dtype=np.int32),
        lane_now_ns=np.zeros((lanes, vector_count), dtype=np.int64),
        waits_for=np.zeros(lanes, dtype=np.int32),
        first_waiter=np.full(lanes, NOTHING, dtype=np.int32),
        next_waiter=np.full(lanes, NOTHING, dtype=np.int32),
        stack=np.zeros(lanes, dtype=np.int32),
        missing=np.zeros(rendezvous, dtype=np.int32),
        signal_ns=np.zeros((rendezvous, vector_count), dtype=np.int64),
        member_lane=np.full(members, NOTHING, dtype=np.int32),
        ready_ns=np.zeros(vector_count, dtype=np.int64),
        outbox=np.zeros((external, 2), dtype=np.int64),
        counts=np.array([-1, 0, 0], dtype=np.int64),
    )
