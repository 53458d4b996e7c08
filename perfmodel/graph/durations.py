"""DurationTable: the duration of every task of every rank, separate from the job graph.

Ranks with the same program and costs share rows. A table may hold several vectors (samples,
what-ifs), which are replayed together in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import GraphError
from perfmodel.graph.job import JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class DurationTable:
    """Durations in nanoseconds: tasks x vectors, and the first row of each rank."""

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

    def vectors(self, first: int, stop: int) -> DurationTable:
        """The table with only the vectors from *first* to before *stop*."""
        return DurationTable(np.ascontiguousarray(self.values_ns[:, first:stop]), self.rank_offset)

    def rows_of(self, job: JobGraph, rank: int) -> slice | NDArray[np.int32]:
        """The rows of *rank* of *job* in the table."""
        offset = int(self.rank_offset[rank])
        return slice(offset, offset + job.program_of(rank).task_count)

    def row_of(self, job: JobGraph, rank: int, task: int) -> int:  # noqa: ARG002  used by OpDurations
        """The row of one *task* of *rank* in the table."""
        return int(self.rank_offset[rank]) + task

    def of_rank(self, job: JobGraph, rank: int) -> NDArray[np.int64]:
        """Tasks x vectors of one *rank* of *job*."""
        return self.values_ns[self.rows_of(job, rank)]

    def of_ranks(self, ranks: NDArray[np.int32] | NDArray[np.int64]) -> DurationTable:
        """The table of a job with some *ranks* of this one."""
        return replace(self, rank_offset=self.rank_offset[ranks])

    def check(self, job: JobGraph) -> None:
        """Raise unless every rank of *job* has a duration of zero or more for every task."""
        if len(self.rank_offset) != job.rank_count:
            raise GraphError(
                f"durations: must have one row per rank, got {len(self.rank_offset)} rows for "
                f"{job.rank_count} ranks."
            )
        ends = self.rank_offset + job.task_counts()
        if (self.rank_offset < 0).any() or (ends > len(self.values_ns)).any():
            raise GraphError("durations: the rows of a rank are outside the table.")
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


@dataclass(frozen=True, slots=True, eq=False)
class OpDurations(DurationTable):
    """Durations by op, for a job whose tasks state them: ops x vectors.

    No row per task is stored. *rank_offset* only distinguishes ranks of different programs.
    """

    def rows_of(self, job: JobGraph, rank: int) -> slice | NDArray[np.int32]:
        """The rows of *rank* of *job* in the table."""
        return job.program_of(rank).op

    def row_of(self, job: JobGraph, rank: int, task: int) -> int:
        """The row of one *task* of *rank* in the table."""
        return int(job.program_of(rank).op[task])

    def check(self, job: JobGraph) -> None:
        """Raise unless every rank of *job* has a duration of zero or more for every task."""
        if len(self.values_ns) != len(job.ops) or len(self.rank_offset) != job.rank_count:
            raise GraphError(
                f"durations: must have one row per op, got {len(self.values_ns)} rows for "
                f"{len(job.ops)} ops."
            )
        if (self.values_ns < 0).any():
            raise GraphError("durations: must not be negative, but that of an op is.")


def build_durations(job: JobGraph, rows: Sequence[NDArray[np.int64]]) -> DurationTable:
    """Durations from one array per rank; the same array object is stored once."""
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
    """Durations from one array per program, shared by all its ranks."""
    return build_durations(job, [rows[int(program)] for program in job.rank_program])
