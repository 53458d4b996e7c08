"""Selection: which tasks of a job a transformation is about."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import durations_of
from perfmodel.extensions.whatif.passes import Mask, TrainingPass, find_passes
from perfmodel.extensions.whatif.patterns import LabelPattern, Where, texts_of
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    work_of,
)
from perfmodel.graph.program import NO_ORIGIN, PLAIN, LaneKind, Program

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

    match: LabelPattern | None = None
    lane: LaneWord = LaneWord.ANY
    longer_ns: int = -1
    number: Numbers | None = None
    only: Only = Only.ANY
    unless: LabelPattern | None = None
    beside: LabelPattern | None = None
    partner: LabelPattern | None = None
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


def _find(job: JobGraph, program: Program, pattern: LabelPattern, lane: LaneWord) -> Mask:
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


_UPDATE = LabelPattern("range:Optimizer.step|optimizer/|adam|sgd|adagrad|multi_tensor")


def _look_for_pass(job: JobGraph, program: Program, words: str) -> Mask:
    """Which tasks belong to the pass called *words*."""
    says_backward = _look(job, program, Where.ANYWHERE, "backward")
    is_update = _find(job, program, _UPDATE, LaneWord.COMPUTE)
    passes = find_passes(program, says_backward, is_update)
    return np.asarray(passes == TrainingPass[words.upper()])


def _look(job: JobGraph, program: Program, where: Where, words: str) -> Mask:
    """Which tasks one term of a pattern matches."""
    texts = texts_of(job)
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
    for name in ("operator", "module"):
        labelled |= texts.origins[name].mask(words, program.origin)
    return labelled | texts.names.mask(words, program.op)


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
