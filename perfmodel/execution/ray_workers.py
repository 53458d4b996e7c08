"""RayWorkers: the worker processes of one replay, each with its block of ranks.

Every order is logged before it is sent. Replay is deterministic, so a lost block is rebuilt
elsewhere from its ranks and its log, and the answer does not change. This holds while
the replay runs and afterwards, as long as its timelines may be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Arrivals
from perfmodel.engine.layout import Int64s
from perfmodel.execution.executor import OnRound, RoundStatus, WorkerPlace
from perfmodel.execution.messages import Order, Report
from perfmodel.execution.rank_block import Assignment
from perfmodel.execution.ray_cluster import Lost, RayCluster, Taken

MOST_REBUILDS = 8
"""In one replay. A cluster that loses more workers cannot finish the work."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a block is made of: references to its part of the job and of the durations."""

    part: Any
    durations: Any
    assignment: Assignment


class RayWorkers:
    """The workers of one running replay, by its *number*. Lost actors are replaced in *seats*."""

    def __init__(
        self,
        cluster: RayCluster,
        materials: Sequence[Material],
        *,
        number: int,
        seats: list[Any],
        on_round: OnRound,
    ) -> None:
        self._cluster = cluster
        self._materials = materials
        self._number = number
        self._seats = seats
        self._on_round = on_round
        self._logs: list[list[bytes]] = [[] for _ in materials]
        self._pending: list[deque[Any]] = [deque() for _ in materials]
        self.rounds = 0
        self.rebuilds = 0
        self._places: list[WorkerPlace | None] = [None for _ in materials]
        self._taken = [self._build(block) for block in self._ask_to_take()]

    @property
    def awaited(self) -> Sequence[Int64s]:
        """For every block, the rendezvous that it reports to."""
        return [taken.awaited for taken in self._taken]

    @property
    def members(self) -> Sequence[Int64s]:
        """The rendezvous members of blocks that read their own ranks."""
        return [taken.members for taken in self._taken if taken.members is not None]

    @property
    def assignments(self) -> list[Assignment]:
        """The ranks of every block."""
        return [material.assignment for material in self._materials]

    def tell(self, orders: Mapping[int, Sequence[Arrivals]]) -> None:
        """Send blocks their orders, in sequence, without waiting for them to finish."""
        for block, of_block in orders.items():
            for resolved in of_block:
                self._logs[block].append(Order(len(self._logs[block]), resolved).to_bytes())
        has_news = any(len(resolved) for of_block in orders.values() for resolved in of_block)
        if has_news or not self.rounds:
            places = tuple(place for place in self._places if place is not None)
            self._on_round(RoundStatus(self.rounds, places))
            self.rounds += 1
        for block, of_block in orders.items():
            for message in self._logs[block][-len(of_block) :]:
                self._send(block, message)

    def hear(self) -> list[tuple[int, Report]]:
        """Wait for the next reports, at least one; those of a block come in order."""
        reports: list[tuple[int, Report]] = []
        while not reports:
            waiting = [block for block, pending in enumerate(self._pending) if pending]
            heard = self._cluster.hear([self._pending[block][0] for block in waiting])
            for place, answer in heard:
                block = waiting[place]
                if isinstance(answer, Lost):
                    self._rebuild(block, answer)
                else:
                    self._pending[block].popleft()
                    reports.append((block, Report.from_bytes(answer)))
        return reports

    def ask(self, block: int, method: str, *words: Any) -> Any:
        """The answer of a block that has no pending order."""
        while True:
            asked = self._seats[block].ask.remote(self._number, method, *words)
            (answer,) = self._cluster.wait_for([asked])
            if not isinstance(answer, Lost):
                return answer
            self._rebuild(block, answer)

    def ask_all(self, method: str, *words: Any) -> list[Any]:
        """The answers of all blocks, asked at once."""
        return self.ask_each(method, [words] * len(self._materials))

    def ask_each(self, method: str, words: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers of all blocks, each asked with its own *words*, all at once."""
        asked = [
            seat.ask.remote(self._number, method, *of_block)
            for seat, of_block in zip(self._used_seats, words, strict=True)
        ]
        answers = self._cluster.wait_for(asked)
        return [
            self.ask(block, method, *words[block]) if isinstance(answer, Lost) else answer
            for block, answer in enumerate(answers)
        ]

    def dismiss(self) -> None:
        """Tell the actors to drop their blocks, without waiting."""
        for seat in self._used_seats:
            seat.leave.remote(self._number)

    @property
    def _used_seats(self) -> list[Any]:
        return self._seats[: len(self._materials)]

    def _ask_to_take(self) -> range:
        """Start building all blocks at once."""
        for block in range(len(self._materials)):
            self._pending[block].append(self._take(block))
        return range(len(self._materials))

    def _take(self, block: int) -> Any:
        material = self._materials[block]
        return self._seats[block].take.remote(
            self._number, material.part, material.durations, material.assignment
        )

    def _build(self, block: int) -> Taken:
        """Wait until a block is built, and return its description."""
        while True:
            (taken,) = self._cluster.wait_for([self._pending[block].popleft()])
            if isinstance(taken, Taken):
                self._places[block] = taken.place
                return taken
            self._replace_seat(block, taken)
            self._pending[block].append(self._take(block))

    def _send(self, block: int, message: bytes) -> None:
        self._pending[block].append(self._seats[block].advance.remote(self._number, message))

    def _rebuild(self, block: int, lost: Lost) -> None:
        """Rebuild a lost block in a new process: replay its log, then its pending orders."""
        self._replace_seat(block, lost)
        log, unheard = self._logs[block], len(self._pending[block])
        heard = len(log) - unheard
        seat = self._seats[block]
        taken, _ = self._cluster.wait_for(
            [self._take(block), seat.ask.remote(self._number, "catch_up", log[:heard])]
        )
        # Lost again: the next request notices.
        if not isinstance(taken, Lost):
            self._places[block] = taken.place
        self._pending[block].clear()
        for message in log[heard:]:
            self._send(block, message)

    def _replace_seat(self, block: int, lost: Lost) -> None:
        self.rebuilds += 1
        ranks, place = self._materials[block].assignment.ranks, self._places[block]
        if self.rebuilds > MOST_REBUILDS:
            where = "before it was in place" if place is None else f"on {place.host}"
            raise ExecutionError(
                f"ray: worker processes were lost {self.rebuilds} times in one replay, the last "
                f"{where} with ranks {ranks.start}-{ranks.stop - 1} ({lost.reason}); "
                f"{MOST_REBUILDS} are made good. If memory ran out, give the job more machines or "
                "fewer workers a machine, or use --executor serial."
            )
        self._cluster.give_up(self._seats[block])
        self._seats[block] = self._cluster.new_seat(after_loss=True)
