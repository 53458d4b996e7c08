"""DurationTable: how long every task of every rank takes, apart from the structure.

Ranks that share a program and cost the same share one row. A table may hold
several vectors (samples, what-ifs), replayed side by side in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import GraphError
from perfmodel.graph.job import JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class DurationTable:
    """Durations in nanoseconds: tasks x vectors, and where each rank's row begins."""

    values_ns: NDArray[np.int64]
    rank_offset: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.values_ns.ndim != 2:
            raise GraphError(
                f"durations: must be tasks x vectors, got {self.values_ns.ndim} dimension(s)."
            )

    @property
    def vector_count(self) -> int:
        """Number of duration vectors."""
        return int(self.values_ns.shape[1])

    def vector(self, index: int) -> DurationTable:
        """The table with only vector number *index*."""
        return DurationTable(
            np.ascontiguousarray(self.values_ns[:, index : index + 1]), self.rank_offset
        )

    def of_rank(self, job: JobGraph, rank: int) -> NDArray[np.int64]:
        """Tasks x vectors of one *rank* of *job*."""
        offset = int(self.rank_offset[rank])
        return self.values_ns[offset : offset + job.program_of(rank).task_count]

    def check(self, job: JobGraph) -> None:
        """Raise unless every rank of *job* has a duration of zero or more for every task."""
        if len(self.rank_offset) != job.rank_count:
            raise GraphError(
                f"durations: must have one row a rank, got {len(self.rank_offset)} rows for "
                f"{job.rank_count} ranks."
            )
        ends = self.rank_offset + job.task_counts()
        if (self.rank_offset < 0).any() or (ends > len(self.values_ns)).any():
            raise GraphError("durations: a rank's row lies outside the table.")
        if (self.values_ns < 0).any():
            self._refuse_negative(job)

    def _refuse_negative(self, job: JobGraph) -> None:
        for rank in range(job.rank_count):
            tasks = np.flatnonzero((self.of_rank(job, rank) < 0).any(axis=1))
            if len(tasks):
                task = int(tasks[0])
                value = int(self.of_rank(job, rank)[task].min())
                raise GraphError(
                    f"rank {rank}, task {task} {job.label_of(rank, task)!r}: duration must not be "
                    f"negative, got {value} ns."
                )


def build_durations(job: JobGraph, rows: Sequence[NDArray[np.int64]]) -> DurationTable:
    """Durations from one row a rank; equal row objects are stored once."""
    offset_of_row: dict[int, int] = {}
    kept: list[NDArray[np.int64]] = []
    offsets = np.empty(job.rank_count, dtype=np.int64)
    total = 0
    for rank, row in enumerate(rows):
        if id(row) not in offset_of_row:
            offset_of_row[id(row)] = total
            kept.append(row)
            total += len(row)
        offsets[rank] = offset_of_row[id(row)]
    values = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    if values.ndim == 1:
        values = values[:, np.newaxis]
    table = DurationTable(np.ascontiguousarray(values, dtype=np.int64), offsets)
    table.check(job)
    return table


def build_shared_durations(job: JobGraph, rows: Sequence[NDArray[np.int64]]) -> DurationTable:
    """Durations from one row a program, shared by all its ranks."""
    return build_durations(job, [rows[int(program)] for program in job.rank_program])
