"""Defaults that users rely on, as recorded: of commands, of Python functions, of files."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from typing import Any

from perfmodel import api
from perfmodel.cli import COMMANDS, load_command
from tests import recorded

BOUNDS = ("default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NO_DEFAULT = (None, dataclasses.MISSING, inspect.Parameter.empty)


def stated(defaults: Iterator[tuple[str, Any]]) -> dict[str, str]:
    """*defaults* that say something, and not where an object is in memory."""
    found = {name: str(value) for name, value in defaults if value not in NO_DEFAULT}
    return {name: text for name, text in found.items() if "0x" not in text}


def of_command(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The defaults of *command* and of those below it."""
    yield path, stated((one.name, one.default) for one in command.params)
    for name, below in getattr(command, "commands", {}).items():
        yield from of_command(below, f"{path} {name}")


def of_names() -> Iterator[tuple[str, Any]]:
    """The defaults of public functions, and of the fields of public dataclasses."""
    for name in sorted(api.__all__):
        found = getattr(api, name)
        if dataclasses.is_dataclass(found):
            yield name, stated((one.name, one.default) for one in dataclasses.fields(found))
        elif inspect.isfunction(found):
            parameters = inspect.signature(found).parameters.values()
            yield name, stated((one.name, one.default) for one in parameters)


def of_schema(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The defaults and bounds in a JSON schema."""
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in BOUNDS:
            yield f"{place} {key}", json.dumps(value)
        else:
            yield from of_schema(value, f"{place}.{key}")


def values() -> dict[str, Any]:
    found = dict(of_names())
    for name in COMMANDS:
        found.update(of_command(load_command(name), f"perfmodel {name}"))
    for kind in api.SchemaKind:
        found[f"schema {kind.value}"] = dict(of_schema(api.json_schema(kind)))
    return found


def test_defaults_are_those_that_were_recorded():
    recorded.check(__file__, values())
