"""Parsing: transformations as typed text, `scale:match=gemm,factor=0.5`.

A value without a key, `machine:dgx_h100`, belongs to the first parameter.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import ScenarioError
from perfmodel.base.options import EXAMPLES, expand_values
from perfmodel.extensions.whatif.recipes import load_recipes
from perfmodel.extensions.whatif.transformation import Transformation


@dataclass(frozen=True, slots=True)
class Sweep:
    """The transformation for each of several values of one parameter, as typed in *text*."""

    text: str
    name: str
    key: str
    points: tuple[tuple[str, Transformation], ...]


def parse_transformation(text: str, *, topology: str | None = None) -> Transformation:
    """The transformation that *text* describes.

    *topology* is the machine for those that take one and do not name it.
    """
    name, given = _split(text)
    return build_transformation(name, given, text=text, topology=topology)


def parse_sweep(text: str, *, topology: str | None = None) -> Sweep:
    """The transformations that *text* describes, with one parameter as `a,b,c` or `a:b:x2`."""
    name, given = _split(_joined(text))
    expanded = {key: expand_values(value.replace(_COMMA, ",")) for key, value in given.items()}
    several = {key: values for key, values in expanded.items() if len(values) > 1}
    if len(several) != 1:
        raise ScenarioError(
            f"sweep {text!r}: must have exactly one parameter with several values, has "
            f"{len(several)}. {EXAMPLES}"
        )
    [(key, values)] = several.items()

    def build(value: str) -> Transformation:
        stated = given | {key: value}
        return build_transformation(name, stated, text=text, topology=topology)

    return Sweep(text, name, key, tuple((value, build(value)) for value in values))


def build_transformation(
    name: str,
    given: Mapping[str, Any],
    *,
    text: str | None = None,
    topology: str | None = None,
) -> Transformation:
    """The what-if *name* with parameters as *given*; errors show *text*."""
    recipe = load_recipes()[name]
    moves = any(step.primitive == "rehost" for step in recipe.steps)
    machine = "was" if moves else "topology"
    if topology is not None and machine in recipe.parameters:
        given = {machine: topology, **given}
    stated = {key: value for key, value in given.items() if value is not None}
    values = recipe.read(stated, name=name, document=f"what-if {text or name!r}")
    return Transformation(name, recipe, values)


_COMMA = ";"
"""Replaces a comma inside the values of a sweep, where commas also separate parameters."""


def _joined(text: str) -> str:
    """*text* with a piece that names no parameter joined to the previous value."""
    first, *others = text.split(",")
    return first + "".join(f",{piece}" if "=" in piece else _COMMA + piece for piece in others)


def _split(text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition(":")
    name, known = name.strip(), load_recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"what-if {name!r}: must be one of {', '.join(known)}.{hint}")
    given: dict[str, str] = {}
    keys = known[name].keys
    for piece in filter(None, rest.split(",")):
        key, sign, value = piece.partition("=")
        if keys and not sign and not given and key.strip() not in keys:
            key, sign, value = keys[0], "=", piece
        if not sign or not key.strip() or not value.strip() or key.strip() in given:
            raise ScenarioError(
                f"what-if {text!r}: parameters must be key=value, each once, separated by "
                f"commas; got {piece!r}. {known[name].advice(name)}"
            )
        given[key.strip()] = value.strip()
    return name, given
