"""Reader of Kineto traces: the Chrome JSON that torch.profiler writes.

Batches of objects become columns at once; only a batch with something odd in
it is looked at object by object, and what is odd there is counted and reported.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfmodel.base.errors import TraceError
from traces.json_stream import ObjectStream
from traces.kineto_rows import (
    CATEGORIES,
    Interner,
    NameInterner,
    RowBuffer,
    RowError,
    careful_row,
    is_module,
    quick_rows,
)
from traces.packed import DEFAULT_LIMITS, Limits
from traces.trace import ReadReport, Trace

MOST_RANKS = 2**20
"""No job has more ranks; a larger number is damage."""
_LARGEST_BASE_NS = 2**61
MAX_FAULTY_RATIO = 0.05
# A tuple: a damaged phase need not be hashable.
_ARROWS_NAMES_AND_MARKS = ("s", "f", "t", "i", "M")
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def load_kineto(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> Trace:
    """Read the Kineto trace at *path*, plain or gzip, as far as *limits* allow."""
    path = Path(path)
    stream = ObjectStream(path, "traceEvents", mark=b'"ph"', limits=limits)
    reader = _Reader(stream)
    with _collector_paused():
        for batch in stream.batches():
            reader.add(batch)
    return reader.trace()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Parsing makes many short-lived objects and no cycles; looking for cycles takes a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Reader:
    """Collects the columns of one trace."""

    def __init__(self, stream: ObjectStream) -> None:
        self.stream = stream
        self.names = NameInterner()
        self.details = Interner()
        self.rows = RowBuffer()
        self.objects = 0
        self.left_out: dict[str, int] = {}

    def add(self, batch: list[Any]) -> None:
        """Take what is kept from a batch of objects."""
        self.objects += len(batch)
        try:
            spans = [
                item
                for item in batch
                if item["ph"] == "X" and (item["cat"] in CATEGORIES or is_module(item))
            ]
            rows = quick_rows(spans, self.names, self.details)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            self._add_carefully(batch)
            return
        self.rows.add(rows)
        if len(spans) == len(batch):
            return
        arrows = [item for item in batch if item["ph"] != "X"]
        self._leave_out("arrows, names and marks", len(arrows))
        for item in arrows:
            if item["ph"] not in _ARROWS_NAMES_AND_MARKS:
                self._check_phase(item)
        if len(spans) + len(arrows) < len(batch):
            for item in batch:
                if item["ph"] == "X" and not (item["cat"] in CATEGORIES or is_module(item)):
                    self._leave_out_category(item["cat"])

    def _add_carefully(self, batch: list[Any]) -> None:
        for item in batch:
            if not isinstance(item, dict):
                self._fault("something that is no object")
            elif item.get("ph") != "X":
                self._leave_out("arrows, names and marks")
                self._check_phase(item)
            elif not _is_kept(item):
                self._leave_out_category(item.get("cat"))
            else:
                self._add_row(item)

    def _add_row(self, item: dict[str, Any]) -> None:
        try:
            row, oddities = careful_row(item, self.names, self.details)
        except RowError as fault:
            self._fault(str(fault))
            return
        for oddity in oddities:
            self.stream.faults.add(oddity, f"object {self.objects}")
        self.rows.add(row)

    def _check_phase(self, item: dict[str, Any]) -> None:
        phase = item.get("ph")
        if not isinstance(phase, str) or len(phase) != 1:
            self._leave_out("arrows, names and marks", -1)
            self._fault("object without a phase `ph`")

    def _leave_out_category(self, category: object) -> None:
        if isinstance(category, str):
            self._leave_out(f"category {category}")
        else:
            self._fault("interval without a category `cat`")

    def _leave_out(self, reason: str, count: int = 1) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + count

    def _fault(self, fault: str) -> None:
        self._leave_out("faulty")
        self.stream.faults.add(f"{fault}; left out", f"object {self.objects}")

    def trace(self) -> Trace:
        """The finished trace; refuses one that holds too little to trust."""
        path, around = self.stream.path, self.stream.surroundings
        faulty = self.left_out.get("faulty", 0)
        if not len(self.rows) or faulty > MAX_FAULTY_RATIO * self.objects:
            raise TraceError(_refusal(path, self.objects, faulty, self.stream.faults.sentences()))
        rank, world_size, is_stated = _rank_of(path, around, self.stream)
        base_ns = self._base_ns(around.get("baseTimeNanoseconds", 0))
        columns = self.rows.columns(base_ns)
        report = ReadReport(
            objects=self.objects,
            kept=len(columns),
            left_out={word: count for word, count in sorted(self.left_out.items()) if count},
            faults=self.stream.faults.sentences(),
        )
        return Trace(
            document=str(path),
            rank=rank,
            world_size=world_size,
            columns=columns,
            names=tuple(self.names),
            details=tuple(self.details),
            devices=_devices_of(around),
            properties={k: v for k, v in around.items() if k != "deviceProperties"},
            report=report,
            is_rank_stated=is_stated,
        )

    def _base_ns(self, value: object) -> int:
        if isinstance(value, int) and abs(value) < _LARGEST_BASE_NS:
            return value
        self.stream.faults.add("baseTimeNanoseconds is no possible moment; read as 0", "the head")
        return 0


def _is_kept(item: dict[str, Any]) -> bool:
    category = item.get("cat")
    is_named = isinstance(item.get("name"), str)
    return isinstance(category, str) and (category in CATEGORIES or (is_named and is_module(item)))


def _rank_of(path: Path, around: dict[str, Any], stream: ObjectStream) -> tuple[int, int, bool]:
    info = around.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = _stated(info, "rank", 0, stream)
    world_size = _stated(info, "world_size", 1, stream)
    if rank is None:
        match = _RANK_IN_NAME.search(path.name)
        rank = int(match[1]) if match else None
    if rank is not None and world_size is not None and rank >= world_size:
        stream.faults.add(f"rank {rank} is not in a job of {world_size} ranks", "the head")
    if rank is None:
        return 0, world_size or 1, False
    return rank, world_size or 1, True


def _stated(info: dict[str, Any], key: str, least: int, stream: ObjectStream) -> int | None:
    value = info.get(key)
    if value is None or value == -1:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_RANKS:
        return value
    stream.faults.add(
        f"distributedInfo.{key} must be a whole number, {least} to {MOST_RANKS}, is "
        f"{value!r:.40}; read as absent",
        "the head",
    )
    return None


def _devices_of(around: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    devices = around.get("deviceProperties")
    if not isinstance(devices, list):
        return ()
    return tuple(device for device in devices if isinstance(device, dict))


def _refusal(path: Path, objects: int, faulty: int, sentences: tuple[str, ...]) -> str:
    if faulty:
        heading = f"{path}: {faulty} of {objects} objects are faulty, more than can be left out."
    else:
        heading = f"{path}: none of its {objects} objects is an interval of host or device work."
    advice = "Record it again with torch.profiler (CPU and CUDA activities)."
    return "\n".join([heading, *(f"  {sentence}" for sentence in sentences), advice])
