"""Replay: the times of consecutive iterations, and the period once they repeat.

A lane continues where it stopped in the last iteration, so a host that is ahead stays ahead. A
single iteration is the isolated case. A max-plus system settles into a cycle: after some iterations
every one, or every c-th, is a shifted copy of an earlier one. Lanes that run ahead (a fast host)
may have a shorter period; the slowest lane counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.compiling import compiled
from perfmodel.engine.block import BlockReplay
from perfmodel.engine.layout import FlatJob, Int32s, Int64s, lay_out_sound, max_distance
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


class TimelineStore(Protocol):
    """Holds the columns of a replay, by kept iteration."""

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        ...

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready."""
        ...


class Reducer(Protocol):
    """Runs functions where the columns of a remote replay are kept; see `History`."""

    @property
    def is_open(self) -> bool:
        """Whether the processes that keep them still run."""
        ...

    def by_rank(self, function: Callable[..., Any], *words: Any) -> list[Any]:
        """`function(history, rank, *words)` for all ranks."""
        ...

    def at_rank(self, rank: int, function: Callable[..., Any], *words: Any) -> Any:
        """`function(history, *words)` on the worker of *rank*."""
        ...

    def release(self) -> None:
        """Drop the columns; they are not read any more."""
        ...


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every task of one iteration ended, and every member of a rendezvous was ready.

    Rows of *end_ns* are the tasks of rank 0 in program order, then of rank 1, and so on; columns
    are duration vectors. The *store* may be remote: a column is fetched on first use.
    """

    iteration: int
    store: TimelineStore

    @cached_property
    def end_ns(self) -> Int64s:
        """When every task ended."""
        return self.store.end_ns(self.iteration, slice(None))

    @cached_property
    def member_ready_ns(self) -> Int64s:
        """When every member of a rendezvous was ready."""
        return self.store.member_ready_ns(self.iteration)

    def ends_of(self, rows: slice) -> Int64s:
        """When the tasks of some adjacent *rows* ended; no other rows are fetched."""
        if "end_ns" in self.__dict__:
            return self.end_ns[rows]
        return self.store.end_ns(self.iteration, rows)


@dataclass(frozen=True, slots=True, eq=False)
class LocalTimelines:
    """The local timeline store: columns by iteration, starting with the *first* kept.

    Those of an iteration that copies an earlier one are made when they are read; *later_ns* is how
    much later than its columns such an iteration is, by vector.
    """

    first: int
    end_columns_ns: Sequence[Int64s]
    ready_columns_ns: Sequence[Int64s]
    later_ns: Mapping[int, Int64s] = field(default_factory=dict)

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        column_ns = self.end_columns_ns[iteration - self.first][rows]
        return _shift(column_ns, self.later_ns.get(iteration))

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready."""
        column_ns = self.ready_columns_ns[iteration - self.first]
        return _shift(column_ns, self.later_ns.get(iteration))


def _shift(column_ns: Int64s, later_ns: Int64s | None) -> Int64s:
    """*column_ns* as much later; where nothing has happened, nothing will."""
    return column_ns if later_ns is None else column_ns + (column_ns > 0) * later_ns


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The result: the last iterations in full, and the end of every lane in each iteration.

    *lane_now_ns* is iterations x lanes of all ranks x vectors. *remote* holds the timelines if
    they are in other processes.
    """

    timelines: tuple[Timeline, ...]
    lane_now_ns: Int64s
    remote: Reducer | None = None

    @property
    def iteration_count(self) -> int:
        """Number of iterations replayed, kept or not."""
        return len(self.lane_now_ns)

    @property
    def iteration_end_ns(self) -> Int64s:
        """When the last lane of each iteration was done: iterations x vectors."""
        ends: Int64s = self.lane_now_ns.max(axis=1)
        return ends

    @property
    def last(self) -> Timeline:
        """The last iteration."""
        return self.timelines[-1]


def kept_of_reach(reach: int, iterations: int) -> int:
    """Number of iterations to keep: those that dependencies *reach* back to, and one more."""
    return min(iterations, max(reach, 1) + 1)


def replay(
    job: JobGraph,
    durations: DurationTable,
    iterations: int = 1,
    *,
    layout: FlatJob | None = None,
) -> Replay:
    """Replay *iterations* of *job* in this process.

    *layout* is the job's flat layout, if the caller has it already.
    """
    layout = layout or lay_out_sound(job)
    durations.check(job)
    kept = kept_of_reach(max_distance(job), iterations)
    block = BlockReplay(layout, durations, kept_iterations=kept)
    lane_now_ns, shift_ns = list[Int64s](), None
    while shift_ns is None and len(lane_now_ns) < iterations:
        block.begin_iteration()
        block.advance()
        if not block.is_done:
            from perfmodel.engine.stall import explain_stall  # only a job that stops needs it

            raise explain_stall(job, block.heads)
        lane_now_ns.append(block.lane_now_ns())
        if 1 < len(lane_now_ns) < iterations:
            shift_ns = block.find_shift(lane_now_ns[-2])
    done, last = len(lane_now_ns) - 1, range(iterations - kept, iterations)

    later_ns = {}
    if shift_ns is not None:
        later_ns = {index: shift_ns * (index - done) for index in range(done + 1, iterations)}
    lane_now_ns += [_shift(lane_now_ns[done], later) for later in later_ns.values()]
    columns = [min(index, done) for index in last]
    ends, readies = [*map(block.end_ns, columns)], [*map(block.member_ready_ns, columns)]
    store = LocalTimelines(last.start, ends, readies, later_ns)
    return Replay(tuple(Timeline(index, store) for index in last), np.stack(lane_now_ns))


FIRST_ITERATIONS = 6
MOST_ITERATIONS = 96
LONGEST_CYCLE = 4

Replayer = Callable[[JobGraph, DurationTable, int], Replay]


@dataclass(frozen=True, slots=True, eq=False)
class SteadyState:
    """The period of a job by vector; a cycle has *cyclicity* iterations.

    If a job has not settled within MOST_ITERATIONS, *is_settled* is False
    and the period is the mean over the second half of the iterations.
    """

    period_ns: Int64s
    cyclicity: int
    is_settled: bool
    replay: Replay


def find_period(replay: Replayer, job: JobGraph, durations: DurationTable) -> SteadyState:
    """Replay more and more iterations of *job* until they repeat."""
    iterations = FIRST_ITERATIONS
    while True:
        answer = replay(job, durations, iterations)
        for cyclicity in range(1, LONGEST_CYCLE + 1):
            if _is_periodic(answer, cyclicity):
                return SteadyState(_mean_period(answer, cyclicity), cyclicity, True, answer)
        if iterations >= MOST_ITERATIONS:
            half = iterations // 2
            return SteadyState(_mean_period(answer, half), half, False, answer)
        iterations = min(2 * iterations, MOST_ITERATIONS)


def mean_of_second_half_ns(ends_ns: Int64s) -> NDArray[np.float64]:
    """Mean iteration time over the second half of iterations that end at *ends_ns*, by vector."""
    count = len(ends_ns)
    span = max(count // 2, 1)
    before_ns = ends_ns[-1 - span] if count > 1 else 0
    times: NDArray[np.float64] = (ends_ns[-1] - before_ns) / span
    return times


@compiled
def is_repeated(
    ends_ns: Int64s, count: int, lanes_ns: Int64s, lane_rows: Int32s, cyclicity: int, reach: int
) -> bool:
    """Whether two cycles in a row took the same time, and no lane is slower than that.

    *ends_ns* are those of *count* iterations; `lanes_ns[i % len(lanes_ns), row]` for
    the *lane_rows* is when the lanes of iteration i were done, on all ranks. All iterations that
    dependencies *reach* back to must repeat those of the cycle before: bursts, such as the batches
    of three loaders, look periodic within a single cycle.
    """
    span = max(cyclicity, reach)
    if count < span + cyclicity + 1:
        return False
    length_ns = ends_ns[count - 1] - ends_ns[count - 1 - cyclicity]
    for step in range(span):
        late_ns = ends_ns[count - 1 - step] - ends_ns[count - 2 - step]
        first = count - 1 - step - cyclicity
        if late_ns != ends_ns[first] - ends_ns[first - 1]:
            return False
    history = lanes_ns.shape[0]
    for row in lane_rows:
        now = lanes_ns[(count - 1) % history, row]
        then = lanes_ns[(count - 1 - cyclicity) % history, row]
        for place in range(len(now)):
            if now[place] - then[place] > length_ns:
                return False
    return True


@compiled
def mean_period_ns(total_ns: int, count: int) -> int:
    """The mean of *count* iterations, rounded half up so that it is the same everywhere."""
    return (2 * total_ns + count) // (2 * count)


def _is_periodic(answer: Replay, cyclicity: int) -> bool:
    ends, lanes = answer.iteration_end_ns, answer.lane_now_ns
    rows = np.arange(lanes.shape[1], dtype=np.int32)
    return all(
        is_repeated(
            np.ascontiguousarray(ends[:, vector]),
            len(ends),
            np.ascontiguousarray(lanes[:, :, vector : vector + 1]),
            rows,
            cyclicity,
            # As many iterations are kept as dependencies reach, and one for the past.
            len(answer.timelines) - 1,
        )
        for vector in range(ends.shape[1])
    )


def _mean_period(answer: Replay, cyclicity: int) -> Int64s:
    ends = answer.iteration_end_ns
    totals = (ends[-1] - ends[-1 - cyclicity]).tolist()
    return np.array([mean_period_ns(total, cyclicity) for total in totals], dtype=np.int64)
