"""Options: how the fields of a question are given on the command line.

A question is a dataclass whose fields carry an `Option` in `Annotated`. The command, its help and
the range check are all made from it, so each option is described in one place. A sweep takes
several values in one text: `4096,8192` or `0.25..0.5` lists them, `4096:65536:x2` multiplies and
`1:9:+4` adds up to the second number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from perfmodel.base.errors import InputError, PerfModelError
from perfmodel.base.units import is_number

MOST_VALUES = 1000
NO_VALUES = "none"
"""How an empty list of values is typed."""
EXAMPLES = "Write them like 4096,8192 or 4096:65536:x2 or 1:9:+4."


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
Price = Annotated[
    float | None, Option(name="--price", metavar="MONEY", min=0, help="Price per GPU and hour.")
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


def expand_values(text: str) -> tuple[str, ...]:
    """The values that *text* names, in its order."""
    text = text.strip()
    ends = text.split(":")
    if len(ends) in (2, 3) and is_number(ends[0]) and is_number(ends[1]):
        return _range(text, ends)
    if ".." in text and not {",", "/"} & set(text):
        return _named(text, text.split(".."))
    return _named(text, text.split(","))


def _named(text: str, pieces: list[str]) -> tuple[str, ...]:
    values = tuple(piece.strip() for piece in pieces)
    if not all(values):
        raise InputError(f"values {text!r}: one of them is empty. {EXAMPLES}")
    if len(set(values)) < len(values):
        raise InputError(f"values {text!r}: one of them occurs twice. {EXAMPLES}")
    return values


def _range(text: str, ends: list[str]) -> tuple[str, ...]:
    first, last = float(ends[0]), float(ends[1])
    step = ends[2].strip() if len(ends) == 3 else "+1"
    sign, number = step[:1], step[1:]
    if sign not in ("x", "+") or not is_number(number):
        raise InputError(f"values {text!r}: the step must be like x2 or +4, got {step!r}.")
    by = float(number)
    if last < first or by <= (1 if sign == "x" else 0) or (sign == "x" and first <= 0):
        raise InputError(f"values {text!r}: must go up from the first to the second. {EXAMPLES}")
    values = [first]
    while (following := values[-1] * by if sign == "x" else values[-1] + by) <= last * (1 + 1e-12):
        values.append(following)
        if len(values) > MOST_VALUES:
            raise InputError(f"values {text!r}: are more than {MOST_VALUES}. Use a larger step.")
    return tuple(f"{value:.15g}" for value in values)
