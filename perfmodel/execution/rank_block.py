"""What runs in a worker process: blocks of ranks, advanced round by round, and other questions.

A block continues from one iteration to the next by itself. Lanes that others released are walked
first, and what others wait for is reported before the rest is walked. Rounds are numbered. The last
round may be requested again and gives the same report; any other number but the next is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ExecutionError
from perfmodel.base.identity import full_identity
from perfmodel.engine.block import Arrivals, BlockReplay, join_arrivals
from perfmodel.engine.history import History, HistorySlice, Occurrence, last_signals
from perfmodel.engine.layout import Int32s, Int64s, LaidOutPrograms, Places, build_layout
from perfmodel.engine.replay import Replay, Timeline
from perfmodel.execution.executor import WorkerPlace
from perfmodel.execution.parts import JobPart
from perfmodel.execution.rounds import Message
from perfmodel.execution.stored_parts import StoredJob, find_own_members, load_part
from perfmodel.graph.durations import DurationTable

PATIENCE = 250_000
"""Tasks that a block walks while others wait for its report: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The *ranks* of a block, and how many *iterations* it replays and keeps in full."""

    ranks: range
    iterations: int
    kept_iterations: int


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The next task of every lane of a block in its *iteration*, and where lanes end."""

    iteration: int
    heads: Int32s
    stops: Int32s


class RankBlock:
    """A block that knows which round it is in."""

    def __init__(
        self,
        part: JobPart | StoredJob,
        durations: DurationTable,
        assignment: Assignment,
        host: str = "this machine",
    ) -> None:
        """The block of a *part* that was sent, or of a saved job that is read here, on *host*."""
        self._assignment = assignment
        self._members: Int64s | None = None
        read = None
        if isinstance(part, StoredJob):
            read = load_part(part, durations, assignment.ranks, host)
            part, durations = read.part, read.durations
        self._groups = part.groups
        self._durations = DurationTable(
            _as_writable(durations.values_ns), _as_writable(durations.rank_offset)
        )
        layout = build_layout(part.job, part.external)
        if read is not None:
            self._members = find_own_members(read, layout, assignment.ranks)
        # A layout holds all that is walked, so that the programs themselves can go.
        lanes = [program.lanes for program in part.job.programs]
        self._job = replace(part.job, programs=LaidOutPrograms(layout, lanes))
        self._history: History | None = None
        self._block = BlockReplay(
            layout, self._durations, kept_iterations=assignment.kept_iterations
        )
        self._block.begin_iteration()
        self._lane_now_ns: list[Int64s] = []
        self._next_round = 0
        self._last_report = b""

    def awaited(self) -> Int64s:
        """Rows (group, sequence) of the rendezvous that this block reports to."""
        layout = self._block.layout
        rendezvous = np.flatnonzero(self._block.awaited())
        group = np.searchsorted(layout.g_rendezvous, rendezvous, side="right") - 1
        return np.column_stack([self._groups[group], rendezvous - layout.g_rendezvous[group]])

    def members(self) -> Int64s | None:
        """What its ranks bring to rendezvous with other blocks, if it read them itself."""
        return self._members

    def heads(self) -> Heads:
        """How far every lane is."""
        return Heads(self._block.iteration, self._block.heads, self._block.stops)

    def advance(self, message: bytes) -> bytes:
        """Make the round that *message* orders, and report; making it twice changes nothing."""
        order = Message.from_bytes(message)
        resolved = order.arrivals
        if order.number == self._next_round - 1:
            return self._last_report
        if order.number != self._next_round:
            raise ExecutionError(
                f"block of ranks from {self._assignment.ranks.start}: the next round must be "
                f"number {self._next_round}, got {order.number}."
            )
        if len(resolved):
            resolved.rendezvous[:, 1] = np.searchsorted(self._groups, resolved.rendezvous[:, 1])
            self._block.resolve(resolved)
        arrivals = self._walk(0 if len(resolved) else PATIENCE)
        self._next_round += 1
        report = Message(order.number, arrivals, self._is_done, self._block.can_walk)
        self._last_report = report.to_bytes()
        return self._last_report

    def catch_up(self, log: Sequence[bytes]) -> None:
        """Make all rounds of the *log*."""
        for message in log:
            self.advance(message)

    def lane_now_ns(self) -> Int64s:
        """The time that lanes reached: iterations x lanes x vectors, once all are done."""
        return np.stack(self._lane_now_ns)

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When tasks of a kept *iteration* ended, those of *rows*."""
        return self._block.end_ns(iteration)[rows]

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When its members of a kept *iteration* were ready, in the block's own order."""
        return self._block.member_ready_ns(iteration)

    def last_signals(self) -> Int64s:
        """Who of its ranks came last to rendezvous with other blocks, in all kept iterations.

        Rows of iteration, group of the whole, sequence, moment, rank, task.
        """
        parts = []
        for iteration in self._kept:
            ready_ns = self.member_ready_ns(iteration)[:, 0]
            rows = last_signals(self._block.layout, ready_ns, self._assignment.ranks.start)
            rows[:, 0] = self._groups[rows[:, 0]]
            parts.append(np.column_stack([np.full(len(rows), iteration), rows]))
        return np.concatenate(parts)

    def by_rank(self, last: Int64s, function: Callable[..., Any], *words: Any) -> list[Any]:
        """`function(history, rank, *words)` for all its ranks.

        *last* are those who came last to rendezvous with other blocks.
        """
        history = self._open_history(last)
        return [function(history, rank, *words) for rank in history.ranks]

    def at_rank(self, last: Int64s, function: Callable[..., Any], *words: Any) -> Any:
        """`function(history, *words)` with the history of its ranks."""
        return function(self._open_history(last), *words)

    @property
    def _kept(self) -> range:
        stop = self._assignment.iterations
        return range(stop - self._assignment.kept_iterations, stop)

    def _open_history(self, last: Int64s) -> History:
        if self._history is None:
            layout = self._block.layout
            group = np.searchsorted(self._groups, last[:, 1])
            columns = (last[:, 0], group, last[:, 2], last[:, 4], last[:, 5])
            members = {
                (iteration, of_group, sequence): Occurrence(iteration, rank, task)
                for iteration, of_group, sequence, rank, task in zip(
                    *(column.tolist() for column in columns), strict=True
                )
            }
            places = Places(layout.r_task, layout.r_position, layout.g_size, layout.g_member)
            replay = Replay(
                tuple(Timeline(index, self) for index in self._kept), self.lane_now_ns()
            )
            part = HistorySlice(self._assignment.ranks.start, places, members)
            self._history = History(self._job, self._durations, replay, part)
        return self._history

    @property
    def _is_done(self) -> bool:
        return len(self._lane_now_ns) == self._assignment.iterations

    def _walk(self, patience: int) -> Arrivals:
        found = [self._block.advance(patience)]
        while self._block.is_done and not self._is_done:
            self._lane_now_ns.append(self._block.lane_now_ns())
            if not self._is_done:
                self._block.begin_iteration()
                # Blocks that wait for the last iteration are answered before this one is walked.
                if patience or not any(len(part) for part in found):
                    found.append(self._block.advance(patience))
        arrivals = join_arrivals(found)
        arrivals.rendezvous[:, 1] = self._groups[arrivals.rendezvous[:, 1]]
        return arrivals


def _as_writable(array: NDArray[np.int64]) -> Int64s:
    """The same memory, marked writable. It is never written.

    Arrays in Ray's object store are read-only. For such an array numba would compile the whole pass
    again, which takes longer than most replays.
    """
    if array.flags.writeable:
        return array
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    # The holder keeps *array* alive; numpy keeps the holder.
    return np.asarray(SimpleNamespace(__array_interface__=interface, array=array))


@dataclass(frozen=True, slots=True)
class Failed:
    """Instead of an answer, the *error* that a question led to."""

    error: Exception


class Seat:
    """A worker process on *host*, as an actor. It holds the blocks of replays that may be read.

    A machine may join at any time, so every process compares its *program* with that of the driver
    before it works.
    """

    def __init__(self, raylet: str, host: str, program: str) -> None:
        self._fault = ""
        if program != full_identity():
            self._fault = (
                f"ray: the machine {host} has program {full_identity()}, and this one {program}. "
                "Answers of both must not be mixed: there is none. Install the same there, or "
                "remove it from the cluster (`ray stop`)."
            )
        self._place = WorkerPlace(os.getpid(), raylet, host)
        self._rank_blocks: dict[int, RankBlock] = {}

    def take(self, replay: int, part: Any, durations: Any, assignment: Assignment) -> WorkerPlace:
        """Build a block of *replay*; where it is."""
        self._check()
        host, ranks = self._place.host, assignment.ranks
        try:
            self._rank_blocks[replay] = RankBlock(part, durations, assignment, host=host)
        except MemoryError as error:
            raise ExecutionError(
                f"ray: the memory of a worker on {host} does not hold ranks "
                f"{ranks.start}-{ranks.stop - 1} ({error}). Give the job more workers or machines, "
                "so that each has fewer ranks."
            ) from None
        return self._place

    def _check(self) -> None:
        if self._fault:
            raise ExecutionError(self._fault)

    def is_started(self) -> bool:
        """Yes, once this can be answered."""
        return True

    def ask(self, replay: int, method: str, *words: Any) -> Any:
        """What a *method* of the block of *replay* returns."""
        return getattr(self._rank_blocks[replay], method)(*words)

    def answer(
        self, function: Callable[[Any, Any], Any], shared: object, chunk: Sequence[Any]
    ) -> list[Any] | Failed:
        """The answers of *function* to all items of *chunk*, or why it has none."""
        self._check()
        try:
            return [function(shared, item) for item in chunk]
        except MemoryError:
            raise
        # The caller raises it where the question was asked.
        except Exception as error:
            return Failed(error)

    def leave(self, replay: int) -> None:
        """Release a block and its memory."""
        self._rank_blocks.pop(replay, None)
