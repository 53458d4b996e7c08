"""RayCrew: the worker processes of one replay, each with its block.

Every order is logged before it is sent. Replay is deterministic, so a block
whose process is gone is made again from its ranks and its log, elsewhere, and
the answer does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Arrivals
from perfmodel.engine.layout import Int32s
from perfmodel.execution.exchange import Bools
from perfmodel.execution.executor import OnRound, RoundStatus, WorkerPlace
from perfmodel.execution.messages import Order, Report
from perfmodel.execution.rank_block import Assignment, BlockResult
from perfmodel.execution.ray_cluster import Lost, RayCluster

MOST_REBUILDS = 8
"""In one replay. Whoever loses more has a cluster that cannot finish the work."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a replay reads: references to job and durations, and which block reads what."""

    job: Any
    durations: Any
    assignments: tuple[Assignment, ...]


class RayCrew:
    """One replay at work. Lost seats are replaced in the list that was handed in."""

    def __init__(
        self, cluster: RayCluster, material: Material, *, seats: list[Any], on_round: OnRound
    ) -> None:
        self._cluster = cluster
        self._material = material
        self._seats = seats
        self._on_round = on_round
        self._logs: list[list[bytes]] = [[] for _ in material.assignments]
        self.rounds = 0
        self.rebuilds = 0
        self._places: list[WorkerPlace] = []
        taken = self._ask_all("take", {block: self._to_take(block) for block in self._blocks})
        self.awaited: Sequence[Bools] = [awaited for awaited, _ in taken]
        self._places = [place for _, place in taken]

    def advance(self, iteration: int, news: Mapping[int, Arrivals]) -> Mapping[int, Report]:
        """Tell blocks their *news* in an *iteration*; what each of these reports."""
        for block, resolved in news.items():
            order = Order(len(self._logs[block]), iteration, resolved)
            self._logs[block].append(order.to_bytes())
        self._on_round(RoundStatus(self.rounds, iteration, len(news), tuple(self._places)))
        answers = self._ask("advance", {block: (self._logs[block][-1],) for block in news})
        self.rounds += 1
        return {block: Report.from_bytes(answer) for block, answer in answers.items()}

    def heads(self) -> Int32s:
        """The next task of every lane of all blocks, in the order of ranks."""
        return np.concatenate(self._ask_all("heads", dict.fromkeys(self._blocks, ())))

    def collect(self) -> list[BlockResult]:
        """What every block found out."""
        return self._ask_all("collect", dict.fromkeys(self._blocks, ()))

    def dismiss(self) -> None:
        """Let the seats drop their blocks; nobody waits for that."""
        for block in self._blocks:
            self._seats[block].leave.remote()

    @property
    def _blocks(self) -> range:
        return range(len(self._material.assignments))

    def _to_take(self, block: int) -> tuple[Any, Any, Assignment]:
        material = self._material
        return material.job, material.durations, material.assignments[block]

    def _ask_all(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        answers = self._ask(method, arguments)
        return [answers[block] for block in self._blocks]

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Ask blocks, all at once, and those that get lost once more when they are rebuilt."""
        answers: dict[int, Any] = {}
        open_blocks = list(arguments)
        while open_blocks:
            asked = [
                getattr(self._seats[block], method).remote(*arguments[block])
                for block in open_blocks
            ]
            found = dict(zip(open_blocks, self._cluster.wait_for(asked), strict=True))
            lost = {block: answer for block, answer in found.items() if isinstance(answer, Lost)}
            answers.update((block, found[block]) for block in open_blocks if block not in lost)
            for block, answer in lost.items():
                self._rebuild(block, answer)
            open_blocks = list(lost)
        return answers

    def _rebuild(self, block: int, lost: Lost) -> None:
        """Make a lost block again, up to its last logged round, in a new process."""
        self.rebuilds += 1
        ranks = self._material.assignments[block].ranks
        if self.rebuilds > MOST_REBUILDS:
            raise ExecutionError(
                f"ray: worker processes were lost {self.rebuilds} times in one replay, the last "
                f"with ranks {ranks.start}-{ranks.stop - 1} ({lost.reason}); {MOST_REBUILDS} are "
                "made good. If memory ran out, ask for fewer workers or use --executor serial."
            )
        self._cluster.give_up(self._seats[block])
        seat = self._cluster.new_seat()
        self._seats[block] = seat
        taken, _ = self._cluster.wait_for(
            [seat.take.remote(*self._to_take(block)), seat.catch_up.remote(self._logs[block])]
        )
        # Lost again: whoever asks next hears of it.
        if self._places and not isinstance(taken, Lost):
            self._places[block] = taken[1]
