"""RayWorkers: the worker processes of one replay, each with its block of ranks.

Every order is logged before it is sent. Replay is deterministic, so a lost block is rebuilt
elsewhere from its ranks and its log, and the answer does not change. This holds while
the replay runs and afterwards, as long as its timelines may be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Arrivals
from perfmodel.execution.executor import OnRound, RoundStatus, WorkerPlace
from perfmodel.execution.on_ray.cluster import Lost, RayCluster, WorkerCall
from perfmodel.execution.rank_block import Assignment
from perfmodel.execution.rounds import Message

MOST_REBUILDS = 8
"""In one replay. A cluster that loses more workers cannot finish the work."""

Material = tuple[Any, Any, Assignment]
"""What a block is made of: references to its part of the job and of the durations, and its work."""


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
        self._pending: list[deque[WorkerCall]] = [deque() for _ in materials]
        self.rounds = 0
        self.rebuilds = 0
        self._places: list[WorkerPlace | None] = [None for _ in materials]
        taken = cluster.wait_for([self._take(block) for block in range(len(materials))])
        for block, answer in enumerate(taken):
            if isinstance(answer, Lost):
                self._rebuild(block, answer)
            else:
                self._places[block] = answer

    def tell(self, orders: Mapping[int, Sequence[Arrivals]]) -> None:
        """Send blocks their orders, in sequence, without waiting for them to finish."""
        for block, of_block in orders.items():
            for resolved in of_block:
                self._logs[block].append(Message(len(self._logs[block]), resolved).to_bytes())
        has_news = any(len(resolved) for of_block in orders.values() for resolved in of_block)
        if has_news or not self.rounds:
            places = tuple(place for place in self._places if place is not None)
            self._on_round(RoundStatus(self.rounds, places))
            self.rounds += 1
        for block, of_block in orders.items():
            self._send(block, self._logs[block][-len(of_block) :])

    def hear(self) -> list[tuple[int, Message]]:
        """Wait for the next reports, at least one; those of a block come in order."""
        reports: list[tuple[int, Message]] = []
        while not reports:
            waiting = [block for block, pending in enumerate(self._pending) if pending]
            heard = self._cluster.hear([self._pending[block][0] for block in waiting])
            for place, answer in heard:
                block = waiting[place]
                if isinstance(answer, Lost):
                    self._rebuild(block, answer)
                else:
                    self._pending[block].popleft()
                    reports.append((block, Message.from_bytes(answer)))
        return reports

    def ask(self, block: int, method: str, *words: Any) -> Any:
        """The answer of a block that has no pending order."""
        while True:
            asked = self._call(block, "ask", method, *words)
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
            self._call(block, "ask", method, *of_block) for block, of_block in enumerate(words)
        ]
        answers = self._cluster.wait_for(asked)
        return [
            self.ask(block, method, *words[block]) if isinstance(answer, Lost) else answer
            for block, answer in enumerate(answers)
        ]

    def dismiss(self) -> None:
        """Tell the actors to drop their blocks, without waiting."""
        for block in range(len(self._materials)):
            self._call(block, "leave")

    def _take(self, block: int) -> WorkerCall:
        return self._call(block, "take", *self._materials[block])

    def _call(self, block: int, method: str, *words: Any) -> WorkerCall:
        return self._cluster.call(self._seats[block], method, self._number, *words)

    def _send(self, block: int, messages: Sequence[bytes]) -> None:
        self._pending[block].extend(self._call(block, "ask", "advance", one) for one in messages)

    def _rebuild(self, block: int, lost: Lost) -> None:
        """Rebuild a lost block in a new process: replay its log, then its pending orders."""
        log = self._logs[block]
        heard = len(log) - len(self._pending[block])
        taken: WorkerPlace | Lost = lost
        while isinstance(taken, Lost):
            self._replace_seat(block, taken)
            building = self._take(block)
            catching_up = self._call(block, "ask", "catch_up", log[:heard])
            taken, _ = self._cluster.wait_for([building, catching_up])
        self._places[block] = taken
        self._pending[block].clear()
        self._send(block, log[heard:])

    def _replace_seat(self, block: int, lost: Lost) -> None:
        self.rebuilds += 1
        ranks, place = self._materials[block][-1].ranks, self._places[block]
        if self.rebuilds > MOST_REBUILDS:
            where = "before it had started" if place is None else f"on {place.host}"
            raise ExecutionError(
                f"ray: worker processes were lost {self.rebuilds} times in one replay, the last "
                f"{where} with ranks {ranks.start}-{ranks.stop - 1} ({lost.reason}); "
                f"at most {MOST_REBUILDS} are replaced. If memory ran out, give the job more "
                f"machines or "
                "fewer workers per machine, or use --executor serial."
            )
        self._cluster.replace(self._seats, block)
