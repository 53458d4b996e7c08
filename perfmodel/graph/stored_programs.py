"""Stored programs: programs of a saved job, read from its folder on access.

Columns are read in pieces, of which only a few stay in memory. So a job larger than memory can be
read rank by rank. Use `loaded` for programs that stay in memory.

Values go to pyarrow and come back as buffers: its conversions of lists and of numpy arrays import
pandas first, which takes longer than reading a small job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from perfmodel.graph.program import (
    COLUMN_TYPES,
    Int32s,
    Int64s,
    Lane,
    LaneKind,
    Program,
    Programs,
    offsets,
)

TASKS_FILE, DEPENDENCIES_FILE = "tasks.parquet", "dependencies.parquet"
BY_TASK = ("op", "label", "origin", "slot", "sequence", "role")
BY_DEPENDENCY = ("dep_task", "dep_anchor", "dep_distance", "dep_lag_ns")
DEP_COUNT = "dep_count"
PIECE_ROWS = 2**17
"""Rows per row group: written and read together."""
MOST_PIECES = 32
"""Pieces kept in memory, over all columns."""


Outline = tuple[tuple[Lane, ...], Int32s]
"""A program as in the header of a job: its lanes, and the first task of each."""


def read_outlines(descriptions: list[dict[str, Any]]) -> list[Outline]:
    """The outline of every program; equal lanes are stored once."""
    known: dict[Lane, Lane] = {}
    outlines = []
    for description in descriptions:
        lanes = [Lane(name, LaneKind(kind)) for name, kind in description["lanes"]]
        starts = as_column("lane_start", np.array(description["lane_start"]), np.int32)
        outlines.append((tuple(known.setdefault(lane, lane) for lane in lanes), starts))
    return outlines


def write_columns(path: Path, columns: Mapping[str, NDArray[Any] | Sequence[str]]) -> None:
    """Write *columns* to a Parquet file: numbers, a table of numbers, or texts."""
    arrays = {name: _to_arrow(column) for name, column in columns.items()}
    pq.write_table(pa.table(arrays), path, compression="zstd", row_group_size=PIECE_ROWS)


def _to_arrow(column: NDArray[Any] | Sequence[str]) -> Any:
    count = len(column)
    if not isinstance(column, np.ndarray):
        texts = [text.encode() for text in column]
        bounds = np.array([0, *accumulate(map(len, texts))], dtype=np.int32)
        return _from_buffers(pa.string(), count, bounds, b"".join(texts))
    if column.ndim == 2:
        bounds = np.arange(count + 1, dtype=np.int32) * np.int32(column.shape[1])
        bounds = _from_buffers(pa.int32(), count + 1, bounds)
        return pa.ListArray.from_arrays(bounds, _to_arrow(column.ravel()))
    if column.dtype == np.bool_:
        return _from_buffers(pa.bool_(), count, np.packbits(column, bitorder="little"))
    return _from_buffers(pa.from_numpy_dtype(column.dtype), count, np.ascontiguousarray(column))


def _from_buffers(kind: Any, count: int, *buffers: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def read_columns(path: Path) -> Any:
    """All columns of a Parquet file."""
    return pq.ParquetFile(path).read(use_threads=False)


def values_of(column: Any) -> NDArray[Any]:
    """Numbers or truths of a *column* of a Parquet file; others are objects, for refusal."""
    values = column.combine_chunks()
    dtype = np.dtype(values.type.to_pandas_dtype())
    if dtype == np.bool_:
        values = values.cast(pa.uint8())
    if dtype.kind not in "biuf" or values.null_count:
        return np.array(values.to_pylist(), dtype=object)
    first, buffer = values.offset, values.buffers()[1]
    return np.frombuffer(buffer or b"", dtype=dtype)[first : first + len(values)]


class ColumnReader:
    """Rows of columns of one Parquet file."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        self._bounds = offsets(sizes)
        self._piece = lru_cache(MOST_PIECES)(self._read_piece)

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows *start* to *stop* of a column."""
        if not 0 <= start <= stop <= self._bounds[-1]:
            raise ValueError(f"column {name} has {self._bounds[-1]} rows, and {stop} are needed")
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        parts = []
        while start < stop:
            begin, end = int(self._bounds[first]), int(self._bounds[first + 1])
            parts.append(self._piece(name, first)[start - begin : min(stop, end) - begin])
            start, first = end, first + 1
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def pieces(self, name: str) -> Iterator[NDArray[Any]]:
        """A whole column, piece by piece."""
        for index in range(len(self._bounds) - 1):
            yield self._piece(name, index)

    def _read_piece(self, name: str, index: int) -> NDArray[Any]:
        table = self._file.read_row_group(index, columns=[name], use_threads=False)
        return values_of(table[name])


class StoredProgram(Program):
    """A program that holds its lanes and reads other columns on access."""

    __slots__ = ("_index", "_shelf")

    _index: int
    _shelf: StoredPrograms

    @classmethod
    def on(cls, shelf: StoredPrograms, index: int) -> StoredProgram:
        """Program number *index* of *shelf*."""
        program = object.__new__(cls)
        lanes, starts = shelf.outlines[index]
        values = {"lanes": lanes, "lane_start": starts, "_shelf": shelf, "_index": index}
        for name, value in values.items():
            # Programs are frozen.
            object.__setattr__(program, name, value)
        return program

    @property
    def task_count(self) -> int:
        """Number of tasks in one iteration."""
        return int(self.lane_start[-1])

    def __getattr__(self, name: str) -> Any:
        if name not in COLUMN_TYPES:
            raise AttributeError(name)
        return self._shelf.read(name, self._index)


class StoredPrograms(Programs):
    """The programs of the job in *folder*, with the *outlines* of its header."""

    def __init__(self, folder: Path, outlines: Sequence[Outline]) -> None:
        self.folder = folder
        self.outlines = outlines
        self._task_bounds = offsets([int(starts[-1]) for _, starts in outlines])

    def __reduce__(self) -> tuple[Any, ...]:
        # Open files stay in this process: the receiver may have no such folder.
        return StoredPrograms, (self.folder, self.outlines)

    @cached_property
    def _tasks(self) -> ColumnReader:
        return ColumnReader(self.folder / TASKS_FILE)

    @cached_property
    def _dependencies(self) -> ColumnReader:
        return ColumnReader(self.folder / DEPENDENCIES_FILE)

    def __len__(self) -> int:
        return len(self.outlines)

    def make(self, index: int) -> Program:
        """Program number *index*."""
        return StoredProgram.on(self, index)

    def read(self, name: str, index: int) -> NDArray[Any]:
        """A column of program number *index*."""
        tasks = (int(self._task_bounds[index]), int(self._task_bounds[index + 1]))
        if name == "dep_start":
            values = offsets(_checked_counts(self._tasks.read(DEP_COUNT, *tasks)))
        elif name in BY_DEPENDENCY:
            bounds = (int(self._dep_bounds[index]), int(self._dep_bounds[index + 1]))
            values = self._dependencies.read(name, *bounds)
        else:
            values = self._tasks.read(name, *tasks)
        return as_column(name, values, COLUMN_TYPES[name])

    @cached_property
    def _dep_bounds(self) -> Int64s:
        """The first dependency of every program, and the end of the last."""
        bounds = np.zeros(len(self._task_bounds), dtype=np.int64)
        first, total = 0, 0
        for counts in self._tasks.pieces(DEP_COUNT):
            reached = offsets(_checked_counts(counts))
            places = self._task_bounds - first
            here = (places > 0) & (places < len(reached))
            bounds[here] = total + reached[places[here]]
            first, total = first + len(counts), total + int(reached[-1])
        return bounds


def _checked_counts(counts: NDArray[Any]) -> NDArray[Any]:
    values = as_column(DEP_COUNT, counts, np.int32)
    if len(values) and values.min() < 0:
        raise ValueError(f"column {DEP_COUNT} must not be negative")
    return values


def as_column(name: str, values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """*values* of column *name* as *dtype*; a table, or values out of its range, are refused."""
    bounds = np.iinfo(dtype)
    # Without values numpy takes them for fractions.
    is_whole = values.ndim == 1 and (values.dtype.kind in "iu" or not len(values))
    if not is_whole or (
        len(values) and not bounds.min <= values.min() <= values.max() <= bounds.max
    ):
        raise ValueError(f"column {name} must hold whole numbers of {np.dtype(dtype)}")
    return values.astype(dtype)


def loaded(program: Program, names: Sequence[str]) -> Program:
    """*program* with the columns in *names* read into memory, the others empty."""
    columns: dict[str, Any] = {
        name: np.array(getattr(program, name)) if name in names else np.empty(0, dtype=dtype)
        for name, dtype in COLUMN_TYPES.items()
    }
    return Program(lanes=program.lanes, **columns)
