"""KernelTable: measured kernels as ops; rows we cannot price are listed, never dropped.

Only the reader of a table knows its columns. Groups in a report are source,
GPU and op, as the table names them.
"""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.reading import iter_even_lines, quote, read_packed_text
from perfmodel.base.units import NS_PER_MS
from perfmodel.costs.estimates import (
    Estimates,
    FloatColumn,
    KernelModel,
    concatenate_estimates,
    scatter_estimates,
)
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import Residency
from topologies import list_devices, load_device, name_devices

if TYPE_CHECKING:
    import pandas as pd

# Half-precision products were timed in replays of a CUDA graph over rotating
# weights; fp32 operators from the host, again and again on the same operands.
# Rows of recordings say that they ran in training.


BENCHMARK_STACK = "kernel_benchmark"


def benchmark_residency(dtype: DType) -> Residency:
    """Where operands of *dtype* were when the public tables were measured."""
    return Residency.REPEATED if dtype is DType.FP32 else Residency.ROTATING


def residency_of(kernel: MeasuredKernel) -> Residency:
    """Where the operands of *kernel* were: as its table says, or as in the public tables."""
    return kernel.residency or benchmark_residency(kernel.op.dtype)


def price_measured(
    kernels: Sequence[MeasuredKernel], model: KernelModel, *, calibration: Sequence[str] = ()
) -> Estimates:
    """Predict *kernels*, in order, each on its own device; *calibration* names its files."""
    stack = load_stack(BENCHMARK_STACK)
    rows_of: dict[tuple[str, Residency], list[int]] = {}
    for row, kernel in enumerate(kernels):
        key = (kernel.device, residency_of(kernel))
        rows_of.setdefault(key, []).append(row)
    parts, places = [], []
    for (device, residency), rows in rows_of.items():
        ops = [kernels[row].op for row in rows]
        measured_on = replace(load_device(device), calibrations=tuple(calibration))
        parts.append(model.price(ops, measured_on, replace(stack, residency=residency)))
        places.append(np.array(rows, dtype=np.intp))
    return scatter_estimates(parts, places) if parts else concatenate_estimates(())


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One row: what ran, where, and how long it took.

    *group* is source, GPU and op, as a report names them; *columns* are what
    rows can be told apart by in cross-validation. *residency* is where operands
    were, if the table says.
    """

    row: str
    group: tuple[str, ...]
    columns: Mapping[str, object]
    op: Any
    device: str
    measured_ns: float
    residency: Residency | None = None


@dataclass(frozen=True, slots=True)
class UnsupportedRow:
    """A row that cannot be priced, and why."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Measured kernels of one file, and the rows that could not be read as ops."""

    kernels: tuple[MeasuredKernel, ...]
    unsupported: tuple[UnsupportedRow, ...]

    @property
    def measured_ns(self) -> FloatColumn:
        """Measured durations in order."""
        return np.array([kernel.measured_ns for kernel in self.kernels], dtype=np.float64)

    def devices(self) -> tuple[str, ...]:
        """Devices in the table, in order of first appearance."""
        return tuple(dict.fromkeys(kernel.device for kernel in self.kernels))

    def of_device(self, device: str) -> KernelTable:
        """The rows of one *device*."""
        chosen = tuple(kernel for kernel in self.kernels if kernel.device == device)
        return KernelTable(chosen, ())

    def take(self, rows: NDArray[np.intp]) -> KernelTable:
        """The rows numbered *rows*."""
        return KernelTable(tuple(self.kernels[row] for row in rows), ())


def read_columns(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """The CSV file at *path* (gzipped or not), which must have the columns *needed*."""
    import pandas as pd

    text = read_packed_text(path, MeasurementError)
    # pandas would fill short rows, shift long ones and rename a column that stands twice.
    deque(iter_even_lines(text, document=str(path), error_type=MeasurementError), maxlen=0)
    try:
        frame = pd.read_csv(io.StringIO(text), low_memory=False)
    except (ValueError, OverflowError) as fault:
        raise MeasurementError(f"{path}: cannot be read as CSV ({fault}).") from None
    missing = [column for column in needed if column not in frame.columns]
    if missing:
        raise MeasurementError(
            f"{path}: must have the columns {', '.join(needed)}; missing {', '.join(missing)}."
        )
    return frame


MOST_SIZE = 2**31
_LEAST_MS, _MOST_MS = 1e-6, 1e9


def whole(name: str, value: Any) -> int:
    """The size in a cell of column *name*; a fraction is no size, and nothing is so large."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 1 <= number <= MOST_SIZE or number != int(number):
        raise InputError(f"{name} must be a whole number, 1 to {MOST_SIZE}, got {quote(value)}")
    return int(number)


def measured_ns(value_ms: Any) -> float:
    """The time in a cell of milliseconds."""
    try:
        number_ms = float(value_ms)
    except (TypeError, ValueError):
        number_ms = math.nan
    if isinstance(value_ms, bool) or not _LEAST_MS <= number_ms <= _MOST_MS:
        raise InputError(f"latency must be above 0, got {quote(value_ms)}")
    return number_ms * NS_PER_MS


def row_names(frame: pd.DataFrame) -> list[str]:
    """What rows are called in reports: their `id`, else their number from 0."""
    if "id" in frame.columns:
        return [str(value) for value in frame["id"]]
    return [str(number) for number in range(len(frame))]


ReadRow = Callable[[str, Mapping[Any, Any]], Iterable[MeasuredKernel]]


def read_rows(frame: pd.DataFrame, read: ReadRow) -> KernelTable:
    """The kernels that *read* finds in each row; rows that it refuses are listed with reasons."""
    kernels: list[MeasuredKernel] = []
    unsupported: list[UnsupportedRow] = []
    for name, row in zip(row_names(frame), frame.to_dict("records"), strict=True):
        try:
            kernels.extend(read(name, row))
        except InputError as fault:
            unsupported.append(UnsupportedRow(name, str(fault)))
        except KeyError as fault:
            unsupported.append(UnsupportedRow(name, f"{fault} must be given"))
    return KernelTable(tuple(kernels), tuple(unsupported))


@cache
def device_called(words: str) -> str:
    """The device that a table calls *words*: its own name, a file, or what drivers call it.

    Words that could mean several devices, or none, are left as they are.
    """
    if words in list_devices() or Path(words).suffix:
        return words
    found = name_devices(words)
    return found[0] if len(found) == 1 else words
