"""Writing a fitted calibration of collectives as a file that can be loaded and read."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from collectives.calibration import SCHEMA_VERSION, Calibration
from collectives.calibration_file import to_document, to_numbers
from collectives.measurements import CollectiveMeasurement

_HEADING = """\
# Fitted constants of collectives. Times in nanoseconds, ratios of the datasheet's bandwidth.
# Made by the command below; do not edit by hand.
"""


def write_calibration(calibration: Calibration, path: Path, *, about: Mapping[str, str]) -> None:
    """Write *calibration* to *path*; *about* says source, hardware, software, licence, command."""
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **about}
    document |= to_document(calibration.hosts, calibration.fabrics)
    document["software_constants"] = to_numbers(calibration.software)
    document["uncertainty"] = dict(calibration.uncertainty)
    document["measured"] = [
        [span.topology, span.kind.value, span.hosts, span.ranks, span.low_bytes, span.high_bytes]
        for span in calibration.spans
    ]
    text = yaml.safe_dump(document, sort_keys=False, width=100, default_flow_style=None)
    path.write_text(_HEADING + text, encoding="utf-8")


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
