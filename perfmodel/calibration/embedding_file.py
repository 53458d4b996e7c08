"""The calibration file of embedding kernels: constants by generation, where each is from."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from perfmodel.base.errors import MeasurementError
from perfmodel.calibration.embedding_fit import ASSUMED, FITTED, LENDERS, CaseError, EmbeddingFit
from perfmodel.costs.embedding_constants import HEADER, EmbeddingConstants

_HEADING = """\
# Constants of fused embedding kernels, one set a GPU generation. Others take those of ampere,
# scaled by their datasheets. Ratios are of the datasheet's bandwidths. Made by the command below.
"""
_KEYS = {
    "floor_ns": "floor",
    "memory_ratio": "memory_ratio",
    "cache_ratio": "cache_ratio",
    "sort_ratio": "sort_ratio",
    "updates_per_clock": "updates_per_clock",
    "block_ns": "block_time",
    "long_row_ns": "long_row_time",
    "long_row_entry_ns": "long_row_entry_time",
    "tail_row_ns": "tail_row_time",
    "relative_sigma": "relative_sigma",
}


def to_text(fit: EmbeddingFit, about: Mapping[str, str]) -> str:
    """The file; *about* has every key of the header."""
    missing = [key for key in HEADER if not about.get(key)]
    if missing:
        raise MeasurementError(f"calibrate embedding: the header needs {', '.join(missing)}.")
    lines = [_HEADING.rstrip()]
    for key in HEADER:
        folded = textwrap.wrap(about[key], 96)
        lines += [f"{key}: >-", *(f"  {line}" for line in folded)]
    lines.append("generations:")
    for name, constants in fit.generations.items():
        lines.append(f"  {name}:")
        lines += [f"    {line}" for line in _entry(name, constants)]
    return "\n".join(lines) + "\n"


def write_constants(fit: EmbeddingFit, about: Mapping[str, str], path: Path) -> None:
    """Write the file to *path*."""
    path.write_text(to_text(fit, about), encoding="utf-8")


def format_errors(errors: tuple[CaseError, ...]) -> list[str]:
    """One line a time: measured, predicted, error, held-out error, the other method's error."""
    width = max(len(error.case) for error in errors)
    words = f"{'part':<9}{'measured':>11}{'predicted':>11}{'error':>9}"
    lines = [f"{'case':<{width}}  {words}{'held out':>10}{'heuristic':>11}"]
    for error in errors:
        other = "" if error.heuristic_pct is None else f"{error.heuristic_pct:+.1f} %"
        mark = "" if error.is_fitted else "  not fitted"
        lines.append(
            f"{error.case:<{width}}  {error.part:<9}{error.measured_ns / 1e3:>8.1f} us"
            f"{error.predicted_ns / 1e3:>8.1f} us{error.error_pct:>+7.1f} %"
            f"{error.held_out_pct:>+8.1f} %{other:>11}{mark}"
        )
    return lines


def _entry(name: str, constants: EmbeddingConstants) -> list[str]:
    lines = []
    for field, key in _KEYS.items():
        value = getattr(constants, field)
        text = f"{value:g} ns" if field.endswith("_ns") else f"{value:g}"
        lines.append(f"{key}: {text}{_origin(name, field)}")
    return lines


def _origin(name: str, field: str) -> str:
    if field in ASSUMED:
        return "  # assumed: no case decides it"
    if field == "relative_sigma":
        return "  # from held-out errors"
    return "" if field in FITTED[name] else f"  # that of {LENDERS[name]}"
