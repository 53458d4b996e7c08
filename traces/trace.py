"""Traces: the intervals of one rank, one row per interval, held as columns.

All stamps are nanoseconds on the clock of the recording; host rows and device rows of one rank may
be skewed against each other, and ranks against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import orjson

Int64Column = np.ndarray[Any, np.dtype[np.int64]]
NarrowColumn = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
"""Whole numbers in the narrowest type that holds them: widen before arithmetic."""
ABSENT = -1


class Category(IntEnum):
    """The kind of an interval."""

    HOST_OPERATOR = 0
    HOST_ANNOTATION = 1
    RUNTIME_CALL = 2
    KERNEL = 3
    MEMORY_COPY = 4
    MEMORY_SET = 5
    SYNCHRONISATION = 6
    DEVICE_ANNOTATION = 7
    OVERHEAD = 8
    MODULE = 9


DEVICE_WORK = (Category.KERNEL, Category.MEMORY_COPY, Category.MEMORY_SET)


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """The intervals of one rank, sorted by start; absent numbers are -1."""

    start_ns: Int64Column
    duration_ns: Int64Column
    category: NarrowColumn
    name: np.ndarray[Any, np.dtype[np.int32]]
    thread: NarrowColumn
    correlation: NarrowColumn
    stream: NarrowColumn
    device: NarrowColumn
    sequence: NarrowColumn
    forward_thread: NarrowColumn
    size_bytes: NarrowColumn
    detail: np.ndarray[Any, np.dtype[np.int32]]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64Column:
        """When each interval ended."""
        return self.start_ns + self.duration_ns

    def take(self, rows: Any) -> TraceColumns:
        """The same columns with only *rows*, in that order."""
        return TraceColumns(**{name: getattr(self, name)[rows] for name in self.__slots__})

    def is_in(self, *categories: Category) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows are of one of *categories*."""
        return np.isin(self.category, categories)

    def rows_in(self, *categories: Category) -> Int64Column:
        """The rows of *categories*, in order."""
        rows: Int64Column = np.flatnonzero(self.is_in(*categories))
        return rows


@dataclass(frozen=True, slots=True)
class ReadReport:
    """Counts of the objects in a file, and the faults that the reader found."""

    objects: int
    kept: int
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one rank. Columns refer to `names` and `details` by number."""

    document: str
    rank: int
    world_size: int
    columns: TraceColumns
    names: tuple[str, ...]
    details: tuple[bytes, ...]
    devices: tuple[dict[str, Any], ...]
    properties: dict[str, Any]
    report: ReadReport
    is_rank_stated: bool = True

    @property
    def device_names(self) -> tuple[str, ...]:
        """The driver's names of the GPUs of the process, if recorded."""
        return tuple(str(device["name"]) for device in self.devices if device.get("name"))

    def name_of(self, row: int) -> str:
        """The name of the interval in *row*."""
        return self.names[int(self.columns.name[row])]

    def detail_of(self, row: int) -> dict[str, Any]:
        """Shapes, launch geometry or collective metadata of *row*; empty if none was kept."""
        number = int(self.columns.detail[row])
        if number == ABSENT:
            return {}
        detail: dict[str, Any] = orjson.loads(self.details[number])
        return detail
