"""Recipes: what-ifs as data, each a few steps of primitives.

They are in `recipes.yaml`. An argument of a step is a value, or `$name` for a parameter of the
recipe. Sentences hold `{name}` for a parameter or a word; a word is the first of its alternatives
whose conditions hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_core import core_schema

from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.base.fields import Line, ReadAs, Switch
from perfmodel.base.forms import Document, Form, load_document
from perfmodel.extensions.whatif.parameters import KINDS, LOOSE, Parameter, kind_of, values_form
from perfmodel.extensions.whatif.primitives import PRIMITIVES, arguments_of
from perfmodel.prediction.saved_jobs import DEFAULT_STACK

COMPUTED_WORDS = {"selected": "select", "host_times": "rehost"}
"""Words that a step knows: by its primitive."""
PLACEHOLDER = re.compile(r"\{(\w+)(?::(\.\d[gf%]))?\}")
"""A word or parameter in a sentence, with the format of a number."""
Conditions = dict[str, str]
"""By parameter `given`, `none`, or its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(Form):
    """What a word says *when* conditions hold."""

    say: str
    when: Conditions = field(default_factory=dict)


def _alternatives(stated: Any) -> Any:
    """A text alone is always said, and so is one of several."""
    several = [stated] if isinstance(stated, str) else stated
    if not isinstance(several, list):
        return stated
    return [{"say": one} if isinstance(one, str) else one for one in several]


Vocabulary = dict[
    str,
    Annotated[
        tuple[Alternative, ...],
        BeforeValidator(_alternatives),
    ],
]
"""Words, each with its alternatives."""


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """A primitive with its arguments, used *when* conditions hold."""

    primitive: str
    arguments: dict[str, Any]
    when: Conditions


def is_reference(value: Any) -> bool:
    """Whether an argument is a parameter of the recipe."""
    return isinstance(value, str) and value.startswith("$")


class _OrReference:
    """Annotates an argument that may be a parameter instead."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        def read(value: Any, inner: Callable[[Any], Any]) -> Any:
            return value if is_reference(value) else inner(value)

        return core_schema.no_info_wrap_validator_function(read, handler(source))


def _step_form() -> type[BaseModel]:
    """A step in a file: one primitive with its arguments, and its conditions."""
    primitives: dict[str, Any] = {}
    for name in PRIMITIVES:
        keys: dict[str, Any] = {}
        for argument in arguments_of(name):
            if argument.is_machine:
                continue
            kind = kind_of(argument.name, argument.hint)
            read = argument.hint if kind is None else KINDS[kind][0]
            default = ... if argument.is_required else None
            keys[argument.key] = (Annotated[read, _OrReference()], default)
        primitives[name] = (create_model(name, __config__=LOOSE, **keys) | None, None)
    when: Any = (Conditions, {})
    return create_model("Step", __config__=LOOSE, when=when, **primitives)


def _read_step(stated: Any) -> RecipeStep:
    found = [name for name in PRIMITIVES if getattr(stated, name) is not None]
    if len(found) != 1:
        raise InputError(f"must have exactly one primitive with its arguments, has {len(found)}")
    arguments = getattr(stated, found[0])
    values = {key: getattr(arguments, key) for key in arguments.model_fields_set}
    return RecipeStep(found[0], values, stated.when)


class _AsStep:
    """Annotates a step; its form is made when the first file is read."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return ReadAs(_step_form(), _read_step).__get_pydantic_core_schema__(source, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Form):
    """A what-if: what it *does*, its parameters, what it *assumes*, and its steps.

    *machine* gives it the parameters that name one; exactly one of the parameters *one_of* is
    given. *counts* names the time for which it reports the share that it could price.
    """

    does: Line
    more: Line = ""
    machine: Switch = False
    parameters: dict[
        str,
        Annotated[
            Parameter,
            BeforeValidator(lambda stated: {"is": stated} if isinstance(stated, str) else stated),
        ],
    ] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    words: Vocabulary = field(default_factory=dict)
    assumes: Annotated[tuple[Line, ...], Field(min_length=1)]
    steps: Annotated[tuple[Annotated[RecipeStep, _AsStep()], ...], Field(min_length=1)]
    counts: Line = ""
    evidence: Line = ""

    @property
    def keys(self) -> list[str]:
        """The keys of its parameters, those that must be given first."""
        return sorted(self.parameters, key=lambda key: not self.parameters[key].is_required)

    @property
    def usage(self) -> str:
        """Its parameters with their defaults."""
        return ", ".join(f"{key}={self.parameters[key].default_words}" for key in self.keys)

    def advice(self, name: str) -> str:
        """How the recipe *name* is used."""
        return f"{name} takes {self.usage or 'no parameters'}."

    def read(self, given: Mapping[str, Any], *, name: str, document: str) -> dict[str, Any]:
        """The values of all parameters, None where one is left out.

        Errors show *document*, and how *name* is used.
        """
        defaults = {key: one.default for key, one in self.parameters.items() if one.default}
        stated = Document(document, defaults | dict(given), ScenarioError, advice=self.advice(name))
        form = stated.read(values_form(tuple(self.parameters.items())))
        values = {key: getattr(form, key) for key in self.parameters}
        fault = ""
        if self.one_of and sum(values[key] is not None for key in self.one_of) != 1:
            *first, last = [f"{key}={self.parameters[key].placeholder}" for key in self.one_of]
            word = "either" if len(first) == 1 else "one of"
            fault = f"{name}: say {word} {', '.join(first)} or {last}."
        if values.get("hosts") is not None and values.get("topology") is None:
            fault = f"hosts: {values['hosts']} hosts need a machine. Say which with topology=NAME."
        if fault:
            raise ScenarioError(f"{document}: {fault}")
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile(Form):
    """Recipes by name, and *words* that their sentences share."""

    words: Vocabulary = field(default_factory=dict)
    recipes: Annotated[dict[str, Recipe], Field(min_length=1)]


_MACHINE = {
    "topology": Parameter(kind="text", optional=True),
    "hosts": Parameter(kind="count", optional=True),
    "stack": Parameter(kind="text", default=DEFAULT_STACK),
}
"""Parameters of what-ifs that price work; without a topology times follow the amount of work."""


@cache
def load_recipes() -> dict[str, Recipe]:
    """Every what-if by its name."""
    path = Path(__file__).parent / "recipes.yaml"
    stated = load_document(path, ScenarioError, what="recipes").read(RecipeFile)
    return {
        name: replace(
            recipe,
            parameters=(_MACHINE if recipe.machine else {}) | recipe.parameters,
            words=stated.words | recipe.words,
        )
        for name, recipe in stated.recipes.items()
    }
