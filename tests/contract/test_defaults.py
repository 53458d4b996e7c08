"""Defaults that users rely on, as recorded: of commands, of Python functions, of files.

Also every number that a module states by name (limits, sizes, codes, defaults of parameters): one
that changes is seen in review.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import collectives
import embeddings
import perfmodel
import topologies
import traces
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


def is_number(value: Any) -> bool:
    """Whether *value* is a number, or holds nothing else."""
    if isinstance(value, dict | tuple | list | frozenset):
        inner = value.values() if isinstance(value, dict) else value
        return len(value) > 0 and all(map(is_number, inner))
    return isinstance(value, int | float)


def of_parts(parts: Mapping[str, Any], module: str, around: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers among *parts* of *module*, or of a class in it, and in their signatures."""
    for key, value in parts.items():
        name = f"{around}{key}"
        if isinstance(value, Enum):
            yield name, value.value
        elif is_number(value) and key.isupper() and key != "CACHES":  # the machine's, not ours
            yield name, sorted(value) if isinstance(value, frozenset) else value
        elif getattr(value, "__module__", None) != module:
            continue
        elif inspect.isfunction(value):
            for one in inspect.signature(value).parameters.values():
                yield f"{name}({one.name})", one.default
        elif inspect.isclass(value):
            yield from of_parts(vars(value), module, f"{name}.")


def of_modules() -> Iterator[tuple[str, Any]]:
    """The numbers that every module states, without those it imports."""
    for package in (perfmodel, collectives, embeddings, topologies, traces):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                module = importlib.import_module(found.name)
                imported = {
                    name.asname or name.name
                    for node in ast.walk(ast.parse(inspect.getsource(module)))
                    if isinstance(node, ast.ImportFrom)
                    for name in node.names
                }
                parts = {key: value for key, value in vars(module).items() if key not in imported}
                numbers = dict(of_parts(parts, found.name))
                stating = {key: str(one) for key, one in numbers.items() if is_number(one)}
                yield f"module {found.name}", stating


def values() -> dict[str, Any]:
    found = dict(of_names())
    for name in COMMANDS:
        found.update(of_command(load_command(name), f"perfmodel {name}"))
    for kind in api.SchemaKind:
        found[f"schema {kind.value}"] = dict(of_schema(api.json_schema(kind)))
    return found | {name: numbers for name, numbers in of_modules() if numbers}


def test_defaults_are_those_that_were_recorded():
    recorded.check(__file__, values())
