"""Times of embedding kernels from what was recorded: a table of kernels, or a Kineto file.

A sorted backward pass is a row of kernels on one stream: indices are made
linear, sorted and coded, then long rows and all others are updated.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import MeasurementError
from perfmodel.base.units import NS_PER_US

FIRST_KERNEL = "linearize_index_kernel"


@dataclass(frozen=True, slots=True)
class RecordedUnits:
    """Words in the names of kernels: of the forward kernel and of the two updates."""

    forward: str
    long_rows: str
    short_rows: str

    @classmethod
    def of_kind(cls, kind: str) -> RecordedUnits:
        """The kernels of lookups with or without weights."""
        return cls(
            f"codegen_forward_{kind}_kernel",
            f"_{kind}_kernel_cta_per_row",
            f"_{kind}_kernel_warp_per_row",
        )


def read_kernel_table(
    path: Path, *, runs: Sequence[str], words: Mapping[str, str]
) -> dict[str, float]:
    """Mean time over all calls in *runs* of the kernel whose name holds each of *words*."""
    if not path.is_file():
        raise MeasurementError(f"{path}: must be a table of kernels, but there is no such file.")
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("trace") in runs]
    found = {}
    for part, word in words.items():
        times = [float(row["time_us"]) for row in rows if word in row["kernel"]]
        if not times:
            raise MeasurementError(
                f"{path}: has no kernel with {word!r} in its name in {', '.join(runs)}."
            )
        found[part] = NS_PER_US * sum(times) / len(times)
    return found


def read_recording(path: Path, units: RecordedUnits) -> dict[str, float]:
    """Mean times of the parts of a sorted lookup and update in the recording at *path*."""
    from traces.kineto import load_kineto
    from traces.trace import Category

    if not path.is_file():
        raise MeasurementError(f"{path}: must be a Kineto file, but there is no such file.")
    trace = load_kineto(path)
    columns = trace.columns.take(trace.columns.is_in(Category.KERNEL))
    calls = _Calls(units)
    for row, number in enumerate(columns.name.tolist()):
        calls.add(trace.names[number], int(columns.stream[row]), int(columns.duration_ns[row]))
    if not calls.forward_ns or not calls.updates:
        raise MeasurementError(f"{path}: has no whole lookup with {units.forward!r} in its names.")
    parts = {
        part: sum(update[part] for update in calls.updates) / len(calls.updates)
        for part in ("prepared", "long", "short")
    }
    forward = sum(calls.forward_ns) / len(calls.forward_ns)
    return {"forward": forward, "backward": sum(parts.values()), **parts}


class _Calls:
    """Kernels in the order they began, gathered to lookups and updates."""

    def __init__(self, units: RecordedUnits) -> None:
        self._units = units
        self._stream: int | None = None
        self._open = {"prepared": 0, "long": 0, "short": 0}
        self.forward_ns: list[int] = []
        self.updates: list[dict[str, int]] = []

    def add(self, name: str, stream: int, duration_ns: int) -> None:
        """Take notice of the next kernel."""
        if self._units.forward in name:
            self.forward_ns.append(duration_ns)
        elif FIRST_KERNEL in name:
            self._stream = stream
            self._open = {"prepared": duration_ns, "long": 0, "short": 0}
        elif stream == self._stream:
            self._follow(name, duration_ns)

    def _follow(self, name: str, duration_ns: int) -> None:
        if self._units.short_rows in name:
            self.updates.append({**self._open, "short": duration_ns})
        if "_kernel_warp_per_row" in name:
            # The update ends here, and so does one of the other kind.
            self._stream = None
        elif self._units.long_rows in name:
            self._open["long"] += duration_ns
        elif self._open["long"] == 0:
            self._open["prepared"] += duration_ns
