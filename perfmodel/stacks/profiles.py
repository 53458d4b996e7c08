"""Stack profiles: loading a software stack from its file.

A profile inherits every key that it does not state from the profile it extends, at every level of
nesting. A key without a value (`gemm: null`) drops what it would inherit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.documents import find_document, list_documents
from perfmodel.base.errors import CalibrationError, UnitError
from perfmodel.base.forms import Document, load_extended
from perfmodel.base.units import parse_duration_ns
from perfmodel.stacks.spread import load_spread
from perfmodel.stacks.stack import SoftwareStack

STACK_FOLDER = Path(__file__).parent / "catalog"
_OWN_KEYS = ("host_speed_ratio", "stands_for", "evidence")
"""Keys that describe one profile only and are not inherited."""


def list_stacks() -> tuple[str, ...]:
    """Names of the software stacks that come with perfmodel."""
    return list_documents(STACK_FOLDER)


def find_profile(name_or_path: str | Path) -> Path:
    """The file itself, or the one of that name that comes with perfmodel."""
    return find_document(
        name_or_path, folder=STACK_FOLDER, what="software stack", error_type=CalibrationError
    )


def load_stack(name_or_path: str | Path) -> SoftwareStack:
    """The stack in a file, or the one of that name that comes with perfmodel."""
    stack, families = load_profile(name_or_path).read(SoftwareStack), load_spread().families
    if stack.family is not None and stack.family not in families:
        raise CalibrationError(
            f"{name_or_path}: family must be one of {', '.join(families)}, got {stack.family!r}. "
            "Leave it out if the stack runs all."
        )
    return stack


def load_profile(name_or_path: str | Path) -> Document:
    """What the file of a stack says, over what the stacks that it extends say."""
    path = find_profile(name_or_path)
    return load_extended(path, CalibrationError, find=find_profile, merge=_merge)


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """*own* over *base*, whose host is slower or faster by the ratio that *own* states.

    Host times that *own* states are not those of the CPU of *base*.
    """
    inherited = {key: value for key, value in base.items() if key not in _OWN_KEYS}
    ratio = own.get("host_speed_ratio", 1.0)
    if isinstance(inherited.get("host"), dict) and isinstance(ratio, int | float) and ratio > 0:
        inherited["host"] = _slowed(inherited["host"], 1.0 / ratio)
        if isinstance(own.get("host"), dict):
            inherited["host"].pop("cpu", None)
    return _inherit(inherited, own)


def _inherit(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """*own* over *base*, key by key at every level; a key without a value drops what *base* says.

    What cannot be merged stays as it is, and is refused when it is read.
    """
    merged = dict(base)
    for key, value in own.items():
        if value is None and key in base:
            del merged[key]
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _inherit(base[key], value)
        else:
            merged[key] = value
    return merged


def _slowed(times: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """*times* with every duration of the host multiplied by *factor*, still text with its unit."""
    result: dict[str, Any] = {}
    for key, value in times.items():
        result[key] = _slowed(value, factor) if isinstance(value, dict) else value
        if isinstance(value, str) and key != "launch_latency":
            try:
                result[key] = f"{parse_duration_ns(value) * factor:.6g} ns"
            except UnitError:
                continue
    return result
