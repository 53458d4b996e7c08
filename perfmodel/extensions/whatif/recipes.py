"""Recipes: what-ifs as data, each a few steps of primitives.

`recipes.yaml` has those that are always there; users may add files of the same form. An argument
of a step is a value, or `$name` for a parameter of the recipe. Sentences hold `{name}` for a
parameter or a word; a word is the first of its alternatives whose conditions hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model
from pydantic_core import core_schema

from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.base.fields import Line, ReadAs, Switch
from perfmodel.base.forms import Document, Form, load_document
from perfmodel.extensions.whatif.parameters import KINDS, LOOSE, Parameter, kind_of, values_form
from perfmodel.extensions.whatif.primitives import PRIMITIVES, arguments_of
from perfmodel.prediction.saved_jobs import DEFAULT_STACK

COMPUTED_WORDS = {"selected": "select", "bytes_ratio": "reprice", "host_times": "rehost"}
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
        BeforeValidator(_alternatives, json_schema_input_type=str | list[str | Alternative]),
    ],
]
"""Words, each with its alternatives."""


@dataclass(frozen=True, slots=True)
class Step:
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

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"^\$\w+$"}]}


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


def _read_step(stated: Any) -> Step:
    found = [name for name in PRIMITIVES if getattr(stated, name) is not None]
    if len(found) != 1:
        raise InputError(f"must have exactly one primitive with its arguments, has {len(found)}")
    arguments = getattr(stated, found[0])
    values = {key: getattr(arguments, key) for key in arguments.model_fields_set}
    return Step(found[0], values, stated.when)


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
            BeforeValidator(
                lambda stated: {"is": stated} if isinstance(stated, str) else stated,
                json_schema_input_type=str | Parameter,
            ),
        ],
    ] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    words: Vocabulary = field(default_factory=dict)
    assumes: Annotated[tuple[Line, ...], Field(min_length=1)]
    steps: Annotated[tuple[Annotated[Step, _AsStep()], ...], Field(min_length=1)]
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


_KINDS_BY_NAME = {
    "rank": "numbers", "topology": "text", "hosts": "count", "stack": "text", "doubt": "word",
}  # fmt: skip
"""Parameters that mean the same in every recipe."""
_MACHINE = {
    "topology": Parameter(kind="text", optional=True),
    "hosts": Parameter(kind="count", optional=True),
    "stack": Parameter(kind="text", default=DEFAULT_STACK),
}
"""Parameters of what-ifs that price work; without a topology times follow the amount of work."""


def load_recipes(*files: str) -> dict[str, Recipe]:
    """Every what-if by its name: those that are always there, and those of *files*."""
    known, words = _load_shipped()
    for file in files:
        known, words = _load(Path(file), known, words)
    return known


@cache
def _load_shipped() -> tuple[dict[str, Recipe], Vocabulary]:
    return _load(Path(__file__).parent / "recipes.yaml", {}, {})


def _load(
    path: Path, known: dict[str, Recipe], words: Vocabulary
) -> tuple[dict[str, Recipe], Vocabulary]:
    """*known* recipes and *words* with those of the file at *path*."""
    document = load_document(path, ScenarioError, what="recipes")
    stated = document.read(RecipeFile)
    words, recipes, faults = words | stated.words, dict(known), document.faults()
    for name, recipe in stated.recipes.items():
        if name in known or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            rule = "must be a word of small letters that no other what-if has"
            faults.add(f"recipes.{name}", rule)
        own = (_MACHINE if recipe.machine else {}) | recipe.parameters
        recipes[name] = replace(recipe, parameters=own, words=words | recipe.words)
        for place, rule in _iter_faults(recipes[name]):
            faults.add(f"recipes.{name}.{place}", rule)
    faults.check(ScenarioError, "`perfmodel schema recipes` describes the file.")
    return recipes, words


def _iter_faults(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Place and rule of what is wrong with the names, kinds and defaults of *recipe*."""
    for key, one in recipe.parameters.items():
        if one.kind != _KINDS_BY_NAME.get(key, one.kind):
            yield f"parameters.{key}.is", f"must be {_KINDS_BY_NAME[key]}, got {one.kind!r}"
        try:
            form = values_form(((key, one),))
            if one.default is not None:
                form.model_validate({key: one.default})
        except ValidationError as error:
            rule = str(error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"]))
            yield f"parameters.{key}", rule
    for key in recipe.one_of:
        yield from _unknown(key, recipe.parameters, "one_of")
    texts = {f"assumes[{number}]": text for number, text in enumerate(recipe.assumes)}
    for place, text in (texts | {"counts": recipe.counts}).items():
        yield from _iter_text_faults(recipe, text, place)
    for number, step in enumerate(recipe.steps):
        yield from _iter_step_faults(recipe, step, f"steps[{number}]")


def _iter_step_faults(recipe: Recipe, step: Step, place: str) -> Iterator[tuple[str, str]]:
    for key in step.when:
        yield from _unknown(key, recipe.parameters, f"{place}.when")
    topology = recipe.parameters.get("topology", _MACHINE["topology"])
    for argument in arguments_of(step.primitive):
        at = f"{place}.{step.primitive}.{argument.key}"
        value = step.arguments.get(argument.key, "")
        if argument.is_machine and argument.is_required and not topology.is_required:
            yield at, "must be known: add the parameter `topology`, which is not optional"
        if not is_reference(value):
            continue
        yield from _unknown(value[1:], recipe.parameters, at)
        kind, one = kind_of(argument.name, argument.hint), recipe.parameters.get(value[1:])
        if one is not None and kind != one.kind.replace("word", "text"):
            yield at, f"must be {kind or 'a value'}, but the parameter is {one.kind}"


def _iter_text_faults(
    recipe: Recipe, text: str, place: str, within: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """What is wrong with the words of *text*, itself part of the words *within*."""
    steps = {step.primitive for step in recipe.steps}
    computed = [word for word, primitive in COMPUTED_WORDS.items() if primitive in steps]
    for name, _ in PLACEHOLDER.findall(text):
        if name in within:
            yield place, f"the word {name!r} is made of itself"
        elif name not in recipe.words:
            yield from _unknown(name, [*recipe.parameters, *recipe.words, *computed], place)
        else:
            for one in recipe.words[name]:
                # An alternative for a parameter that the recipe lacks is never said.
                lacks = (key for key, state in one.when.items() if state != "none")
                if recipe.parameters.keys() >= set(lacks):
                    yield from _iter_text_faults(recipe, one.say, place, (*within, name))


def _unknown(name: str, known: Iterable[str], place: str) -> Iterator[tuple[str, str]]:
    if name not in known:
        near = get_close_matches(name, list(known), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
        yield place, f"{name!r} is unknown; {hint}"
