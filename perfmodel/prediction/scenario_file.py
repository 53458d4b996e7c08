"""Scenario files: a question kept as YAML, about a workload or about a job.

The keys are the fields of `Scenario` or `JobScenario`; `set` is a mapping of workload fields to
change. `name` and `description` are remarks.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from perfmodel.base.errors import ScenarioError
from perfmodel.base.forms import load_document
from perfmodel.base.options import options_of
from perfmodel.prediction.scenario import JobScenario, Scenario, overrides_of

_FILES = ("tables", "indices", "plan", "job", "calibration", "layout_from")


@cache
def scenario_form(kind: type[Scenario] | type[JobScenario]) -> type[BaseModel]:
    """What a file with a *kind* may state, made from its fields."""
    types = get_type_hints(kind)
    options = options_of(kind)  # type: ignore[arg-type]  # mypy takes the classes for unhashable
    keys: dict[str, Any] = {"name": (str, ""), "description": (str, "")}
    for one in fields(kind):
        # Strict is the rule: `hosts: true` is not a number. A word of an enum is text in a file.
        is_enum = isinstance(types[one.name], type) and issubclass(types[one.name], Enum)
        hint = Annotated[types[one.name], Field(strict=False)] if is_enum else types[one.name]
        option = options[one.name][1]
        # Samples may be 0, for no interval.
        if option.min is not None and one.name != "samples":
            hint = Annotated[hint, Field(ge=option.min)]
        keys[one.name] = hint, ... if one.default is MISSING else one.default
    keys["calibration"] = keys["faults"] = str | list[str], ()
    if keys.pop("overrides", None):
        keys["set"] = dict[str, Any], {}
    config = ConfigDict(extra="forbid", strict=True, str_strip_whitespace=True, str_min_length=1)
    return create_model(f"{kind.__name__}File", __config__=config, **keys)


def load_scenario(path: str | Path) -> Scenario | JobScenario:
    """The question in *path*; files that it names are in its folder, or at their own path."""
    path = Path(path)
    if not path.is_file():
        raise ScenarioError(
            f"scenario {path}: must be a file, and there is none. "
            "`perfmodel init scenario --out FILE` writes one to start from."
        )
    document = load_document(path, ScenarioError, what="scenario")
    kind = JobScenario if "job" in document.content else Scenario
    stated = document.read(scenario_form(kind)).model_dump(exclude_unset=True)

    def beside(key: str, text: str) -> str:
        is_path = key in _FILES or text.endswith((".yaml", ".yml"))
        return str(path.parent / text) if is_path and (path.parent / text).exists() else text

    values: dict[str, Any] = {}
    for key, value in stated.items():
        if key == "set":
            values["overrides"] = overrides_of(value)
        elif key in ("calibration", "faults"):
            texts = value if isinstance(value, list) else [value]
            values[key] = tuple(beside(key, text) for text in texts)
        elif key not in ("name", "description"):
            values[key] = beside(key, value) if isinstance(value, str) else value
    return kind(**values)
