"""Rows of a fit: what is held out, what is left out, and which spans were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.collective import CollectiveKind
from collectives.entries import MeasuredSpan
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.errors import CalibrationError


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A row and its prediction; *latency_ratio* is the share of the prediction that is latency."""

    measurement: CollectiveMeasurement
    predicted_ns: float
    latency_ratio: float
    relative_sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A machine kept out of a fit, or only its runs on *hosts* hosts."""

    topology: str
    hosts: int | None = None

    @property
    def name(self) -> str:
        """As a user writes it: `dgx_h100` or `dgx_h100:10`."""
        return self.topology if self.hosts is None else f"{self.topology}:{self.hosts}"

    def covers(self, row: CollectiveMeasurement) -> bool:
        """Whether *row* is kept out."""
        return row.topology == self.topology and self.hosts in (None, row.hosts)


def parse_left_out(text: str) -> LeftOut:
    """Read `NAME` or `NAME:HOSTS`."""
    name, _, hosts = text.partition(":")
    if not name or (hosts and not hosts.isdecimal()):
        raise CalibrationError(
            f"leave-out: must be a topology, or one with its number of hosts such as "
            f"dgx_h100:10, got {text!r}."
        )
    return LeftOut(name, int(hosts) if hosts else None)


def measured_spans(measurements: Sequence[CollectiveMeasurement]) -> tuple[MeasuredSpan, ...]:
    """The curves that *measurements* hold, each from its smallest to its largest size."""
    sizes: dict[tuple[str, CollectiveKind, int, int], list[int]] = {}
    for row in measurements:
        sizes.setdefault((row.topology, row.kind, row.hosts, row.ranks), []).append(row.size_bytes)
    return tuple(
        MeasuredSpan(*key, low_bytes=min(values), high_bytes=max(values))
        for key, values in sorted(sizes.items(), key=lambda item: (str(item[0]),))
    )
