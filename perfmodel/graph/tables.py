"""Tables: the ops, labels and origins of a job, each once, and pieces of programs to repeat.

A piece is cut from a program and added again elsewhere under other names, so that equal layers are
written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.job import Origin
from perfmodel.graph.ops import Op


@dataclass(slots=True)
class Tables:
    """Ops, labels and origins shared by all programs of a job, each kept once."""

    op_index: dict[Op, int] = field(default_factory=dict)
    label_index: dict[str, int] = field(default_factory=dict)
    origin_index: dict[Origin, int] = field(default_factory=dict)
    _origin_of_label: dict[str, int] = field(default_factory=dict)
    _name_of: dict[Naming, dict[str, tuple[int, int]]] = field(default_factory=dict)
    # The same op object comes thousands of times; lookup by identity avoids hashing its fields.
    # Keeping the object prevents reuse of its id.
    _op_of_id: dict[int, tuple[Op, int]] = field(default_factory=dict)

    def op(self, op: Op) -> int:
        """The index of *op*, added if it is new."""
        known = self._op_of_id.get(id(op))
        if known is None:
            known = (op, self.op_index.setdefault(op, len(self.op_index)))
            self._op_of_id[id(op)] = known
        return known[1]

    def lone_op(self, op: Op) -> int:
        """The same for an object that comes once, which is not worth remembering."""
        return self.op_index.setdefault(op, len(self.op_index))

    def label(self, label: str) -> int:
        """The index of *label*, added if it is new."""
        return self.label_index.setdefault(label, len(self.label_index))

    def origin(self, origin: Origin | None, label: str) -> int:
        """The index of *origin*, added if it is new; None is the operator named as *label*."""
        if origin is not None:
            return self.origin_index.setdefault(origin, len(self.origin_index))
        if label not in self._origin_of_label:
            self._origin_of_label[label] = self.origin(Origin(label), label)
        return self._origin_of_label[label]

    def name(self, label: str, naming: Naming) -> tuple[int, int]:
        """The indices of *label* under *naming* and of the operator named so."""
        known = self._name_of.setdefault(naming, {})
        if label not in known:
            full = naming.put_on(label)
            known[label] = self.label(full), self.origin(None, full)
        return known[label]


class Naming(Protocol):
    """The common part of the labels of a piece at one place; hashable."""

    def take_off(self, label: str) -> str:
        """*label* without the part of this place."""
        ...

    def put_on(self, label: str) -> str:
        """*label* with the part of this place."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive tasks of a program, to be added again elsewhere.

    Rows are those of the builder, with tasks and rendezvous numbered from the start of the piece
    and labels numbered in *labels*. *members* are the rows that take part in rendezvous, *slot_of*
    their places among the slots of *sequences*, which are how many of each there are. *outside*
    are the dependencies on earlier tasks, *source_of* their places among those tasks.
    """

    tasks: NDArray[np.int64]
    deps: NDArray[np.int64]
    labels: tuple[str, ...]
    members: NDArray[np.int64]
    slot_of: NDArray[np.int64]
    sequences: Mapping[int, int]
    outside: NDArray[np.int64]
    source_of: NDArray[np.int64]
    _named: dict[Naming, NDArray[np.int64]] = field(default_factory=dict)

    def named(self, tables: Tables, naming: Naming) -> NDArray[np.int64]:
        """The rows of the tasks, with labels and their origins as *tables* number them."""
        rows = self._named.get(naming)
        if rows is None:
            numbers = [tables.name(label, naming) for label in self.labels]
            rows = self.tasks.copy()
            rows[:, 2:4] = np.array(numbers, dtype=np.int64).reshape(-1, 2)[self.tasks[:, 2]]
            self._named[naming] = rows
        return rows
