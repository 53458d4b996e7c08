"""Scenario files: a question kept as YAML, about a workload or about a job.

The keys are the words of the command line; `set` holds fields of the workload
to change, as a mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from perfmodel.base.documents import FaultList, load_yaml
from perfmodel.base.errors import ScenarioError
from perfmodel.prediction.scenario import (
    Interference,
    JobScenario,
    Mode,
    Scenario,
    overrides_of,
)

_FILES = ("tables", "indices", "plan", "job", "calibration")
_NUMBERS = ("hosts", "ranks_per_host", "seed", "samples")
_FLAGS = ("force",)
_WORDS: Mapping[str, type[Enum]] = {"mode": Mode, "interference": Interference}
_REMARKS = ("name", "description")


def load_scenario(path: str | Path) -> Scenario | JobScenario:
    """The question in *path*; files that it names lie beside it, or at their own path."""
    path = Path(path)
    if not path.is_file():
        raise ScenarioError(
            f"scenario {path}: must be a file, and there is none. "
            "`perfmodel init scenario --out FILE` writes one to start from."
        )
    return parse_scenario(load_yaml(path, error_type=ScenarioError), path=path)


def parse_scenario(content: Mapping[str, Any], *, path: Path) -> Scenario | JobScenario:
    """The question in *content*, read from *path*; raises with every fault."""
    faults = FaultList(f"scenario {path}")
    kind = JobScenario if "job" in content else Scenario
    known = {one.name for one in fields(kind)} - {"overrides"} | {*_REMARKS}
    known |= {"set"} if kind is Scenario else set()
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            near = get_close_matches(str(key), sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            faults.add(str(key), f"unknown key; {hint}")
        elif key not in _REMARKS:
            values["overrides" if key == "set" else key] = _read(key, value, path, faults)
    required = "topology" if kind is Scenario else "job"
    if required not in content:
        faults.add(required, "must be given, but is missing")
    faults.check(ScenarioError)
    return kind(**values)


def _read(key: str, value: Any, path: Path, faults: FaultList) -> Any:
    if key == "set":
        return _read_changes(value, faults)
    if key in _WORDS:
        words = {member.value: member for member in _WORDS[key]}
        if not isinstance(value, str) or value not in words:
            faults.add(key, f"must be one of {', '.join(words)}, got {value!r}")
            return None
        return words[value]
    if key in (*_NUMBERS, *_FLAGS):
        kind, rule = (int, "a whole number") if key in _NUMBERS else (bool, "true or false")
        # Python counts True as a number.
        if type(value) is not kind:
            faults.add(key, f"must be {rule}, got {value!r}")
        return value
    if key == "calibration":
        files = value if isinstance(value, list) else [value]
        return tuple(_read_text(key, file, path, faults) for file in files)
    return _read_text(key, value, path, faults)


def _read_text(key: str, value: Any, path: Path, faults: FaultList) -> str:
    if not isinstance(value, str) or not value.strip():
        faults.add(key, f"must be a text, got {value!r}")
        return ""
    beside = path.parent / value
    is_path = key in _FILES or value.endswith((".yaml", ".yml"))
    return str(beside) if is_path and beside.exists() else value


def _read_changes(value: Any, faults: FaultList) -> tuple[str, ...]:
    if not isinstance(value, dict):
        faults.add("set", f"must be a mapping of fields to values, got {value!r}")
        return ()
    return overrides_of(value)
