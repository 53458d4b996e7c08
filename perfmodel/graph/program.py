"""Program: the tasks of one rank in one iteration, as columns.

Tasks are stored lane by lane in order: the task before t on its lane is t - 1, and a lane is a
slice. Ranks that run the same tasks share one program. They differ in the groups of their
communicator slots and in durations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes8 = NDArray[np.uint8]

PLAIN = -1
"""Slot and sequence of a task without rendezvous."""
NO_ORIGIN = -1
"""Origin of a task that was added to a job and has none."""


class LaneKind(Enum):
    """What executes a lane."""

    HOST = "host"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    LOADER = "loader"

    @property
    def is_device(self) -> bool:
        """Whether the lane is a GPU stream, not a host thread."""
        return self in (LaneKind.COMPUTE, LaneKind.COMMUNICATION, LaneKind.COPY)


@dataclass(frozen=True, slots=True)
class Lane:
    """One in-order line of work of a rank: a host thread or a device stream."""

    name: str
    kind: LaneKind


class Anchor(IntEnum):
    """Which moment of the earlier task a dependency waits for."""

    END = 0
    START = 1


class Dependency(NamedTuple):
    """Wait for *task* of the same program: its end or start, plus *lag_ns*.

    *distance* is how many iterations earlier that task ran; 0 is this one.
    """

    task: int
    anchor: Anchor = Anchor.END
    lag_ns: int = 0
    distance: int = 0


class Role(IntFlag):
    """How a task takes part in a rendezvous.

    A member that WAITS starts when every member that SIGNALS is ready. In most collectives all
    members do both. The root of a broadcast only signals and the receivers only wait, so an early
    root does not wait.
    """

    NONE = 0
    SIGNALS = 1
    WAITS = 2
    BOTH = 3


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The columns of one rank's iteration; `ProgramBuilder` makes them.

    Task t executes `op[t]` (an index into the job's ops), comes from `origin[t]` (an index into its
    origins, or NO_ORIGIN), is shown as `label[t]`, and joins rendezvous number `sequence[t]` of
    communicator `slot[t]` (both PLAIN for an ordinary task). Its dependencies are rows
    `dep_start[t]` to `dep_start[t + 1]` of the dep columns. *dep_distance* is how many iterations
    earlier the source ran.
    """

    lanes: tuple[Lane, ...]
    lane_start: Int32s
    op: Int32s
    label: Int32s
    origin: Int32s
    slot: Int32s
    sequence: Int32s
    role: Bytes8
    dep_start: Int32s
    dep_task: Int32s
    dep_anchor: Bytes8
    dep_distance: Bytes8
    dep_lag_ns: Int64s

    @property
    def task_count(self) -> int:
        """Number of tasks in one iteration."""
        return len(self.op)

    @property
    def slot_count(self) -> int:
        """Number of communicator slots that the tasks use."""
        return int(self.slot.max(initial=PLAIN)) + 1

    def task_lanes(self) -> Int32s:
        """The lane of every task."""
        lengths = np.diff(self.lane_start)
        return np.repeat(np.arange(len(self.lanes), dtype=np.int32), lengths)

    def dep_owners(self) -> Int64s:
        """The task that waits, for every dependency."""
        return np.repeat(np.arange(self.task_count), np.diff(self.dep_start))

    def is_on_device(self) -> NDArray[np.bool_]:
        """Which tasks run on a device stream."""
        is_device = np.array([lane.kind.is_device for lane in self.lanes], dtype=bool)
        return is_device[self.task_lanes()]

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """All columns by name, in the order they are stored."""
        return {name: getattr(self, name) for name in COLUMN_TYPES}


_ANCHORS = tuple(Anchor)


@lru_cache(maxsize=2)
def read_dependencies(program: Program) -> list[list[Dependency]]:
    """What every task of *program* waits for; kept, because jobs are compared task by task."""
    anchors = [_ANCHORS[anchor] for anchor in program.dep_anchor.tolist()]
    rest = program.dep_lag_ns.tolist(), program.dep_distance.tolist()
    flat = list(map(Dependency, program.dep_task.tolist(), anchors, *rest))
    return [flat[first:stop] for first, stop in pairwise(program.dep_start.tolist())]


def sources_of(program: Program) -> dict[int, list[int]]:
    """What every task follows in its iteration: its dependencies and the task before on its lane.

    `TopologicalSorter` takes it, for an order in which tasks can be executed.
    """
    waits = read_dependencies(program)
    sources = [[dep.task for dep in after if not dep.distance] for after in waits]
    firsts = set(program.lane_start.tolist())
    for task, own in enumerate(sources):
        if task not in firsts:
            own.append(task - 1)
    return dict(enumerate(sources))


def offsets(counts: ArrayLike) -> Int64s:
    """The first row of each of several parts with *counts* rows, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class Programs(Sequence[Program], ABC):
    """Programs that are made on access."""

    @overload
    def __getitem__(self, index: int) -> Program: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Program]: ...
    def __getitem__(self, index: int | slice) -> Program | Sequence[Program]:
        places = range(len(self))[index]
        return self.make(places) if isinstance(places, int) else [self[place] for place in places]

    @abstractmethod
    def make(self, index: int) -> Program:
        """Program number *index*."""


COLUMN_TYPES: dict[str, type[np.generic]] = {
    "lane_start": np.int32,
    "op": np.int32,
    "label": np.int32,
    "origin": np.int32,
    "slot": np.int32,
    "sequence": np.int32,
    "role": np.uint8,
    "dep_start": np.int32,
    "dep_task": np.int32,
    "dep_anchor": np.uint8,
    "dep_distance": np.uint8,
    "dep_lag_ns": np.int64,
}
"""Every column of a program and its type."""
