"""Repetition: equal layers and micro-batches are written once and then pasted.

A stretch of operators is written the first time it occurs in a given state, in
which earlier tasks that it depends on count by their order only. When it occurs
again in the same state, it is pasted. The program is the same, task by task, as
if everything had been written. A stretch leads from one state to another, so a row of known
stretches is pasted without reading or setting the writers' state in between.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfmodel.graph.builder import ProgramBuilder
from perfmodel.graph.program import Dependency, Lane
from perfmodel.graph.tables import Naming, Piece

Cell = list[Any]
"""Tasks, dependencies, pieces of host time or nothing: what a writer keeps between two tasks."""


class Stateful(Protocol):
    """Something that writes tasks, and whose state between two tasks can be read and set."""

    def state(self) -> list[Cell]:
        """Everything that decides what is written next, as lists."""
        ...

    def restore(self, cells: Sequence[Cell]) -> None:
        """Continue from *cells*."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """A piece, the states of all writers after it, and the task that was returned for it.

    Tasks of the stretch count from 0, those before it from -1 down. *state* is the number of the
    state after it, and *tasks* are those that the state refers to.
    """

    piece: Piece
    after: list[list[Cell]]
    answer: int | None
    state: int
    tasks: tuple[int, ...]


@dataclass(slots=True)
class KnownStretches:
    """What was written before, for programs that share ops and labels.

    States are numbered, because the frozen form of one takes long to hash.
    """

    by_lanes: dict[tuple[Lane, ...], dict[Hashable, Stretch]] = field(default_factory=dict)
    _number_of: dict[Hashable, int] = field(default_factory=dict)

    def number(self, state: list[list[Cell]]) -> tuple[int, list[int]]:
        """The number of *state*, equal where only the numbers of tasks differ, and its tasks."""
        place_of: dict[int, int] = {}
        frozen = _freeze(state, place_of)
        return self._number_of.setdefault(frozen, len(self._number_of)), list(place_of)


@dataclass(slots=True)
class Repetition:
    """Writes stretches to *program*, which has all its lanes; *writers* are all with a state.

    *known* may be shared by programs. After a stretch was pasted the writers are behind; whoever
    writes with them next calls `resume` first.
    """

    program: ProgramBuilder
    writers: Sequence[Stateful]
    known: KnownStretches = field(default_factory=KnownStretches)
    _stretches: dict[Hashable, Stretch] | None = None
    _state: tuple[int, list[int]] | None = None
    _behind: tuple[Stretch, Callable[[int], int]] | None = None

    def write(
        self, key: Hashable, write: Callable[[], int | None], *, naming: Naming
    ) -> int | None:
        """Write the stretch called *key*, or paste it; the task that *write* returns.

        Equal keys must mean equal stretches, but for the *naming* of their labels.
        """
        if self._stretches is None:
            self._stretches = self.known.by_lanes.setdefault(self.program.lanes, {})
        number, tasks = self._state or self.known.number(self._read())
        start, name = self.program.task_count, (key, number)
        stretch = self._stretches.get(name)
        if stretch is not None:
            self.program.paste(stretch.piece, naming=naming, leans_on=tasks)

            def absolute(task: int) -> int:
                return start + task if task >= 0 else tasks[~task]

            self._state = stretch.state, [absolute(task) for task in stretch.tasks]
            self._behind = stretch, absolute
            return None if stretch.answer is None else absolute(stretch.answer)
        self.resume()
        place_of = {task: place for place, task in enumerate(tasks)}

        def relative(task: int) -> int:
            return task - start if task >= start else ~place_of[task]

        piece, answer = self.program.cut(write, naming=naming, leans_on=tasks)
        self.resume()
        after = [_with_tasks(cells, relative) for cells in self._read()]
        state, left = self.known.number(after)
        self._stretches[name] = Stretch(
            piece, after, None if answer is None else relative(answer), state, tuple(left)
        )
        return answer

    def resume(self) -> None:
        """Bring the writers to where the program is, to write with them directly."""
        if self._behind is not None:
            stretch, absolute = self._behind
            for writer, cells in zip(self.writers, stretch.after, strict=True):
                writer.restore(_with_tasks(cells, absolute))
        self._state = self._behind = None

    def _read(self) -> list[list[Cell]]:
        return [writer.state() for writer in self.writers]


def _freeze(value: Any, place_of: dict[int, int]) -> Hashable:
    """*value* with tasks by the order in which they occur, collected in *place_of*."""
    if isinstance(value, list):
        return tuple([_freeze(one, place_of) for one in value])
    if isinstance(value, int):
        return place_of.setdefault(value, len(place_of))
    if isinstance(value, Dependency):
        place = place_of.setdefault(value.task, len(place_of))
        # The anchor as a number: enumerations are slow to hash.
        return (place, int(value.anchor), value.lag_ns, value.distance)
    return value  # type: ignore[no-any-return]  # words, and pairs of a word and a number


def _with_tasks(value: Any, number: Callable[[int], int]) -> Any:
    """*value* with each of its tasks renumbered by *number*."""
    if isinstance(value, list):
        return [_with_tasks(one, number) for one in value]
    if isinstance(value, int):
        return number(value)
    if isinstance(value, Dependency):
        return Dependency(number(value.task), value.anchor, value.lag_ns, value.distance)
    return value
