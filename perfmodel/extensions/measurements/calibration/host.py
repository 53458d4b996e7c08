"""Host calibration: a software stack from host overheads that `trace extract` found.

T1 and the launch calls are one number each, weighted by their counts; T2, T3 and T5 are one number
per operator, and their weighted means are the defaults of other operators. Everything else is
inherited from another stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from perfmodel.base.errors import CalibrationError
from perfmodel.base.reading import load_rows
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.profiles import find_profile
from perfmodel.stacks.stack import canonical_operator

_COLUMNS = ("type", "op", "mean_us", "count")
_PARTS = {
    HostPart.BEFORE_LAUNCH: "before_launch",
    HostPart.AFTER_LAUNCH: "after_launch",
    HostPart.BETWEEN_LAUNCHES: "between_launches",
}
_WHOLE = {HostPart.BETWEEN_OPERATORS: "between_operators", HostPart.LAUNCH: "launch"}
_MOST_US = 1e6
_AUTOGRAD = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class HostLine:
    """One line of the table."""

    part: HostPart
    operator: str
    mean_us: float
    count: int


def load_host_lines(path: Path) -> tuple[HostLine, ...]:
    """Read host_overheads.csv; all its faults are reported."""
    rows = load_rows(path, CalibrationError, _COLUMNS)
    lines, faults = [], []
    for number, row in enumerate(rows, start=2):
        try:
            lines.append(_line(row))
        except (ValueError, TypeError) as fault:
            faults.append(f"  line {number}: {str(fault)[:200]}")
    if faults or not lines:
        heading = f"{path}: must hold host overheads, one per line"
        raise CalibrationError("\n".join([heading, *(faults[:8] or ["  holds none"])]))
    return tuple(lines)


def _line(row: dict[str, Any]) -> HostLine:
    mean_us, count = float(row["mean_us"]), int(row["count"])
    if not 0 <= mean_us <= _MOST_US or not math.isfinite(mean_us):
        raise ValueError(f"mean_us must be 0 to {_MOST_US:g}, is {row['mean_us']}")
    if not 0 < count < 2**40:
        raise ValueError(f"count must be above 0, is {row['count']}")
    return HostLine(HostPart(row["type"]), str(row["op"] or ""), mean_us, count)


def build_host_stack(lines: Iterable[HostLine], *, name: str, extends: str, **header: str) -> str:
    """A stack file *name* with the host times of *lines*, as YAML.

    Everything else comes from the stack *extends*; *header* is source, date and licence.
    """
    find_profile(extends)
    sums: dict[tuple[HostPart, str], list[float]] = {}
    for line in lines:
        word = line.operator.removeprefix(_AUTOGRAD)
        operator = canonical_operator(word) if line.part in _PARTS else ""
        for place in {(line.part, operator), (line.part, "")}:
            total = sums.setdefault(place, [0.0, 0.0])
            total[0] += line.mean_us * line.count
            total[1] += line.count
    means = {place: total / count for place, (total, count) in sums.items()}
    operators: dict[str, dict[str, str]] = {}
    for part, operator in sorted(means, key=lambda place: (place[1], place[0].value)):
        if operator:
            operators.setdefault(operator, {})[_PARTS[part]] = _us(means[part, operator])

    def of_all(words: Mapping[HostPart, str]) -> dict[str, Any]:
        return {word: _us(means[part, ""]) for part, word in words.items() if (part, "") in means}

    host = {**of_all(_WHOLE), "default": of_all(_PARTS), "operators": operators}
    content = {
        "name": name,
        "description": f"{extends} with host times of a recording.",
        **header,
        "extends": extends,
        "host": host,
    }
    return yaml.safe_dump(
        content, sort_keys=False, width=100, allow_unicode=True, explicit_end=True
    )


def _us(mean_us: float) -> str:
    return f"{round(mean_us, 3):g} us"
