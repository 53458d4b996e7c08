"""Estimates: durations of many ops as columns, with uncertainty and provenance.

A relative sigma is the standard deviation of the natural logarithm of
measured over predicted time, so a 90 % interval is
duration x exp(-1.645 sigma) to duration x exp(+1.645 sigma).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.provenance import Provenance
from perfmodel.costs.calibration_files import Entry, entries_for
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

Kind = TypeVar("Kind")


FloatColumn = NDArray[np.float64]
CodeColumn = NDArray[np.int8]

INTERVAL_SIGMAS = 1.6448536269514722
"""Half-width of a 90 % interval of a normal distribution, in standard deviations."""


def interval_of(predicted: float, relative_sigma: float) -> tuple[float, float]:
    """The 90 % interval of a prediction whose logarithm has that standard deviation."""
    factor = math.exp(INTERVAL_SIGMAS * relative_sigma)
    return predicted / factor, predicted * factor


class Bound(IntEnum):
    """What a duration is limited by."""

    COMPUTE = 0
    MEMORY = 1
    CACHE = 2
    LATENCY = 3
    LINK = 4
    HOST = 5
    UNKNOWN = 6

    @property
    def word(self) -> str:
        """The name used in reports and files."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """One row per op: duration, relative sigma, provenance and bound as columns."""

    duration_ns: FloatColumn
    relative_sigma: FloatColumn
    provenance: CodeColumn
    bound: CodeColumn

    def __post_init__(self) -> None:
        count = len(self.duration_ns)
        for column in (self.relative_sigma, self.provenance, self.bound):
            assert len(column) == count, "columns of estimates must have one length"
        assert bool(np.all(np.isfinite(self.duration_ns))), "a duration must be finite"
        assert bool(np.all(self.duration_ns >= 0)), "a duration must not be negative"

    def __len__(self) -> int:
        return len(self.duration_ns)

    def take(self, rows: NDArray[np.integer[Any]]) -> Estimates:
        """A copy of the rows numbered *rows*, in that order."""
        return Estimates(*(getattr(self, column.name)[rows] for column in fields(self)))

    @property
    def low_ns(self) -> FloatColumn:
        """Lower ends of the 90 % intervals."""
        return self.duration_ns * np.exp(-INTERVAL_SIGMAS * self.relative_sigma)

    @property
    def high_ns(self) -> FloatColumn:
        """Upper ends of the 90 % intervals."""
        return self.duration_ns * np.exp(INTERVAL_SIGMAS * self.relative_sigma)


def build_estimates(
    duration_ns: FloatColumn,
    *,
    relative_sigma: FloatColumn | float,
    provenance: CodeColumn | Provenance,
    bound: CodeColumn | Bound,
) -> Estimates:
    """Estimates of *duration_ns*; a single value fills a whole column."""
    count = len(duration_ns)
    return Estimates(
        duration_ns=np.ascontiguousarray(duration_ns, dtype=np.float64),
        relative_sigma=np.broadcast_to(np.asarray(relative_sigma, dtype=np.float64), count).copy(),
        provenance=np.broadcast_to(np.asarray(provenance, dtype=np.int8), count).copy(),
        bound=np.broadcast_to(np.asarray(bound, dtype=np.int8), count).copy(),
    )


def concatenate_estimates(parts: Sequence[Estimates]) -> Estimates:
    """The rows of all *parts*, in order."""
    nothing = build_estimates(
        np.empty(0), relative_sigma=0.0, provenance=Provenance.ASSUMED, bound=Bound.UNKNOWN
    )
    return Estimates(
        *(
            np.concatenate([getattr(part, column.name) for part in parts or [nothing]])
            for column in fields(Estimates)
        )
    )


class KernelModel(Protocol):
    """Prices many ops of one type at once.

    Ops of one *family* err together: a sample of a job multiplies all of them by one factor.
    """

    @property
    def family(self) -> str:
        """The name of the family, the same in every run."""
        ...

    def price(self, ops: Sequence[Any], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*, in order."""
        ...


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model without constants of its own to choose: a *family* and its function."""

    family: str
    price: Callable[[Sequence[Any], Device, SoftwareStack], Estimates]


class CalibratedModel:
    """A model with constants in calibration files of one *kind*, unless it is given *entries*."""

    kind: ClassVar[str]

    def __init__(self, entries: Sequence[Entry] | None = None) -> None:
        self._given = entries

    def entries(self, device: Device) -> Sequence[Entry]:
        """The constants to choose from for *device*."""
        return entries_for(self.kind, device) if self._given is None else self._given


def rows_of_kinds(kinds: Iterable[Kind]) -> dict[Kind, list[int]]:
    """The rows of each of *kinds*."""
    rows_of: dict[Kind, list[int]] = {}
    for row, kind in enumerate(kinds):
        rows_of.setdefault(kind, []).append(row)
    return rows_of


def price_by_kind(
    ops: Sequence[Any],
    rows_of: Mapping[Kind, Sequence[int]],
    price: Callable[[Kind, Sequence[Any]], Estimates],
) -> Estimates:
    """Predict *ops* in order, those of one kind together."""
    if len(rows_of) == 1:
        return price(next(iter(rows_of)), ops)
    together = concatenate_estimates(
        [price(kind, [ops[row] for row in rows]) for kind, rows in rows_of.items()]
    )
    return together.take(
        np.argsort([row for rows in rows_of.values() for row in rows], kind="stable")
    )
