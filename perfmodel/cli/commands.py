"""Commands: made from functions whose parameters are questions.

A parameter of a command function is an option (`Annotated[type, Option(...)]`), a dataclass of
options, or a dictionary of the options of some dataclasses that were given. Strings in `Annotated`
choose fields of the dataclass.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from perfmodel.base.errors import InputError
from perfmodel.base.options import Option, options_of, split_option
from perfmodel.base.reading import refuse_to_read


def command_group(**settings: Any) -> typer.Typer:
    """An application of several commands, which prints its help without one."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, no_args_is_help=True, **settings
    )


def command(
    group: typer.Typer | None = None, **settings: Any
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a command of a function: one of *group*, or an application of its own."""

    def add(function: Callable[..., None]) -> typer.Typer:
        app = typer.Typer(add_completion=False, rich_markup_mode=None) if group is None else group
        hints = get_type_hints(function, include_extras=True)
        sources = [
            _Source.read(one, hints[one.name]) for one in signature(function).parameters.values()
        ]

        def read_options(**options: Any) -> dict[str, Any]:
            return options

        # Typer reads the signature, and calls the function to convert values.
        described: Any = read_options
        described.__doc__ = function.__doc__
        described.__signature__ = Signature(
            [one.to_parameter() for source in sources for one in source.fields]
        )

        class Command(TyperCommand):
            """The command: its options become the arguments of the function before it runs."""

            def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
                args = _with_model_named(self.params, args)
                _check_not_repeated(self.params, args)
                try:
                    rest = super().parse_args(ctx, args)
                except typer.BadParameter as fault:
                    fault.message = _in_our_words(fault.message)
                    raise
                if self.callback is not None and not ctx.resilient_parsing:
                    values = {
                        name: value
                        for name, value in self.callback(**ctx.params).items()
                        if ctx.get_parameter_source(name).name == "COMMANDLINE"
                    }
                    targets = {
                        one.opts[0]: Path(values[one.name])
                        for one in self.params
                        if one.opts[0] in WRITTEN and isinstance(values.get(one.name), str | Path)
                    }
                    ctx.call_on_close(refuse_to_read(targets))
                    ctx.params = {}
                    for source in sources:
                        ctx.params |= source.to_argument(values, ctx)
                    self.callback = function
                return rest

        name = settings.pop("name", function.__name__)
        app.command(name, cls=Command, **settings)(described)
        return app

    return add


def _with_model_named(params: Sequence[Any], args: list[str]) -> list[str]:
    """*args*; as in `predict`, a model that is the first word is that of `--workload`."""
    takes_words = any(one.param_type_name == "argument" for one in params)
    takes_model = any("--workload" in one.opts for one in params)
    is_word = bool(args) and not args[0].startswith("-")
    return ["--workload", *args] if is_word and takes_model and not takes_words else args


_WORDS = {
    r"^Input should be a valid integer.*": "must be a whole number",
    r"^Input should be a valid number.*": "must be a number",
    r"^Input should be greater than or equal to ": "must be at least ",
    r"^Input should be less than or equal to ": "must be at most ",
    r"^Value error, ": "",
}


def _in_our_words(message: str) -> str:
    """What a wrong value must be, as all other messages say it."""
    for theirs, ours in _WORDS.items():
        message = re.sub(theirs, ours, message)
    return message


class _Field(NamedTuple):
    """An option of a command."""

    name: str
    kind: Any
    option: Option
    default: Any = Parameter.empty

    @property
    def names(self) -> list[str]:
        """What is typed."""
        return (self.option.name or f"--{self.name.replace('_', '-')}").split(",")

    def to_parameter(self) -> Parameter:
        """The option as typer reads it."""
        option, default = self.option, self.default
        kinds = [one for one in get_args(self.kind) if one is not NoneType]
        kind = kinds[0] if isinstance(self.kind, UnionType) else self.kind
        if option.flag is not None:
            kind, default = bool, False
        elif option.parse is not None:
            kind = str
            default = ",".join(map(str, default)) if isinstance(default, tuple) else default
            default = default.value if isinstance(default, Enum) else default
        elif get_origin(kind) is tuple:
            kind, default = list[get_args(kind)[0]], default or None  # type: ignore[misc]
        about: dict[str, Any] = {"metavar": option.metavar, "min": option.min, "max": option.max}
        if option.is_argument:
            info = typer.Argument(help=option.help, show_default=False, **about)
        else:
            info = typer.Option(*self.names, help=option.help, **about)
        kind = kind | None if default is None else kind
        return Parameter(
            self.name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default
        )

    def parse(self, value: Any, ctx: Any) -> Any:
        """The value of the field for the *value* of the option."""
        if self.option.flag is not None:
            return self.option.flag
        if self.option.parse is not None:
            try:
                return self.option.parse(value)
            except ValueError as fault:
                raise typer.BadParameter(str(fault), ctx=ctx, param_hint=self.names[0]) from None
        return tuple(value) if isinstance(value, list) else value


class _Source(NamedTuple):
    """The options that one parameter of a command function is made from, and how."""

    name: str
    fields: tuple[_Field, ...]
    build: Callable[..., Any] | None = None

    @classmethod
    def read(cls, parameter: Parameter, hint: Any) -> _Source:
        """The options of a *parameter* with this type *hint*."""
        if hint is typer.Context:
            return cls(parameter.name, ())
        if (found := split_option(hint)) is not None:
            return cls(parameter.name, (_Field(parameter.name, *found, parameter.default),))
        kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        chosen = [one for one in metadata if isinstance(one, str)]
        questions = [one for one in metadata if isinstance(one, type)] or [kind]
        fields: dict[str, _Field] = {}
        for question in questions:
            defaults = {one.name: one for one in dataclasses.fields(question)}
            for name, (type_, option) in options_of(question).items():
                default = _default_of(defaults[name])
                if questions != [kind] and default is Parameter.empty:
                    default = None  # a dictionary may lack any option
                if not chosen or name in chosen:
                    fields.setdefault(name, _Field(name, type_, option, default))
        return cls(parameter.name, tuple(fields.values()), get_origin(kind) or kind)

    def to_argument(self, values: dict[str, Any], ctx: Any) -> dict[str, Any]:
        """The argument of the function by its name, from the *values* that were given."""
        given = {
            one.name: one.parse(values[one.name], ctx) for one in self.fields if one.name in values
        }
        if self.build is not None:
            return {self.name: self.build(**given)}
        return given if self.fields else {self.name: ctx}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return Parameter.empty if field.default_factory is dataclasses.MISSING else None


def _check_not_repeated(parameters: Iterable[Any], arguments: Sequence[str]) -> None:
    """Refuse an option of one value that is given twice: the last one would win silently."""
    words = list(arguments)
    given = [word.partition("=")[0] for word in words[: (*words, "--").index("--")]]
    for one in parameters:
        count = sum(given.count(name) for name in one.opts if name.startswith("--"))
        if count > 1 and not getattr(one, "multiple", False):
            raise InputError(
                f"{one.opts[0]}: is given {count} times, but takes one value. Give it once."
            )


WRITTEN = ("--csv", "--json", "--out", "--plan-out", "--plot", "--report", "--trace-out")
"""Options that name a file to write."""
