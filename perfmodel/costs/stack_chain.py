"""Stack chain: finding profile files, and laying a profile over the one it extends.

A profile takes over every key it does not state; host operators are merged one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import CalibrationError
from perfmodel.base.units import parse_duration_ns

STACK_FOLDER = Path(__file__).parent / "stacks"

_KEYS = {
    "name", "description", "source", "date", "licence", "hardware", "extends", "execution",
    "optimizer_kernels", "fusions", "overlaps", "attention_kernels", "matmul_dtypes",
    "sustained_slowdown", "kernel_time_ratio", "relative_sigma", "residency", "host",
    "host_speed_ratio", "habits", "tables",
}  # fmt: skip
_MAX_CHAIN = 8


def list_stacks() -> tuple[str, ...]:
    """Names of the software stacks that come with perfmodel."""
    return tuple(sorted(path.stem for path in STACK_FOLDER.glob("*.yaml")))


def find_profile(name_or_path: str | Path) -> Path:
    """The file itself, or the one of that name that comes with perfmodel."""
    path = Path(name_or_path)
    bundled = STACK_FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.exists() and not path.is_dir():
        return path
    if path.parent == Path() and bundled.exists():
        return bundled
    raise CalibrationError(
        f"software stack {str(name_or_path)!r}: must be a file or one of "
        f"{', '.join(list_stacks())}, found neither. Check the spelling or give a path."
    )


def merge_profile(path: Path, *, depth: int = 0) -> dict[str, Any]:
    """The content of *path* laid over what it extends."""
    content = load_yaml(path, error_type=CalibrationError)
    unknown = sorted(set(content) - _KEYS)
    if unknown:
        raise CalibrationError(
            f"{path}: unknown keys {', '.join(unknown)}. Known keys: {', '.join(sorted(_KEYS))}."
        )
    if "extends" not in content:
        return content
    if depth >= _MAX_CHAIN:
        raise CalibrationError(
            f"{path}: `extends` chain is longer than {_MAX_CHAIN}; is it a loop?"
        )
    base = merge_profile(find_profile(str(content["extends"])), depth=depth + 1)
    return _overlay(base, content, path)


def _overlay(base: dict[str, Any], content: dict[str, Any], path: Path) -> dict[str, Any]:
    ratio = content.get("host_speed_ratio", 1.0)
    if not isinstance(ratio, int | float) or not ratio > 0:
        raise CalibrationError(f"{path}: host_speed_ratio: must be above zero, got {ratio!r}.")
    host = _slowed(base.get("host", {}), 1.0 / ratio)
    own = content.get("host", {})
    if not isinstance(own, dict):
        raise CalibrationError(f"{path}: host: must be a mapping, got {own!r}.")
    # An empty table of operators, stated, takes over none: a captured graph has no operators.
    is_cleared = own.get("operators") == {}
    operators = {} if is_cleared else {**host.get("operators", {}), **own.get("operators", {})}
    default = {**host.get("default", {}), **own.get("default", {})}
    merged_host = {**host, **own, "operators": operators, "default": default}
    kept = {key: value for key, value in base.items() if key != "host_speed_ratio"}
    return {**kept, **content, "host": merged_host}


def _slowed(times: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """*times* with every duration multiplied by *factor*, still as text with its unit."""
    result: dict[str, Any] = {}
    for key, value in times.items():
        if isinstance(value, dict):
            result[key] = _slowed(value, factor)
        elif isinstance(value, str) and key != "launch_latency":
            result[key] = f"{parse_duration_ns(value) * factor:.6g} ns"
        else:
            result[key] = value
    return result
