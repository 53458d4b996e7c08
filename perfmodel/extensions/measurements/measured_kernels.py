"""Measured kernels: rows of a table as ops with their times, priced the way they were measured.

Only the reader of a table knows its columns (`kernel_tables`). Rows that cannot be priced are
listed with a reason, never dropped. Groups in a report are source, GPU and op, as the table names
them.
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
from perfmodel.base.faults import iter_misspelt
from perfmodel.base.reading import iter_even_lines, quote, read_packed_text
from perfmodel.base.units import NS_PER_MS
from perfmodel.costs.anchoring import adjust_ops
from perfmodel.costs.estimates import (
    Estimates,
    FloatColumn,
    KernelModel,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.sustained import sustained_factors
from perfmodel.stacks.capabilities import Residency
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from topologies import list_devices, load_device, name_devices

if TYPE_CHECKING:
    import pandas as pd

MOST_SIZE, MOST_BYTES = 2**31, 2**40
_LEAST_MS, _MOST_MS = 1e-6, 1e9


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One row: the op, its device, and its measured time.

    *group* is source, GPU and op, as a report names them; *columns* are what cross-validation
    can fold by. *residency* is where operands were, if the table says; with *is_under_load* the
    chip was at the clock of a long run. *column_ratio* is the time that the row's own rate tells,
    relative to the stated one.
    """

    row: str
    group: tuple[str, ...]
    columns: Mapping[str, object]
    op: Any
    device: str
    measured_ns: float
    residency: Residency | None = None
    column_ratio: float = 1.0
    is_under_load: bool = False

    @property
    def operand_residency(self) -> Residency:
        """Where operands were: as the table says, or as in the public tables.

        Those timed half-precision GEMMs in replays of a CUDA graph over rotating weights, and
        fp32 operators from the host, again and again on the same operands.
        """
        usual = Residency.REPEATED if self.op.dtype is DType.FP32 else Residency.ROTATING
        return self.residency or usual


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A row that cannot be predicted, and why."""

    row: str | int
    reason: str


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Measured kernels of one file, and the rows that could not be read as ops."""

    kernels: tuple[MeasuredKernel, ...]
    unsupported: tuple[Unsupported, ...] = ()

    def take(self, rows: NDArray[np.intp]) -> KernelTable:
        """The rows numbered *rows*."""
        return KernelTable(tuple(self.kernels[row] for row in rows))


def price_measured(
    kernels: Sequence[MeasuredKernel], model: KernelModel, *, calibration: Sequence[str] = ()
) -> Estimates:
    """Predict *kernels*, in order, each on its own device; *calibration* names its files."""
    stack = load_stack("kernel_benchmark")

    def price(kind: tuple[str, Residency], alike: Sequence[MeasuredKernel]) -> Estimates:
        device, residency = kind
        measured_on = replace(load_device(device), calibrations=tuple(calibration))
        ops = [kernel.op for kernel in alike]
        found = model.price(ops, measured_on, replace(stack, residency=residency))
        return adjust_ops(found, ops, measured_on, stack)

    kinds = ((kernel.device, kernel.operand_residency) for kernel in kernels)
    alone = price_by_kind(kernels, rows_of_kinds(kinds), price)
    return replace(alone, duration_ns=alone.duration_ns * load_factors(kernels, stack))


def load_factors(kernels: Sequence[MeasuredKernel], stack: SoftwareStack) -> FloatColumn:
    """How much longer each of *kernels* took because of load: 1 where it was timed in a burst."""
    factors = np.ones(len(kernels))
    kinds = ((one.device, type(one.op), one.is_under_load) for one in kernels)
    for (device, _, is_under_load), rows in rows_of_kinds(kinds).items():
        if is_under_load:
            ops = [kernels[row].op for row in rows]
            factors[list(rows)] = sustained_factors(ops, load_device(device), stack)
    return factors


TIMES_MS = {
    **dict.fromkeys(("time_ms", "ms", "duration_ms", "mean_ms"), 1.0),
    **dict.fromkeys(("latency_us", "time_us", "us", "duration_us", "mean_us"), 1e-3),
    **dict.fromkeys(("latency_ns", "time_ns", "ns", "duration_ns"), 1e-6),
    **dict.fromkeys(("latency_s", "time_s", "seconds", "duration_s"), 1e3),
}
"""Other headings of a time, and what one of it is in milliseconds."""
OTHER_HEADINGS = {"gpu": "device", "precision": "dtype"}
OPTIONAL = (
    "dtype", "batch", "residency", "under_load", "tflops", "num_key_value_heads",
    "sliding_window_size", "backend", "collector",
)  # fmt: skip
"""Columns that change what a row means and may be left out."""
KNOWN_ALIKE = ("num_kv_heads", "batch_size", "data_type")


def _rename(frame: pd.DataFrame, device: str | None) -> pd.DataFrame:
    """*frame* with the headings that readers know, where people commonly write others."""
    lower = {str(name).strip().lower(): name for name in frame.columns}
    if "latency_ms" not in frame.columns and "fwd_time_ms" not in frame.columns:
        for word, factor in TIMES_MS.items():
            if word in lower:
                frame = frame.assign(latency_ms=frame[lower[word]] * factor)
                break
    names = {lower[old]: new for old, new in OTHER_HEADINGS.items() if old in lower}
    if "B" not in frame.columns and {"M", "N", "K"} <= set(frame.columns):
        names |= {key.upper(): key for key in ("m", "n", "k")}
    frame = frame.rename(
        columns={old: new for old, new in names.items() if new not in frame.columns}
    )
    if device is not None and "device" not in frame.columns:
        frame = frame.assign(device=device)
    return frame


def load_frame(path: Path, device: str | None = None) -> pd.DataFrame:
    """The CSV file at *path* (gzipped or not); *device* is the GPU where no column names it."""
    import pandas as pd

    text = read_packed_text(path, MeasurementError)
    # pandas would fill short rows, shift long ones and rename a repeated column.
    deque(iter_even_lines(text, document=str(path), error_type=MeasurementError), maxlen=0)
    try:
        frame = _rename(pd.read_csv(io.StringIO(text), low_memory=False), device)
    except (ValueError, OverflowError) as fault:
        raise MeasurementError(f"{path}: cannot be read as CSV ({fault}).") from None
    unstated = [one for one in OPTIONAL if one not in frame.columns]
    for key, meant in iter_misspelt(set(frame.columns) - set(KNOWN_ALIKE), unstated):
        raise MeasurementError(
            f"{path}: column {key} is not known; {meant} is. Correct it or take it out."
        )
    return frame


def read_rows(
    frame: pd.DataFrame, read: Callable[[str, Mapping[Any, Any]], Iterable[MeasuredKernel]]
) -> KernelTable:
    """The kernels that *read* finds in each row; rows that it refuses are listed with reasons.

    Reports name a row by its `id`, else by its number from 0.
    """
    kernels: list[MeasuredKernel] = []
    unsupported: list[Unsupported] = []
    for number, row in enumerate(frame.to_dict("records")):
        name = str(row.get("id", number))
        try:
            kernels.extend(read(name, row))
        except InputError as fault:
            unsupported.append(Unsupported(name, str(fault)))
        except KeyError as fault:
            unsupported.append(Unsupported(name, f"{fault} must be given"))
    return KernelTable(tuple(kernels), tuple(unsupported))


def build_measured(
    name: str,
    group: tuple[str, str, str],
    op: Any,
    time_ms: Any,
    columns: Mapping[str, object],
    *,
    residency: Residency | None = None,
    rate: float = 0.0,
    under_load: Any = 0,
) -> MeasuredKernel:
    """The row called *name*; *group* is source, GPU and op, *time_ms* a cell of milliseconds.

    *rate* is what the row itself says in TFLOP/s, where it does; *under_load* a cell with 0 or 1.
    """
    if under_load not in (0, 1):
        raise InputError(f"under_load must be 0 or 1, got {quote(under_load)}")
    device, measured_ns = _device_called(group[1]), parse_ms(time_ms)
    # A rate of the row itself says the same as its time.
    own_ns = getattr(op, "flops", 0) / (rate * 1e3) if rate > 0 else measured_ns
    ratio = own_ns / measured_ns
    return MeasuredKernel(
        name, group, columns, op, device, measured_ns, residency, ratio, bool(under_load)
    )


def parse_size(name: str, value: Any) -> int:
    """The size in a cell of column *name*: a whole number within bounds."""
    number, most = _number(value), MOST_BYTES if name.endswith("_bytes") else MOST_SIZE
    if not 1 <= number <= most or number != int(number):
        raise InputError(f"{name} must be a whole number, 1 to {most}, got {quote(value)}")
    return int(number)


def parse_ms(value: Any) -> float:
    """The time in a cell of milliseconds, in nanoseconds."""
    number_ms = _number(value)
    if not _LEAST_MS <= number_ms <= _MOST_MS:
        raise InputError(f"latency must be above 0, got {quote(value)}")
    return number_ms * NS_PER_MS


def parse_rate(value: Any) -> float:
    """The rate in a cell; 0 where there is none."""
    number = _number(value)
    return number if math.isfinite(number) else 0.0


def _number(value: Any) -> float:
    """*value* as a number; not-a-number where it is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


@cache
def _device_called(words: str) -> str:
    """The device that a table names by *words*: a catalog name, a file, or a driver's name.

    A name that matches no device or several is returned unchanged.
    """
    if words in list_devices() or Path(words).suffix:
        return words
    found = name_devices(words)
    return found[0] if len(found) == 1 else words
