"""Evidence: the replayed job behind an answer, for those who want to see every task.

Ranks that do the same were folded, so rank r of the job here stands for
`class_ranks[r]`, and is called by the lowest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.provenance import Provenance
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.breakdown import Window
from perfmodel.engine.history import History, Occurrence
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Replay
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.folded_costs import FoldedCosts


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One *iteration* of a folded job, and the *window* of time that its answer is about."""

    history: History
    iteration: int
    window: Window
    class_ranks: tuple[tuple[int, ...], ...]
    priced: PricedJob | None = None

    def provenance_of(self, rank: int, task: int) -> Provenance | None:
        """How the duration of *task* of *rank* is known, where prices were kept."""
        if self.priced is None:
            return None
        row = self.priced.durations.row_of(self.priced.job, rank, task)
        return Provenance(int(self.priced.provenance[row]))

    @property
    def job(self) -> JobGraph:
        """The folded job."""
        return self.history.job

    def starts_ns(self, rank: int) -> Int64s:
        """When the tasks of *rank* started."""
        return self.history.start_ns(self.iteration, rank)

    def ends_ns(self, rank: int) -> Int64s:
        """When the tasks of *rank* ended."""
        return self.history.end_ns(self.iteration, rank)

    def waits_ns(self, rank: int) -> Int64s:
        """How long the tasks of *rank* waited for other ranks."""
        waits: Int64s = self.starts_ns(rank) - self.history.ready_ns(self.iteration, rank)
        return waits

    def last_member(self, rank: int, task: int) -> Occurrence:
        """The member that the rendezvous of *task* waited for."""
        return self.history.last_member(Occurrence(self.iteration, rank, task))


def build_evidence(folded: FoldedCosts, answer: Replay) -> Evidence:
    """What is shown of *answer*: its last iteration but one, if it has several.

    There the replay knows what ranks that are ahead did next; in the very last
    they would seem to idle.
    """
    ends_ns = answer.iteration_end_ns[:, 0]
    shown = max(len(ends_ns) - 2, 0)
    return Evidence(
        history=History(folded.priced.job, folded.priced.durations, answer),
        iteration=shown,
        window=Window(int(ends_ns[shown - 1]) if shown else 0, int(ends_ns[shown])),
        class_ranks=folded.class_ranks,
        priced=folded.priced,
    )
