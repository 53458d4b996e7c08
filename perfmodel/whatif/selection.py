"""Selection: which tasks of a job a transformation is about.

A pattern is found anywhere in a task's label or in a name of its op, small and
capital letters alike; `*` stands for anything and `|` separates alternatives.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    HostSpan,
    HostWork,
    MemoryBound,
    Op,
)
from perfmodel.graph.program import LaneKind, Program

Mask = NDArray[np.bool_]

_NAMES: dict[type[object], Callable[[Any], tuple[str, ...]]] = {
    Gemm: lambda _: ("gemm",),
    Convolution: lambda _: ("convolution",),
    Attention: lambda op: ("attention", op.kernel),
    MemoryBound: lambda op: (op.operator,),
    EmbeddingOp: lambda _: ("embedding",),
    Copy: lambda op: ("copy", op.route.value),
    HostWork: lambda op: (op.operator,),
    Communication: lambda op: (op.collective.kind.value,),
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """Words to look for in labels and names."""

    text: str

    def __post_init__(self) -> None:
        if not all(part.strip("* ") for part in self.text.split("|")):
            raise ScenarioError(
                f"pattern: every alternative must hold a letter or digit, got {self.text!r}. "
                "Leave the pattern out to mean every task."
            )

    def matches(self, text: str) -> bool:
        """Whether the pattern is found in *text*."""
        alternatives = (
            ".*".join(re.escape(piece) for piece in part.split("*"))
            for part in self.text.split("|")
        )
        return re.search("|".join(alternatives), text, re.IGNORECASE | re.DOTALL) is not None

    def __str__(self) -> str:
        return self.text


class LaneWord(Enum):
    """Which lanes are meant: one kind, all of the host, all of the device, or any."""

    ANY = "any"
    HOST = "host"
    DEVICE = "device"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    LOADER = "loader"

    def covers(self, kind: LaneKind) -> bool:
        """Whether lanes of *kind* are meant."""
        if self is LaneWord.ANY:
            return True
        if self is LaneWord.DEVICE:
            return kind.is_device
        return self is LaneWord(kind.value)


@dataclass(frozen=True, slots=True)
class RankSet:
    """Ranks as people write them: `3`, `0-3`, `0+2+5-7`."""

    ranks: tuple[int, ...]

    def check(self, job: JobGraph) -> None:
        """Raise unless *job* has all these ranks."""
        beyond = [rank for rank in self.ranks if rank >= job.rank_count]
        if beyond:
            raise ScenarioError(
                f"rank {beyond[0]}: the job has ranks 0 to {job.rank_count - 1}. Name one of them."
            )

    def __str__(self) -> str:
        return "+".join(str(rank) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Which of several tasks that match are meant, counted from 0: `3`, `3+12+21`."""

    values: tuple[int, ...]

    def __str__(self) -> str:
        return "+".join(str(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class Selection:
    """Tasks that match a pattern, on some lanes, longer than *longer_ns*.

    *number* picks some of those in a program, in the order of its lanes.
    """

    match: Pattern | None = None
    lane: LaneWord = LaneWord.ANY
    longer_ns: int = -1
    number: Numbers | None = None

    def mask(self, job: JobGraph, program: Program) -> Mask:
        """Which tasks of *program* are meant."""
        found = lane_mask(program, self.lane)
        if self.match is not None:
            found &= _is_match(job, program, self.match)
        if self.longer_ns >= 0:
            found &= _durations_ns(job, program) > self.longer_ns
        if self.number is not None:
            places = np.flatnonzero(found)
            picked = [value for value in self.number.values if value < len(places)]
            found = np.zeros(program.task_count, dtype=bool)
            found[places[picked]] = True
        return found

    def check_found(self, job: JobGraph, ranks: RankSet | None = None) -> None:
        """Raise unless some task of *ranks* is meant."""
        chosen = range(job.rank_count) if ranks is None else ranks.ranks
        programs = dict.fromkeys(int(job.rank_program[rank]) for rank in chosen)
        if not any(self.mask(job, job.programs[program]).any() for program in programs):
            raise ScenarioError(f"no task is {self.words}. {_suggestion(job, self.match)}")

    @property
    def words(self) -> str:
        """The selection for people."""
        match = "any task" if self.match is None else f"like {self.match.text!r}"
        lane = "" if self.lane is LaneWord.ANY else f" on a {self.lane.value} lane"
        longer = f" longer than {self.longer_ns} ns" if self.longer_ns >= 0 else ""
        number = "" if self.number is None else f", number {self.number}"
        return f"{match}{lane}{longer}{number}"


def lane_mask(program: Program, lane: LaneWord) -> Mask:
    """Which tasks of *program* stand on lanes that *lane* covers."""
    covered = np.array([lane.covers(of.kind) for of in program.lanes], dtype=bool)
    return covered[program.task_lanes()]


def names_of(op: Op) -> tuple[str, ...]:
    """The words under which *op* can be asked for."""
    if isinstance(op, Fixed):
        return (op.name, *(() if op.work is None else names_of(op.work)))
    if isinstance(op, HostSpan):
        return tuple(part.operator for part in op.parts)
    return _NAMES[type(op)](op)


def duration_of(op: Op) -> int:
    """The duration that *op* states; one that is still to be priced is refused."""
    if isinstance(op, Fixed):
        return op.duration_ns
    raise ScenarioError(
        f"{type(op).__name__} has no duration yet, so it cannot be changed. Say on which machine "
        "the job runs (--topology), or price it with `pin_job` first."
    )


def _is_match(job: JobGraph, program: Program, pattern: Pattern) -> Mask:
    found: Mask = np.zeros(program.task_count, dtype=bool)
    of_label = {int(label) for label in np.unique(program.label)}
    labels = [label for label in of_label if pattern.matches(job.labels[label])]
    ops = [
        op
        for op in np.unique(program.op).tolist()
        if any(pattern.matches(name) for name in names_of(job.ops[op]))
    ]
    found |= np.isin(program.label, labels) | np.isin(program.op, ops)
    return found


def _durations_ns(job: JobGraph, program: Program) -> NDArray[np.int64]:
    ops, place = np.unique(program.op, return_inverse=True)
    durations = np.array([duration_of(job.ops[op]) for op in ops.tolist()], dtype=np.int64)
    return durations[place]


def _suggestion(job: JobGraph, pattern: Pattern | None) -> str:
    if pattern is None:
        return "Look for other lanes."
    names = list(dict.fromkeys([*job.labels, *(name for op in job.ops for name in names_of(op))]))
    near = difflib.get_close_matches(pattern.text, names, n=3, cutoff=0.3) or names[:3]
    return f"Labels here are such as {', '.join(repr(name[:60]) for name in near)}."
