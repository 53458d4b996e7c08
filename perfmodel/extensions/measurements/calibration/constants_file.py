"""Constants of kernels as the file that perfmodel reads: a header, and one entry per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.calibration_files import HEADER_KEYS, Entry


def entry_to_document(entry: Entry) -> dict[str, Any]:
    """*entry* without corrections as plain values, five digits."""
    return {
        "device": entry.device,
        "architecture": entry.architecture,
        "compute_capability": entry.compute_capability,
        "variant": entry.variant,
        "constants": {key: float(f"{value:.5g}") for key, value in entry.constants.items()},
        "correction": None,
        "relative_sigma": round(entry.relative_sigma, 4),
        "curves": {
            name: [[float(f"{number:.5g}") for number in pair] for pair in curve]
            for name, curve in entry.curves.items()
        },
    }


def documents_to_text(header: Mapping[str, str], documents: Sequence[Mapping[str, Any]]) -> str:
    """A calibration file of the entries in *documents*, one per line."""
    missing = [key for key in HEADER_KEYS if not header.get(key)]
    if missing:
        raise CalibrationError(f"calibration: must state {', '.join(missing)}.")
    lines = [json.dumps(one, separators=(",", ":")) for one in documents]
    head = json.dumps(dict(header), indent=1).rstrip("}\n")
    return head + ',\n "entries": [\n' + ",\n".join(lines) + "\n]}\n"
