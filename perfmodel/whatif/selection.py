"""Selection: which tasks of a job a transformation is about."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import durations_of
from perfmodel.graph.job import JobGraph
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
    work_of,
)
from perfmodel.graph.program import NO_ORIGIN, PLAIN, LaneKind, Program
from perfmodel.whatif.passes import TrainingPass, find_passes
from perfmodel.whatif.patterns import Pattern, Where, is_found

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


_ORIGIN_FIELDS = {Where.RANGE: "span", Where.MODULE: "module", Where.OPERATOR: "operator"}


class LaneWord(Enum):
    """Which lanes are selected: one kind, all of the host, all of the device, or any."""

    ANY = "any"
    HOST = "host"
    DEVICE = "device"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    LOADER = "loader"

    def covers(self, kind: LaneKind) -> bool:
        """Whether lanes of *kind* are selected."""
        if self is LaneWord.ANY:
            return True
        if self is LaneWord.DEVICE:
            return kind.is_device
        return self is LaneWord(kind.value)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Some ranks, or some of several matching tasks, counted from 0: `3`, `0-3`, `0+2+5-7`."""

    values: tuple[int, ...]

    def check_ranks(self, job: JobGraph) -> None:
        """Raise unless *job* has all these ranks."""
        beyond = [rank for rank in self.values if rank >= job.rank_count]
        if beyond:
            raise ScenarioError(
                f"rank {beyond[0]}: the job has ranks 0 to {job.rank_count - 1}. Name one of them."
            )

    def __str__(self) -> str:
        return "+".join(str(value) for value in self.values)


class Only(Enum):
    """How many ranks the selected tasks involve."""

    ANY = "any"
    PLAIN = "plain"
    COLLECTIVES = "collectives"


@dataclass(frozen=True, slots=True)
class Selection:
    """Tasks that match a pattern, on some lanes, longer than *longer_ns*.

    *number* picks some of those in a program, in the order of its lanes. Of these, *only* leaves
    out tasks of one or of several ranks, *unless* those that match it, and *beside* all that are
    not next to a task that matches it. With *partner* each is paired with one that matches that.
    *lacks* is what to say of a job without such tasks.
    """

    match: Pattern | None = None
    lane: LaneWord = LaneWord.ANY
    longer_ns: int = -1
    number: Numbers | None = None
    only: Only = Only.ANY
    unless: Pattern | None = None
    beside: Pattern | None = None
    partner: Pattern | None = None
    lacks: str = ""

    @property
    def whole(self) -> Selection:
        """The same before tasks are left out of it."""
        return Selection(self.match, self.lane, self.longer_ns, self.number)

    def mask(self, job: JobGraph, program: Program) -> Mask:
        """Which tasks of *program* are selected."""
        found = lane_mask(program, self.lane)
        if self.match is not None:
            found &= _find(job, program, self.match, self.lane)
        if self.longer_ns >= 0:
            found &= durations_of(job, program) > self.longer_ns
        if self.number is not None:
            places = np.flatnonzero(found)
            picked = [value for value in self.number.values if value < len(places)]
            found = np.zeros(program.task_count, dtype=bool)
            found[places[picked]] = True
        if self.only is not Only.ANY:
            found &= (program.slot == PLAIN) == (self.only is Only.PLAIN)
        if self.unless is not None:
            found &= ~Selection(self.unless, self.lane).mask(job, program)
        if self.beside is not None:
            near = Selection(self.beside, self.lane).mask(job, program)
            is_next = near[1:] & (np.diff(program.task_lanes()) == 0)
            is_previous = near[:-1] & (np.diff(program.task_lanes()) == 0)
            found &= ~near & (np.append(is_next, False) | np.append(False, is_previous))
        return found

    def tasks(self, job: JobGraph, program: Program) -> list[int]:
        """The selected tasks of *program*, in order."""
        found: list[int] = np.flatnonzero(self.mask(job, program)).tolist()
        return found

    def by_program(
        self, job: JobGraph, ranks: Numbers | None = None
    ) -> Iterator[tuple[Program, Mask, int]]:
        """Every program of *ranks* (or all), its selected tasks, and how many of them run it."""
        chosen = range(job.rank_count) if ranks is None else ranks.values
        counts = Counter(int(job.rank_program[rank]) for rank in chosen)
        for number, count in counts.items():
            program = job.programs[number]
            yield program, self.mask(job, program), count

    def check_found(self, job: JobGraph, ranks: Numbers | None = None) -> None:
        """Raise unless *job* has *ranks*, and some task of them is selected.

        There may be no tasks *beside* others.
        """
        if ranks is not None:
            ranks.check_ranks(job)
        found = (mask.any() for _, mask, _ in self.whole.by_program(job, ranks))
        if self.beside is None and not any(found):
            said = " ".join(text for text in (self.lacks, _suggestion(job, self)) if text)
            raise ScenarioError(f"no task is {self.words}. {said}")

    @property
    def words(self) -> str:
        """The selection as text."""
        match = "any task" if self.match is None else f"like {self.match.text!r}"
        lane = "" if self.lane is LaneWord.ANY else f" on a {self.lane.value} lane"
        longer = f" longer than {self.longer_ns} ns" if self.longer_ns >= 0 else ""
        number = "" if self.number is None else f", number {self.number}"
        return f"{match}{lane}{longer}{number}"


def lane_mask(program: Program, lane: LaneWord) -> Mask:
    """Which tasks of *program* run on lanes that *lane* covers."""
    covered = np.array([lane.covers(of.kind) for of in program.lanes], dtype=bool)
    return covered[program.task_lanes()]


def _find(job: JobGraph, program: Program, pattern: Pattern, lane: LaneWord) -> Mask:
    """Which tasks *pattern* matches, by the first choice that matches any on *lane*."""
    found, on_lane = np.zeros(program.task_count, dtype=bool), lane_mask(program, lane)
    for choice in pattern.choices:
        alternatives = (
            np.logical_and.reduce([_look(job, program, *term) for term in terms])
            for terms in choice
        )
        found = np.logical_or.reduce(list(alternatives))
        if (found & on_lane).any():
            break
    return found


_UPDATE = Pattern("range:Optimizer.step|optimizer/|adam|sgd|adagrad|multi_tensor")


def _look_for_pass(job: JobGraph, program: Program, words: str) -> Mask:
    """Which tasks belong to the pass called *words*."""
    says_backward = _look(job, program, Where.ANYWHERE, "backward")
    is_update = _find(job, program, _UPDATE, LaneWord.COMPUTE)
    passes = find_passes(program, says_backward, is_update)
    return np.asarray(passes == TrainingPass[words.upper()])


def names_of(op: Op) -> tuple[str, ...]:
    """The names by which *op* can be selected."""
    if isinstance(op, Fixed):
        return (op.name, *(() if op.work is None else names_of(op.work)))
    if isinstance(op, HostSpan):
        return tuple(part.operator for part in op.parts)
    return _NAMES[type(op)](op)


def _look(job: JobGraph, program: Program, where: Where, words: str) -> Mask:
    """Which tasks one term of a pattern matches."""
    texts = _texts_of(job)
    if where in _ORIGIN_FIELDS:
        return texts.origins[_ORIGIN_FIELDS[where]].mask(words, program.origin)
    if where is Where.STREAM:
        # `stream:7` is not stream 17.
        chosen = [f" {lane.name}".lower().endswith(f" {words.lower()}") for lane in program.lanes]
        return np.array(chosen, dtype=bool)[program.task_lanes()]
    if where is Where.PASS:
        return _look_for_pass(job, program, words)
    labelled = texts.labels.mask(words, program.label)
    if where is Where.KERNEL:
        return labelled & lane_mask(program, LaneWord.DEVICE)
    if where is Where.LIKE:
        return _look_alike(job, program, labelled)
    return labelled | texts.names.mask(words, program.op) | _by_place(texts, program, words)


def _by_place(texts: _Texts, program: Program, words: str) -> Mask:
    """Tasks whose operator or module has *words*."""
    return texts.origins["operator"].mask(words, program.origin) | texts.origins["module"].mask(
        words, program.origin
    )


@dataclass(frozen=True, slots=True, eq=False)
class _TextTable:
    """The different *texts* of many things, and the number of that of each; the last has none."""

    texts: tuple[tuple[str, ...], ...]
    number: NDArray[np.int32]

    @classmethod
    def of(cls, all_texts: Iterable[tuple[str, ...]]) -> _TextTable:
        """The table of things that have any number of texts each."""
        numbers: dict[tuple[str, ...], int] = {}
        column = [numbers.setdefault(text, len(numbers)) for text in all_texts]
        # NO_ORIGIN is -1: the last one, which matches nothing.
        column.append(len(numbers))
        return cls(tuple(numbers), np.array(column, dtype=np.int32))

    def mask(self, words: str, column: NDArray[np.int32]) -> Mask:
        """Which of the things numbered in *column* have a text with *words*."""
        found = [any(is_found(words, text) for text in texts) for texts in self.texts]
        return np.array([*found, False], dtype=bool)[self.number[column]]


@dataclass(frozen=True, slots=True, eq=False)
class _Texts:
    """What patterns look at: labels, names of ops, and the fields of origins."""

    labels: _TextTable
    names: _TextTable
    origins: dict[str, _TextTable]


@lru_cache(maxsize=2)
def _texts_of(job: JobGraph) -> _Texts:
    """The texts of *job*: tens of thousands of ops and origins share a few thousand."""
    fields = ("operator", "module", "span")
    return _Texts(
        labels=_TextTable.of((label,) for label in job.labels),
        names=_TextTable.of(names_of(op) for op in job.ops),
        origins={
            name: _TextTable.of((getattr(one, name),) for one in job.origins) for name in fields
        },
    )


def _look_alike(job: JobGraph, program: Program, examples: Mask) -> Mask:
    """Tasks with the operator, kind of work and kind of lane of one of *examples*."""
    lanes = program.task_lanes()
    kinds = [type(work_of(op)) for op in job.ops]

    def key(task: int) -> tuple[str, type[object], LaneKind]:
        origin = int(program.origin[task])
        label = job.labels[int(program.label[task])]
        name = label if origin == NO_ORIGIN else job.origins[origin].operator
        return name, kinds[int(program.op[task])], program.lanes[int(lanes[task])].kind

    wanted = {key(task) for task in np.flatnonzero(examples).tolist()}
    return np.array([key(task) in wanted for task in range(program.task_count)], dtype=bool)


MOST_NEAR = 3


def _suggestion(job: JobGraph, selection: Selection) -> str:
    """Names of tasks on the lanes of *selection*, the nearest first."""
    names = _names_on(job, selection)
    if not names:
        return f"No task runs on a {selection.lane.value} lane."
    if selection.match is None:
        return "Select others."
    wanted = [words.strip("* ") for _, words in selection.match.terms]
    # A name that contains a word of the pattern is nearer than one of similar spelling.
    parts = [part.lower() for words in wanted for part in re.findall(r"[A-Za-z]{3,}", words)]
    near = [name for name in names if any(part in name.lower() for part in parts)]
    for words in wanted:
        near += difflib.get_close_matches(words, names, n=MOST_NEAR, cutoff=0.3)
    shown = list(dict.fromkeys([*near, *names]))[:MOST_NEAR]
    return f"There are {', '.join(repr(name[:60]) for name in shown)}."


def _names_on(job: JobGraph, selection: Selection) -> list[str]:
    """Names on the lanes and in the places that *selection* looks at."""
    where = {place for place, _ in selection.match.terms} if selection.match else set()
    names: dict[str, None] = {}
    for program in job.programs:
        tasks = np.flatnonzero(lane_mask(program, selection.lane))
        for number in np.unique(program.origin[tasks]).tolist():
            if number != NO_ORIGIN:
                fields = _ORIGIN_FIELDS | {Where.ANYWHERE: "operator"}
                placed = [name for place, name in fields.items() if place in where]
                names |= dict.fromkeys(getattr(job.origins[number], name) for name in placed)
        if not where or where & {Where.ANYWHERE, Where.KERNEL, Where.LIKE}:
            names |= dict.fromkeys(job.labels[one] for one in np.unique(program.label[tasks]))
        if Where.STREAM in where:
            names |= dict.fromkeys(lane.name for lane in program.lanes)
    return [name for name in names if name]
