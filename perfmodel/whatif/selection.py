"""Selection: which tasks of a job a transformation is about.

A pattern is found anywhere in a task's label, in a name of its op, or in the operator or
module that it stands for, small and capital letters alike; `*` stands for anything, `|`
separates alternatives, and `&` terms that must all be found. A word in front says where to
look: `range:Optimizer.step`, `module:`, `operator:`, `kernel:`, `stream:7`, and `like:LABEL`
for an example.
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
from perfmodel.graph.job import JobGraph, Origin
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    GroupedGemm,
    HostSpan,
    HostWork,
    MemoryBound,
    Op,
    duration_of,
)
from perfmodel.graph.program import NO_ORIGIN, PLAIN, LaneKind, Program

Mask = NDArray[np.bool_]

_NAMES: dict[type[object], Callable[[Any], tuple[str, ...]]] = {
    Gemm: lambda _: ("gemm",),
    GroupedGemm: lambda _: ("gemm", "grouped_gemm"),
    Convolution: lambda _: ("convolution",),
    Attention: lambda op: ("attention", op.kernel),
    MemoryBound: lambda op: (op.operator,),
    EmbeddingOp: lambda _: ("embedding",),
    Copy: lambda op: ("copy", op.route.value),
    HostWork: lambda op: (op.operator,),
    Communication: lambda op: (op.collective.kind.value,),
}


class Where(Enum):
    """What an alternative of a pattern is looked for in."""

    ANYWHERE = "anywhere"
    RANGE = "range"
    MODULE = "module"
    OPERATOR = "operator"
    KERNEL = "kernel"
    STREAM = "stream"
    LIKE = "like"


Term = tuple[Where, str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Words to look for in labels and names."""

    text: str

    def __post_init__(self) -> None:
        if not all(words.strip("* ") for terms in self.alternatives for _, words in terms):
            raise ScenarioError(
                f"pattern: every alternative must hold a letter or digit, got {self.text!r}. "
                "Leave the pattern out to mean every task."
            )

    @property
    def alternatives(self) -> tuple[tuple[Term, ...], ...]:
        """Terms that must all be found; one alternative is enough."""
        parts = (part.split("&") for part in self.text.split("|"))
        return tuple(tuple(_parse_term(term) for term in terms) for terms in parts)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of all alternatives."""
        return tuple(term for terms in self.alternatives for term in terms)

    def matches(self, text: str) -> bool:
        """Whether an alternative that says no place is found in *text*."""
        return any(
            all(where is Where.ANYWHERE and _is_found(words, text) for where, words in terms)
            for terms in self.alternatives
        )

    def __str__(self) -> str:
        return self.text


def _parse_term(part: str) -> Term:
    word, colon, rest = part.partition(":")
    places = {where.value: where for where in Where if where is not Where.ANYWHERE}
    # Operators are called `aten::mm`: two colons are part of a name.
    if colon and word.strip() in places and not rest.startswith(":"):
        return places[word.strip()], rest
    return Where.ANYWHERE, part


def _is_found(words: str, text: str) -> bool:
    expression = ".*".join(re.escape(piece) for piece in words.split("*"))
    return re.search(expression, text, re.IGNORECASE | re.DOTALL) is not None


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

    def tasks(self, job: JobGraph, program: Program) -> list[int]:
        """The tasks of *program* that are meant, in order."""
        found: list[int] = np.flatnonzero(self.mask(job, program)).tolist()
        return found

    def collectives(self, job: JobGraph, program: Program) -> list[int]:
        """Those of them that meet other ranks."""
        return [task for task in self.tasks(job, program) if program.slot[task] != PLAIN]

    def check_found(self, job: JobGraph, ranks: RankSet | None = None) -> None:
        """Raise unless *job* has *ranks*, and some task of them is meant."""
        if ranks is not None:
            ranks.check(job)
        chosen = range(job.rank_count) if ranks is None else ranks.ranks
        programs = dict.fromkeys(int(job.rank_program[rank]) for rank in chosen)
        if not any(self.mask(job, job.programs[program]).any() for program in programs):
            raise ScenarioError(f"no task is {self.words}. {_suggestion(job, self)}")

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


def _is_match(job: JobGraph, program: Program, pattern: Pattern) -> Mask:
    found: Mask = np.zeros(program.task_count, dtype=bool)
    for terms in pattern.alternatives:
        masks = [_LOOKS[where](job, program, words) for where, words in terms]
        found |= np.logical_and.reduce(masks)
    return found


def _look_anywhere(job: JobGraph, program: Program, words: str) -> Mask:
    return (
        _by_value(program.label, lambda label: _is_found(words, job.labels[label]))
        | _by_value(
            program.op, lambda op: any(_is_found(words, name) for name in names_of(job.ops[op]))
        )
        | _by_origin(job, program, lambda one: _is_found(words, f"{one.operator}\n{one.module}"))
    )


def _look_at_kernels(job: JobGraph, program: Program, words: str) -> Mask:
    named = _by_value(program.label, lambda label: _is_found(words, job.labels[label]))
    return named & lane_mask(program, LaneWord.DEVICE)


def _look_at_streams(job: JobGraph, program: Program, words: str) -> Mask:
    del job
    # `stream:7` is not stream 17.
    chosen = [f" {lane.name}".lower().endswith(f" {words.lower()}") for lane in program.lanes]
    return np.array(chosen, dtype=bool)[program.task_lanes()]


def _look_like(job: JobGraph, program: Program, words: str) -> Mask:
    """Tasks that do the same as one labelled so: their operator, kind of work and lane agree."""
    lanes = program.task_lanes()
    kinds = [_kind_of(op) for op in job.ops]

    def key(task: int) -> tuple[str, str, LaneKind]:
        origin = _origin_of(job, program, task)
        name = job.labels[int(program.label[task])] if origin is None else origin.operator
        return name, kinds[int(program.op[task])], program.lanes[int(lanes[task])].kind

    labelled = _by_value(program.label, lambda label: _is_found(words, job.labels[label]))
    examples = {key(task) for task in np.flatnonzero(labelled).tolist()}
    keys = [key(task) in examples for task in range(program.task_count)]
    return np.array(keys, dtype=bool)


def _kind_of(op: Op) -> str:
    work = op.work if isinstance(op, Fixed) else op
    return type(work).__name__


def _origin_of(job: JobGraph, program: Program, task: int) -> Origin | None:
    number = int(program.origin[task])
    return None if number == NO_ORIGIN else job.origins[number]


def _by_value(column: NDArray[np.int32], is_meant: Callable[[int], bool]) -> Mask:
    """Which tasks have a value in *column* that is meant; every value is asked for once."""
    values, place = np.unique(column, return_inverse=True)
    meant: Mask = np.array([is_meant(value) for value in values.tolist()], dtype=bool)
    return meant[place]


def _by_origin(job: JobGraph, program: Program, is_meant: Callable[[Origin], bool]) -> Mask:
    known = {None: False} | {
        origin: is_meant(origin)
        for origin in {_origin_of(job, program, task) for task in range(program.task_count)}
        if origin is not None
    }
    found = [known[_origin_of(job, program, task)] for task in range(program.task_count)]
    return np.array(found, dtype=bool)


_LOOKS: dict[Where, Callable[[JobGraph, Program, str], Mask]] = {
    Where.ANYWHERE: _look_anywhere,
    Where.RANGE: lambda job, program, words: _by_origin(
        job, program, lambda origin: _is_found(words, origin.span)
    ),
    Where.MODULE: lambda job, program, words: _by_origin(
        job, program, lambda origin: _is_found(words, origin.module)
    ),
    Where.OPERATOR: lambda job, program, words: _by_origin(
        job, program, lambda origin: _is_found(words, origin.operator)
    ),
    Where.KERNEL: _look_at_kernels,
    Where.STREAM: _look_at_streams,
    Where.LIKE: _look_like,
}


def _durations_ns(job: JobGraph, program: Program) -> NDArray[np.int64]:
    ops, place = np.unique(program.op, return_inverse=True)
    durations = np.array([duration_of(job.ops[op]) for op in ops.tolist()], dtype=np.int64)
    return durations[place]


MOST_NEAR = 3


def _suggestion(job: JobGraph, selection: Selection) -> str:
    """Names that tasks on the lanes of *selection* do have, the nearest first."""
    names = _names_on(job, selection)
    if not names:
        return f"No task stands on a {selection.lane.value} lane."
    if selection.match is None:
        return "Ask for others."
    wanted = [words.strip("* ") for _, words in selection.match.terms]
    # A name that holds a word of the pattern is nearer than one of like spelling.
    parts = [part.lower() for words in wanted for part in re.findall(r"[A-Za-z]{3,}", words)]
    near = [name for name in names if any(part in name.lower() for part in parts)]
    for words in wanted:
        near += difflib.get_close_matches(words, names, n=MOST_NEAR, cutoff=0.3)
    shown = list(dict.fromkeys([*near, *names]))[:MOST_NEAR]
    return f"There are {', '.join(repr(name[:60]) for name in shown)}."


def _names_on(job: JobGraph, selection: Selection) -> list[str]:
    """What can be asked for on the lanes and in the place that *selection* looks at."""
    where = {place for place, _ in selection.match.terms} if selection.match else set()
    names: dict[str, None] = {}
    for program in job.programs:
        tasks = np.flatnonzero(lane_mask(program, selection.lane))
        for number in np.unique(program.origin[tasks]).tolist():
            if number != NO_ORIGIN:
                names.update(dict.fromkeys(_names_in(job.origins[number], where)))
        if not where or where & {Where.ANYWHERE, Where.KERNEL, Where.LIKE}:
            names.update(dict.fromkeys(job.labels[one] for one in np.unique(program.label[tasks])))
        if where & {Where.STREAM}:
            names.update(dict.fromkeys(lane.name for lane in program.lanes))
    return [name for name in names if name]


def _names_in(origin: Origin, where: set[Where]) -> list[str]:
    named = {
        Where.RANGE: origin.span,
        Where.MODULE: origin.module,
        Where.OPERATOR: origin.operator,
        Where.ANYWHERE: origin.operator,
    }
    return [name for place, name in named.items() if place in where]
