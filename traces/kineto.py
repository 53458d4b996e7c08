"""Reader of Kineto traces: the Chrome JSON that torch.profiler writes.

Whole batches of objects become columns; only a batch with something odd in it is read object by
object, and each oddity is counted and reported.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfmodel.base.errors import TraceError
from traces.file_stream import DEFAULT_LIMITS, Limits, ObjectStream
from traces.kineto_rows import CATEGORIES, RowBuffer, RowError, is_module
from traces.trace import ReadReport, Trace

MOST_RANKS = 2**20
"""No job has more ranks; a larger number is damage."""
_LARGEST_BASE_NS = 2**61
MAX_FAULTY_RATIO = 0.05
# A tuple: a damaged phase need not be hashable.
_PHASES = ("s", "f", "t", "i", "M")
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def load_kineto(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> Trace:
    """Read the Kineto trace at *path*, plain or gzip, as far as *limits* allow."""
    path = Path(path)
    stream = ObjectStream(path, "traceEvents", mark=b'"ph"', limits=limits)
    reader = TraceReader(stream)
    with _collector_paused():
        for batch in stream.batches():
            reader.add(batch)
    return reader.trace()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Parsing makes many objects and no cycles; the garbage collector would take a third of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class TraceReader:
    """Collects the columns of one trace from its objects."""

    def __init__(self, stream: ObjectStream) -> None:
        self.stream = stream
        self.rows = RowBuffer()
        self.objects = self.faulty = 0

    def add(self, batch: list[Any]) -> None:
        """Take the intervals that are kept from a batch of objects."""
        self.objects += len(batch)
        try:
            spans = [
                item
                for item in batch
                if item["ph"] == "X" and (item["cat"] in CATEGORIES or is_module(item))
            ]
            self.rows.add_quickly(spans)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            for item in batch:
                self._add_carefully(item)
            return
        if len(spans) < len(batch):
            for item in batch:
                if item["ph"] not in _PHASES and (
                    item["ph"] != "X" or not isinstance(item["cat"], str)
                ):
                    self._check_unread(item)

    def _add_carefully(self, item: Any) -> None:
        if not isinstance(item, dict):
            self._fault("entry that is not an object")
            return
        if item.get("ph") != "X":
            self._check_unread(item)
            return
        category, is_named = item.get("cat"), isinstance(item.get("name"), str)
        if not isinstance(category, str) or not (
            category in CATEGORIES or (is_named and is_module(item))
        ):
            self._check_unread(item)
            return
        try:
            oddities = self.rows.add_carefully(item)
        except RowError as fault:
            self._fault(str(fault))
            return
        for oddity in oddities:
            self.stream.faults.add(oddity, f"object {self.objects}")

    def _check_unread(self, item: dict[str, Any]) -> None:
        """Note what is wrong with an object that is not kept."""
        phase = item.get("ph")
        if not isinstance(phase, str) or len(phase) != 1:
            self._fault("object without a phase `ph`")
        elif phase == "X" and not isinstance(item.get("cat"), str):
            self._fault("interval without a category `cat`")

    def _fault(self, fault: str) -> None:
        self.faulty += 1
        self.stream.faults.add(f"{fault}; left out", f"object {self.objects}")

    def trace(self) -> Trace:
        """The finished trace; refuses one that holds too little to trust."""
        path, around, faults = self.stream.path, self.stream.surroundings, self.stream.faults
        faulty = self.faulty
        if not len(self.rows) or faulty > MAX_FAULTY_RATIO * self.objects:
            rule = f"none of its {self.objects} objects is an interval of host or device work."
            if faulty:
                rule = f"{faulty} of {self.objects} objects are faulty, more than can be left out."
            advice = "Record it again with torch.profiler (CPU and CUDA activities)."
            found = [f"  {sentence}" for sentence in faults.sentences()]
            raise TraceError("\n".join([f"{path}: {rule}", *found, advice]))
        rank, world_size, is_stated = self._rank()
        base_ns = around.get("baseTimeNanoseconds", 0)
        if not isinstance(base_ns, int) or abs(base_ns) >= _LARGEST_BASE_NS:
            faults.add("baseTimeNanoseconds is not a valid time; read as 0", "the head")
            base_ns = 0
        columns = self.rows.columns(base_ns)
        devices = around.pop("deviceProperties", None)
        return Trace(
            document=str(path),
            rank=rank,
            world_size=world_size,
            columns=columns,
            names=tuple(self.rows.names),
            details=tuple(self.rows.details),
            devices=tuple(
                device
                for device in (devices if isinstance(devices, list) else ())
                if isinstance(device, dict)
            ),
            properties=around,
            report=ReadReport(
                objects=self.objects,
                kept=len(columns),
                faults=faults.sentences(),
            ),
            is_rank_stated=is_stated,
        )

    def _rank(self) -> tuple[int, int, bool]:
        """Rank, world size, and whether the rank is stated in the file or its name."""
        rank, world_size = self._stated("rank", 0), self._stated("world_size", 1)
        match = _RANK_IN_NAME.search(self.stream.path.name)
        if rank is None and match:
            rank = int(match[1])
        if rank is not None and world_size is not None and rank >= world_size:
            self.stream.faults.add(f"rank {rank} is not in a job of {world_size} ranks", "the head")
        return rank or 0, world_size or 1, rank is not None

    def _stated(self, key: str, least: int) -> int | None:
        info = self.stream.surroundings.get("distributedInfo")
        value = info.get(key) if isinstance(info, dict) else None
        if value is None or value == -1:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_RANKS:
            return value
        self.stream.faults.add(
            f"distributedInfo.{key} must be a whole number, {least} to {MOST_RANKS}, is "
            f"{value!r:.40}; read as absent",
            "the head",
        )
        return None
