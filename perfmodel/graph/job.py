"""JobGraph: everything that must run in one iteration of a job, on all ranks, and its memory.

Rendezvous are not stored: the members of the rendezvous number s of a group
are the tasks with sequence s behind every endpoint (rank, slot) of that group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import Op
from perfmodel.graph.program import NO_ORIGIN, PLAIN, Int32s, Int64s, Program

RUNTIME_BYTES = 2**30
"""Driver context, communicator buffers and fragmentation of the allocator: assumed, 1 GiB."""
NO_GROUP = -1
"""What `rank_group` holds where a rank has no such communicator."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ordered ranks that communicate together."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a task stands for, as far as somebody said; labels are only for show.

    An *operator* of a model, inside a *module*, called in a *line* of a script
    or in a *span* that a profiler was told to name.
    """

    operator: str
    module: str = ""
    line: str = ""
    span: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a job says about itself: name, origin, and sentences of assumption.

    *stack* names the software that issues it and *peak_memory_bytes* what every rank
    allocates at most; both are empty where nobody knows. A recording names the *device*
    that it ran on as its driver does, and how many *gpus_per_host* there were, where known; and
    by *others_late_ns* a step was longer because of ranks that were not recorded.
    """

    name: str
    source: str = ""
    assumptions: tuple[str, ...] = ()
    stack: str = ""
    peak_memory_bytes: tuple[int, ...] = ()
    device: str = ""
    gpus_per_host: int = 0
    others_late_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class JobGraph:
    """Programs, which rank runs which, and which group stands behind each slot.

    *rank_group* is ranks x slots: the group of every endpoint, or NO_GROUP. In
    a folded job a rank stands for many and may be an endpoint of a group twice.
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
        picked: Int64s = counts[self.rank_program]
        return picked

    def rank_rows(self) -> Int64s:
        """Where the rows of each rank begin in columns of all tasks, and the end."""
        return np.concatenate([[0], np.cumsum(self.task_counts())])

    def program_of(self, rank: int) -> Program:
        """The program that *rank* runs."""
        return self.programs[int(self.rank_program[rank])]

    def label_of(self, rank: int, task: int) -> str:
        """What *task* of *rank* is shown as."""
        return self.labels[int(self.program_of(rank).label[task])]

    def op_of(self, rank: int, task: int) -> Op:
        """What *task* of *rank* carries out."""
        return self.ops[int(self.program_of(rank).op[task])]

    def group_of(self, rank: int, task: int) -> Group | None:
        """The group that *task* of *rank* communicates with, if it does."""
        slot = int(self.program_of(rank).slot[task])
        if slot == PLAIN:
            return None
        return self.groups[int(self.rank_group[rank, slot])]

    def endpoints(self) -> Endpoints:
        """All (rank, slot) pairs that have a group, ordered by group, rank, slot."""
        ranks, slots = np.nonzero(self.rank_group != NO_GROUP)
        group = self.rank_group[ranks, slots]
        order = np.lexsort((slots, ranks, group))
        counts = np.bincount(group, minlength=len(self.groups))
        start = np.concatenate([[0], np.cumsum(counts)])
        return Endpoints(
            group_start=start.astype(np.int64),
            rank=ranks[order].astype(np.int32),
            slot=slots[order].astype(np.int32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Endpoints:
    """Who stands behind each group: rows group_start[g] to group_start[g + 1]."""

    group_start: NDArray[np.int64]
    rank: Int32s
    slot: Int32s


def with_own_origins(job: JobGraph) -> JobGraph:
    """*job* with an origin of its own for every task, numbered program after program.

    What is known of a task is then found by that number, however the job is changed.
    """
    starts = np.concatenate([[0], np.cumsum([program.task_count for program in job.programs])])
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


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes that one purpose takes."""

    name: str
    size_bytes: int


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
        """The part that takes most; the first of equals."""
        return max(self.parts, key=lambda part: part.size_bytes)
