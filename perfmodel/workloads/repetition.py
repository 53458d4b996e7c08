"""Repetition: what an iteration does over and over is written once and then pasted.

Layers and micro-batches repeat the same operators. A stretch is written the
first time it is met in a state, where tasks that it leans on count by their
places only; met again in the same state it is pasted. The program is the same
to the last task as if everything had been written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfmodel.graph.builder import Dependency, Mark, Naming, Piece, ProgramBuilder
from perfmodel.graph.program import Lane

Cell = list[Any]
"""Tasks, dependencies, pieces of host time or nothing: what a writer keeps between two tasks."""


class Stateful(Protocol):
    """Something that writes tasks and can say, and be told, what it is in the middle of."""

    def state(self) -> list[Cell]:
        """Everything that decides what is written next, as lists."""
        ...

    def restore(self, cells: Sequence[Cell]) -> None:
        """Go on from *cells*."""
        ...


@dataclass(frozen=True, slots=True)
class _Task:
    """A task in a state that is kept: one that was leaned on, or one of the stretch itself."""

    place: int
    is_outside: bool


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """A piece, and the states of all writers after it."""

    piece: Piece
    after: list[list[Cell]]
    value: object


@dataclass(slots=True)
class KnownStretches:
    """What was written before, for programs that share ops and labels.

    Lanes of the same names do the same.
    """

    stretch_of: dict[Hashable, Stretch] = field(default_factory=dict)
    _number_of_lanes: dict[tuple[Lane, ...], int] = field(default_factory=dict)

    def number(self, lanes: tuple[Lane, ...]) -> int:
        """A number for *lanes*: names are compared once a program instead of at every look."""
        return self._number_of_lanes.setdefault(lanes, len(self._number_of_lanes))


@dataclass(slots=True)
class Repetition:
    """Writes stretches to *program*, which has all its lanes; *writers* are all whose state counts.

    *known* may be shared by programs.
    """

    program: ProgramBuilder
    writers: Sequence[Stateful]
    known: KnownStretches = field(default_factory=KnownStretches)
    _lanes: int | None = None

    def write(
        self, key: Hashable, write: Callable[[], int | None], *, naming: Naming
    ) -> int | None:
        """Write the stretch called *key*, or paste it; the task that *write* answers.

        Equal keys must stand for equal stretches, but for the *naming* of their labels.
        """
        if self._lanes is None:
            self._lanes = self.known.number(self.program.lanes)
        leans_on: dict[int, int] = {}
        state = _freeze([writer.state() for writer in self.writers], leans_on)
        name = (self._lanes, key, state)
        stretch = self.known.stretch_of.get(name)
        tasks = list(leans_on)
        start = self.program.task_count
        if stretch is not None:
            self.program.paste(stretch.piece, naming=naming, leans_on=tasks)
            for writer, cells in zip(self.writers, stretch.after, strict=True):
                writer.restore(_thaw(cells, start, tasks))
            value = _thaw(stretch.value, start, tasks)
            return value if isinstance(value, int) else None
        mark = self.program.mark()
        answer = write()
        self.known.stretch_of[name] = self._keep(mark, naming, leans_on, answer)
        return answer

    def _keep(
        self, mark: Mark, naming: Naming, leans_on: dict[int, int], answer: int | None
    ) -> Stretch:
        after = [writer.state() for writer in self.writers]
        return Stretch(
            piece=self.program.cut(mark, naming=naming, leans_on=list(leans_on)),
            after=[_relative(cells, mark.tasks, leans_on) for cells in after],
            value=_relative(answer, mark.tasks, leans_on),
        )


def _freeze(value: Any, leans_on: dict[int, int]) -> Hashable:
    """*value* with tasks by the order in which they come; *leans_on* collects them."""
    if isinstance(value, list):
        return tuple([_freeze(one, leans_on) for one in value])
    if isinstance(value, int):
        return leans_on.setdefault(value, len(leans_on))
    if isinstance(value, Dependency):
        place = leans_on.setdefault(value.task, len(leans_on))
        # As a number: a word of an enumeration takes long to hash.
        return (place, int(value.anchor), value.lag_ns, value.distance)
    return value  # type: ignore[no-any-return]  # words and pairs of a word and a number


def _relative(value: Any, start: int, leans_on: dict[int, int]) -> Any:
    if isinstance(value, list):
        return [_relative(one, start, leans_on) for one in value]
    if isinstance(value, int):
        if value >= start:
            return _Task(value - start, is_outside=False)
        return _Task(leans_on[value], is_outside=True)
    if isinstance(value, Dependency):
        task = _relative(value.task, start, leans_on)
        return (task, value.anchor, value.lag_ns, value.distance)
    return value


def _thaw(value: Any, start: int, tasks: Sequence[int]) -> Any:
    if isinstance(value, list):
        return [_thaw(one, start, tasks) for one in value]
    if isinstance(value, _Task):
        return tasks[value.place] if value.is_outside else start + value.place
    if isinstance(value, tuple) and value and isinstance(value[0], _Task):
        task, anchor, lag_ns, distance = value
        return Dependency(_thaw(task, start, tasks), anchor, lag_ns, distance)
    return value
