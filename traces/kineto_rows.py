"""Rows of a Kineto trace: which fields are read, and how they become numbers.

The quick way takes a whole batch and raises on anything odd; the careful way takes one object and
says what is odd about it. Fields and categories are described in schema_kineto.yaml.
"""

from __future__ import annotations

import math
from array import array
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from perfmodel.base.documents import load_yaml
from traces.trace import ABSENT, Category, TraceColumns

_SCHEMA = load_yaml(Path(__file__).with_name("schema_kineto.yaml"))
FUNCTION, _MODULE_WORD = "python_function", "nn.Module: "
CATEGORIES = {
    word: Category[meaning.upper().replace(" ", "_")]
    for word, meaning in _SCHEMA["categories"].items()
    if word != FUNCTION
}
SHAPE_FIELDS = ("Input Dims", "Input type", "Concrete Inputs")
GEOMETRY_FIELDS = ("grid", "block", "registers per thread", "shared memory")
COLLECTIVE_FIELDS = (
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Src Rank", "Dst Rank",
)  # fmt: skip
WAIT_FIELDS = ("cuda_sync_kind", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
NUMBER_FIELDS = {
    "tid": "thread",
    "correlation": "correlation",
    "stream": "stream",
    "device": "device",
    "Sequence number": "sequence",
    "Fwd thread id": "forward_thread",
    "bytes": "size_bytes",
}
"""Fields with a number, and the columns they become; all but `tid` are arguments."""
Stamps = np.ndarray[Any, np.dtype[np.int64]]
STAMPS = ("start_ns", "duration_ns")
_ROWS_AT_ONCE = 1 << 12
_COLUMNS = TraceColumns.__slots__
_WIDTHS = {"start_ns": "q", "duration_ns": "q", "name": "i", "detail": "i"}
"""Columns that are as wide from the beginning."""
# Plain numbers: looking an enum member up takes as long as parsing a field.
_CODES = {word: int(category) for word, category in CATEGORIES.items()} | {
    FUNCTION: int(Category.MODULE)
}
# Categories whose rows may have details; a call has them on ROCm.
_DESCRIBED = frozenset(
    int(category)
    for category in (
        Category.HOST_OPERATOR,
        Category.HOST_ANNOTATION,
        Category.RUNTIME_CALL,
        Category.KERNEL,
        Category.SYNCHRONISATION,
    )
)
_KERNEL, _SYNCHRONISATION = int(Category.KERNEL), int(Category.SYNCHRONISATION)
_EMPTY: dict[str, Any] = {}
_LARGEST = 2**63 - 1


class RowError(Exception):
    """An object cannot become a row; the text says why."""


class Interner(dict[Any, int]):
    """Gives equal values the same number, counting from 0."""

    def __missing__(self, value: Any) -> int:
        number = len(self)
        self[value] = number
        return number


_CODES_OF_ARRAYS = "bhiq"


class NarrowBuffer:
    """Whole numbers that keep coming, in the narrowest type that holds all so far.

    One array that grows in place: many pieces that are joined at the end would leave as much
    memory behind as they took.
    """

    def __init__(self, code: str = "b") -> None:
        self._values: array[int] = array(code)

    def extend(self, values: Stamps) -> None:
        """Append *values*."""
        code: str = self._values.typecode
        lowest, highest = int(values.min()), int(values.max())
        while not _holds(code, lowest, highest):
            code = _CODES_OF_ARRAYS[_CODES_OF_ARRAYS.index(code) + 1]
        if code != self._values.typecode:
            self._values = array(code, np.array(self._values, dtype=code).tobytes())
        self._values.frombytes(values.astype(code).tobytes())

    def column(self) -> NDArray[Any]:
        """All values; the buffer must not grow afterwards."""
        return np.frombuffer(self._values, dtype=self._values.typecode)


def _holds(code: str, lowest: int, highest: int) -> bool:
    limits = np.iinfo(np.dtype(code))
    return bool(limits.min <= lowest and highest <= limits.max)


class RowBuffer:
    """Rows as they come in; sorted and made columns at the end.

    A stream or a device needs one byte, and there may be millions of rows: every few thousand
    are moved to buffers of the narrowest type.
    """

    def __init__(self) -> None:
        self.names, self.details = Interner(), Interner()
        self._moved = {name: NarrowBuffer(_WIDTHS.get(name, "b")) for name in _COLUMNS}
        self._moved_count = 0
        self._begin()

    def _begin(self) -> None:
        self.start_ns, self.duration_ns, self.numbers = array("q"), array("q"), array("q")
        self.category, self.name, self.detail = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return self._moved_count + len(self.name)

    def _move(self) -> None:
        """Move the latest rows to the buffers."""
        if not len(self.name):
            return
        numbers = np.array(self.numbers, dtype=np.int64).reshape(-1, len(NUMBER_FIELDS))
        columns = dict(zip(NUMBER_FIELDS.values(), numbers.T, strict=True))
        for name in ("start_ns", "duration_ns", "category", "name", "detail"):
            columns[name] = np.array(getattr(self, name), dtype=np.int64)
        for name, column in columns.items():
            self._moved[name].extend(column)
        self._moved_count += len(self.name)
        self._begin()

    def add_quickly(self, spans: list[dict[str, Any]]) -> None:
        """Append a batch of intervals; raises, before anything is added, if one is unusual."""
        arguments = [span.get("args", _EMPTY) for span in spans]
        category = [_CODES[span["cat"]] for span in spans]
        start_ns, duration_ns = (_quick_ns([span[key] for span in spans]) for key in ("ts", "dur"))
        if len(spans) and duration_ns.min() < 0:
            raise ValueError("negative duration")
        numbers = _quick_numbers(spans, arguments)
        words = [span["name"] for span in spans]
        if {*map(type, words)} - {str}:
            raise TypeError("a name must be text")
        detail = [
            self._detail(number, argument) if number in _DESCRIBED else ABSENT
            for number, argument in zip(category, arguments, strict=True)
        ]
        self.start_ns.frombytes(start_ns.tobytes())
        self.duration_ns.frombytes(duration_ns.tobytes())
        self.numbers.extend(numbers)
        self.category.extend(category)
        self.name.extend([self.names[word] for word in words])
        self.detail.extend(detail)
        if len(self.name) >= _ROWS_AT_ONCE:
            self._move()

    def add_carefully(self, span: dict[str, Any]) -> list[str]:
        """Append one interval and say what is odd about it; raises if it cannot become a row."""
        odd: list[str] = []
        start_ns, duration_ns = (_careful_ns(span.get(key), key) for key in ("ts", "dur"))
        if duration_ns < 0:
            raise RowError("interval with a negative duration `dur`")
        name, argument = span.get("name"), span.get("args", _EMPTY)
        if not isinstance(name, str):
            raise RowError("interval without a name")
        if not isinstance(argument, dict):
            odd.append("`args` must be an object; read as absent")
            argument = _EMPTY
        if span.get("tid") is None:
            odd.append("interval without a thread `tid`; put on thread -1")
        category = _CODES[span["cat"]]
        detail = self._detail(category, argument)
        self.numbers.extend(
            [
                _careful_number((span if word == "tid" else argument).get(word), word, odd)
                for word in NUMBER_FIELDS
            ]
        )
        self.start_ns.append(start_ns)
        self.duration_ns.append(duration_ns)
        self.category.append(category)
        self.name.append(self.names[name])
        self.detail.append(detail)
        return odd

    def columns(self, base_ns: int) -> TraceColumns:
        """All rows by start; of those that start together the longest first.

        The buffers are given up one by one, so nothing can be added afterwards.
        """
        self._move()
        start_ns, duration_ns = (self._moved.pop(name).column() for name in STAMPS)
        order = np.lexsort((-duration_ns, start_ns))
        columns: dict[str, Any] = {"start_ns": start_ns[order] + np.int64(base_ns)}
        columns["duration_ns"] = duration_ns[order]
        del start_ns, duration_ns
        for name in list(self._moved):
            columns[name] = self._moved.pop(name).column()[order]
        return TraceColumns(**columns)

    def _detail(self, category: int, argument: dict[str, Any]) -> int:
        if "Collective name" in argument:
            fields = COLLECTIVE_FIELDS + (GEOMETRY_FIELDS if category == _KERNEL else ())
        elif "Input Dims" in argument:
            fields = SHAPE_FIELDS
        elif "grid" in argument:
            fields = GEOMETRY_FIELDS
        elif category == _SYNCHRONISATION:
            fields = WAIT_FIELDS
        else:
            return ABSENT
        values = dict(zip(fields, map(argument.get, fields), strict=True))
        return self.details[orjson.dumps(values)]


def is_module(span: dict[str, Any]) -> bool:
    """Whether *span* is a call of a module; other functions of Python are left out."""
    return span["cat"] == FUNCTION and bool(span["name"].startswith(_MODULE_WORD))


def _quick_ns(stamps_us: list[Any]) -> Stamps:
    """Microsecond stamps as whole nanoseconds."""
    try:
        return np.array(array("q", stamps_us), dtype=np.int64) * 1000
    except TypeError:
        stamps = np.array(array("d", stamps_us), dtype=np.float64) * 1000
        if not (np.abs(stamps) < _LARGEST / 2).all():
            raise ValueError("stamp out of range") from None
        return np.rint(stamps).astype(np.int64)


def _quick_numbers(spans: list[dict[str, Any]], arguments: list[dict[str, Any]]) -> array[int]:
    # Written out, because this is where most of the time goes; same order as NUMBER_FIELDS.
    rows = [
        (
            span["tid"],
            take("correlation", ABSENT),
            take("stream", ABSENT),
            take("device", ABSENT),
            take("Sequence number", ABSENT),
            take("Fwd thread id", ABSENT),
            take("bytes", ABSENT),
        )
        for span, take in zip(spans, [argument.get for argument in arguments], strict=True)
    ]
    try:
        return array("q", chain.from_iterable(rows))
    except TypeError:
        # ROCm writes the stream of a call as an address in text.
        values = chain.from_iterable(rows)
        return array("q", [int(v, 0) if v.__class__ is str else v for v in values])


def _careful_ns(stamp_us: Any, field: str) -> int:
    if isinstance(stamp_us, str):
        try:
            stamp_us = float(stamp_us)
        except ValueError:
            raise RowError(f"interval whose `{field}` is not a number") from None
    if isinstance(stamp_us, bool) or not isinstance(stamp_us, int | float):
        raise RowError(f"interval without a number in `{field}`")
    if not math.isfinite(stamp_us) or abs(stamp_us) * 1000 > _LARGEST / 2:
        raise RowError(f"interval whose `{field}` is out of range")
    return round(stamp_us * 1000)


def _careful_number(value: Any, field: str, odd: list[str]) -> int:
    if value is None:
        return ABSENT
    if isinstance(value, str):
        try:
            # Old profilers call the thread of a device row "stream 7".
            value = int(value.removeprefix("stream "), 0)
        except ValueError:
            value = math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124  only nan differs from itself
        odd.append(f"`{field}` is not a whole number; read as absent")
        return ABSENT
    if abs(value) > _LARGEST:
        odd.append(f"`{field}` does not fit in 64 bits; read as absent")
        return ABSENT
    return int(value)
