"""Rows of a fit: what is held out, what is left out, and which spans were measured."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from collectives.calibration import SCHEMA_VERSION, Calibration
from collectives.collective import CollectiveKind
from collectives.constants import MeasuredSpan
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.errors import CalibrationError
from perfmodel.base.forms import to_plain
from perfmodel.base.writing import write_file

_HEADING = """\
# Fitted constants of collectives. Times in nanoseconds, ratios of the datasheet's bandwidth.
# Made by the command below; do not edit by hand.
"""


def write_calibration(calibration: Calibration, path: Path, *, about: Mapping[str, str]) -> None:
    """Write *calibration* to *path*; *about* says source, hardware, software, licence, command."""
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **about}
    document["hosts"] = [to_plain(entry) for entry in calibration.hosts]
    document["fabrics"] = [to_plain(entry) for entry in calibration.fabrics]
    document["software_constants"] = to_plain(calibration.software_constants)
    document["uncertainty"] = dict(calibration.uncertainty)
    document["measured"] = [
        [span.topology, span.kind.value, span.hosts, span.ranks, span.low_bytes, span.high_bytes]
        for span in calibration.spans
    ]
    text = yaml.safe_dump(document, sort_keys=False, width=100, default_flow_style=None)
    write_file(path, _HEADING + text)


def about_tables(
    measurements: Sequence[CollectiveMeasurement], *, command: str, licence: str, day: datetime.date
) -> dict[str, str]:
    """Where constants come from: the sources, machines and releases that the tables name."""
    sources = sorted({row.source or "not stated" for row in measurements})
    versions = sorted({row.nccl_version for row in measurements if row.nccl_version is not None})
    named = [".".join(str(part) for part in version) for version in versions]
    if any(row.nccl_version is None for row in measurements):
        named.append("releases not stated")
    return {
        "source": "; ".join(sources),
        "hardware": ", ".join(sorted({row.topology for row in measurements})),
        "software": f"NCCL {', '.join(named)}",
        "date": day.isoformat(),
        "licence": licence,
        "command": command,
    }


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
