"""JobGraph: everything that must run in one iteration of a job, on all ranks, and its memory.

Rendezvous are not stored: the members of rendezvous number s of a group are the tasks with
sequence s at every endpoint (rank, slot) of that group.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import Op
from perfmodel.graph.program import (
    COLUMN_TYPES,
    NO_ORIGIN,
    PLAIN,
    Int32s,
    Int64s,
    Program,
    offsets,
)

RUNTIME_BYTES = 2**30
"""Driver context, communicator buffers and fragmentation of the allocator: assumed, 1 GiB."""
NO_GROUP = -1
"""Entry of `rank_group` if a rank does not have that communicator."""
MEMORY_SIGMA = 0.08
"""How far predicted peaks are off, as a logarithm: from runs that state theirs, and from runs that
ran, or ran out of memory, near the limit (`validate fits`)."""


def fit_probability(needed_bytes: int, memory_bytes: int) -> float:
    """How likely it is that a peak predicted as *needed_bytes* is below *memory_bytes*."""
    return 0.5 * math.erfc(math.log(needed_bytes / memory_bytes) / (MEMORY_SIGMA * math.sqrt(2.0)))


@dataclass(frozen=True, slots=True)
class Group:
    """Ordered ranks that communicate together."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a task comes from, as far as known; labels are only for display.

    An *operator* of a model, inside a *module*, called in a *line* of a script or in a named
    *span* of a profiler.
    """

    operator: str
    module: str = ""
    line: str = ""
    span: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Name, source and assumptions of a job.

    *stack* is the software that issues it, *peak_memory_bytes* the peak of every rank; both may be
    empty. A recording states its *device* (the driver's name) and *gpus_per_host*, if known, and by
    how much steps were longer because of ranks that were not recorded (*others_late_ns*). An
    iteration of all ranks trains so many *samples* and *tokens*; 0 if that is not known. A job that
    *is_emulated* was made by running a script. *model* names the widths of a layer or the tables:
    jobs that train one model have the same, however it is split.
    """

    name: str
    source: str = ""
    assumptions: tuple[str, ...] = ()
    stack: str = ""
    peak_memory_bytes: tuple[int, ...] = ()
    device: str = ""
    gpus_per_host: int = 0
    others_late_ns: int = 0
    samples: int = 0
    tokens: int = 0
    is_emulated: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class JobGraph:
    """Programs, the program of each rank, and the group of each slot.

    *rank_group* is ranks x slots: the group of every endpoint, or NO_GROUP. In a folded job a rank
    represents many and may be an endpoint of a group twice.
    """

    ops: tuple[Op, ...]
    labels: tuple[str, ...]
    origins: tuple[Origin, ...]
    programs: Sequence[Program]
    rank_program: Int32s
    groups: tuple[Group, ...]
    rank_group: Int32s
    facts: JobFacts = field(default_factory=lambda: JobFacts("job"))

    @property
    def rank_count(self) -> int:
        """Number of ranks."""
        return len(self.rank_program)

    @property
    def task_count(self) -> int:
        """Number of tasks of all ranks in one iteration."""
        return int(self.task_counts().sum())

    def task_counts(self) -> Int64s:
        """Number of tasks of every rank."""
        counts = np.array([program.task_count for program in self.programs], dtype=np.int64)
        return counts[self.rank_program]

    def rank_rows(self) -> Int64s:
        """The first row of each rank in columns of all tasks, and the end."""
        return offsets(self.task_counts())

    def program_of(self, rank: int) -> Program:
        """The program that *rank* runs."""
        return self.programs[int(self.rank_program[rank])]

    def label_of(self, rank: int, task: int) -> str:
        """The label of *task* of *rank*."""
        return self.labels[int(self.program_of(rank).label[task])]

    def op_of(self, rank: int, task: int) -> Op:
        """The op of *task* of *rank*."""
        return self.ops[int(self.program_of(rank).op[task])]

    def group_of(self, rank: int, task: int) -> Group | None:
        """The group of *task* of *rank*; None if it does not communicate."""
        slot = int(self.program_of(rank).slot[task])
        if slot == PLAIN:
            return None
        return self.groups[int(self.rank_group[rank, slot])]

    def digest(self) -> bytes:
        """Equal if and only if programs, ranks and groups are, under equal ops and labels."""
        found = hashlib.blake2b(self.rank_program.tobytes() + self.rank_group.tobytes())
        for program in self.programs:
            for name in COLUMN_TYPES:
                found.update(getattr(program, name).tobytes())
        return found.digest()

    def members(self) -> tuple[Int64s, Int64s]:
        """The ranks of all groups in a row, and the group of each."""
        sizes = np.array([len(group.ranks) for group in self.groups], dtype=np.int64)
        group = np.repeat(np.arange(len(sizes)), sizes)
        ranks = chain.from_iterable(group.ranks for group in self.groups)
        return np.fromiter(ranks, np.int64, len(group)), group

    def endpoints(self) -> Endpoints:
        """All (rank, slot) pairs that have a group, ordered by group, rank, slot."""
        ranks, slots = np.nonzero(self.rank_group != NO_GROUP)
        group = self.rank_group[ranks, slots]
        order = np.lexsort((slots, ranks, group))
        return Endpoints(
            group_start=offsets(np.bincount(group, minlength=len(self.groups))),
            rank=ranks[order].astype(np.int32),
            slot=slots[order].astype(np.int32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Endpoints:
    """The endpoints of group g: rows group_start[g] to group_start[g + 1]."""

    group_start: NDArray[np.int64]
    rank: Int32s
    slot: Int32s


def split_bytes(values: NDArray[Any], bounds: NDArray[np.integer[Any]]) -> list[bytes]:
    """The bytes of the *values* between each two of *bounds*, to tell them apart."""
    data, ends = values.tobytes(), (bounds * values.itemsize).tolist()
    return [data[first:stop] for first, stop in pairwise(ends)]


def with_own_origins(job: JobGraph) -> JobGraph:
    """*job* with a separate origin for every task, numbered program by program.

    That number identifies a task, however the job is changed.
    """
    starts = offsets([program.task_count for program in job.programs])
    column = np.concatenate([program.origin for program in job.programs]).tolist()
    return replace(
        job,
        origins=tuple(
            Origin("") if origin == NO_ORIGIN else job.origins[origin] for origin in column
        ),
        programs=tuple(
            replace(program, origin=np.arange(start, start + program.task_count, dtype=np.int32))
            for program, start in zip(job.programs, starts.tolist(), strict=False)
        ),
    )


USUAL_ADVICE = "Use a smaller batch or more hosts."


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """The memory of one purpose; *advice* says what to change where it is too much."""

    name: str
    size_bytes: int
    advice: str = USUAL_ADVICE


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The parts of one rank's peak, in a fixed order; parts may be zero."""

    parts: tuple[MemoryPart, ...]

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def largest(self) -> MemoryPart:
        """The largest part; the first of equals."""
        return max(self.parts, key=lambda part: part.size_bytes)
