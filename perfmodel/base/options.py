"""Options: how the fields of a question are given on the command line.

A question is a dataclass whose fields carry an `Option` in `Annotated`. The command, its help and
the range check are all made from it, so each option is described in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from perfmodel.base.errors import PerfModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option: its *help*, its *name* if not that of the field, and the values it takes.

    Names are separated by commas (`--out,-o`). An option with a *flag* takes no value and sets the
    field to the flag. *parse* turns the text into a value and raises ValueError for a wrong one. An
    *is_argument* has no name.
    """

    help: str
    name: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    flag: object = None
    parse: Callable[[str], Any] | None = None
    is_argument: bool = False


Overwrite = Annotated[
    bool, Option(name="--overwrite", help="Replace a job that is in the folder already.")
]


@cache
def options_of(question: type) -> dict[str, tuple[Any, Option]]:
    """The fields of *question* that are options: type and option by name of the field."""
    hints = get_type_hints(question, include_extras=True)
    return {name: found for name, hint in hints.items() if (found := split_option(hint))}


def split_option(hint: Any) -> tuple[Any, Option] | None:
    """The type and the option in `Annotated[type, Option(...)]`, or None without an option."""
    if get_origin(hint) is Annotated:
        kind, *metadata = get_args(hint)
        for one in metadata:
            if isinstance(one, Option):
                return kind, one
    return None


def check_ranges(
    question: Any, error: type[PerfModelError], subject: str, *, skipped: str = ""
) -> None:
    """Raise *error* about *subject* unless every option but *skipped* is within its range."""
    for name, (_, option) in options_of(question.__class__).items():
        if name == skipped:
            continue
        value = getattr(question, name)
        for number in value if isinstance(value, tuple) else (value,):
            rule = None
            if option.min is not None and number is not None and number < option.min:
                rule = f"at least {option.min}"
            elif option.max is not None and number is not None and number > option.max:
                rule = f"at most {option.max}"
            if rule is not None:
                what = name.replace("_", " ")
                raise error(f"{subject}: {what} must be {rule}, got {number}.")
