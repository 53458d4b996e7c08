"""Evidence: the replayed job behind an answer, for those who want to see every task.

Ranks that do the same were folded, so rank r of the job here stands for
`class_ranks[r]`. Times count from the start of the iteration that is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One iteration of a folded job: when every task ended, and which ranks each stands for.

    *end_ns* and *ready_ns* are flat: the tasks of rank 0 in program order, then
    those of rank 1. A task that was ready before it started waited for others.
    """

    job: JobGraph
    durations: DurationTable
    end_ns: Int64s
    ready_ns: Int64s
    class_ranks: tuple[tuple[int, ...], ...]

    def rows_of(self, rank: int) -> slice:
        """Where the tasks of *rank* stand."""
        counts = self.job.task_counts()
        start = int(counts[:rank].sum())
        return slice(start, start + int(counts[rank]))

    def ends_of(self, rank: int) -> Int64s:
        """When the tasks of *rank* ended."""
        return self.end_ns[self.rows_of(rank)]

    def starts_of(self, rank: int) -> Int64s:
        """When the tasks of *rank* started."""
        starts: Int64s = self.ends_of(rank) - self.durations.of_rank(self.job, rank)[:, 0]
        return starts

    def waits_of(self, rank: int) -> Int64s:
        """How long the tasks of *rank* waited for other ranks."""
        waits: Int64s = self.starts_of(rank) - self.ready_ns[self.rows_of(rank)]
        return waits
