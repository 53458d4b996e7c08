"""Repetition: equal layers and micro-batches are written once and then pasted.

A stretch of operators is written the first time it occurs in a given state, in
which earlier tasks that it depends on count by their order only. When it occurs
again in the same state, it is pasted. The program is the same, task by task, as
if everything had been written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfmodel.graph.builder import Dependency, Naming, Piece, ProgramBuilder
from perfmodel.graph.program import Lane

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
    """A piece, the states of all writers after it, and the task that was returned for it."""

    piece: Piece
    after: list[list[Cell]]
    answer: int | None


KnownStretches = dict[tuple[Lane, ...], dict[Hashable, Stretch]]
"""Stretches that were written before, for programs that share ops and labels, by their lanes."""


@dataclass(slots=True)
class Repetition:
    """Writes stretches to *program*, which has all its lanes; *writers* are all with a state.

    *known* may be shared by programs.
    """

    program: ProgramBuilder
    writers: Sequence[Stateful]
    known: KnownStretches = field(default_factory=dict)
    _stretches: dict[Hashable, Stretch] | None = None

    def write(
        self, key: Hashable, write: Callable[[], int | None], *, naming: Naming
    ) -> int | None:
        """Write the stretch called *key*, or paste it; the task that *write* returns.

        Equal keys must mean equal stretches, but for the *naming* of their labels.
        """
        if self._stretches is None:
            self._stretches = self.known.setdefault(self.program.lanes, {})
        place_of: dict[int, int] = {}
        name = (key, _freeze([writer.state() for writer in self.writers], place_of))
        tasks, start = list(place_of), self.program.task_count
        stretch = self._stretches.get(name)
        if stretch is not None:
            self.program.paste(stretch.piece, naming=naming, leans_on=tasks)

            def absolute(task: int) -> int:
                return start + task if task >= 0 else tasks[~task]

            for writer, cells in zip(self.writers, stretch.after, strict=True):
                writer.restore(_with_tasks(cells, absolute))
            return None if stretch.answer is None else absolute(stretch.answer)

        def relative(task: int) -> int:
            # Tasks of the stretch count from 0; those before it from -1 down.
            return task - start if task >= start else ~place_of[task]

        piece, answer = self.program.cut(write, naming=naming, leans_on=tasks)
        self._stretches[name] = Stretch(
            piece,
            [_with_tasks(writer.state(), relative) for writer in self.writers],
            None if answer is None else relative(answer),
        )
        return answer


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
