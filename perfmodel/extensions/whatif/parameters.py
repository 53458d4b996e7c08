"""Parameters: the kinds of values that what-ifs take, and how they are typed and shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    create_model,
)

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError
from perfmodel.base.fields import (
    Bandwidth,
    Duration,
    NumberFormat,
    OneOf,
    Parsed,
    ReadAs,
    Size,
    Switch,
    as_fault,
)
from perfmodel.base.forms import Form
from perfmodel.base.reading import quote
from perfmodel.base.units import format_bandwidth, format_duration, format_size
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.selection import LaneWord, Numbers

_MOST_NUMBERS = 10**6
LOOSE = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
"""Values of our own types, and no unknown keys."""


def _parse_factor(value: Any) -> float:
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"must be a number, got {quote(value)}")
    if number < 0:
        raise InputError(f"must be zero or more, got {number:g}")
    return number


def _parse_pattern(value: Any) -> LabelPattern:
    text = _as_text(value)
    if not isinstance(text, str):
        raise InputError(f"must be text to look for, got {quote(value)}")
    return LabelPattern(text)


def _parse_count(value: Any) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit():
        raise InputError(f"must be a whole number of zero or more, got {value!r}")
    return int(text)


def _parse_numbers(value: Any) -> Numbers:
    numbers: list[int] = []
    for piece in str(value).split("+"):
        first, _, last = piece.partition("-")
        bounds = _parse_count(first), _parse_count(last or first)
        if not 0 <= bounds[1] - bounds[0] <= _MOST_NUMBERS:
            raise InputError(f"must be like 2 or 0-3 or 0+5, got {value!r}")
        numbers += range(bounds[0], bounds[1] + 1)
    return Numbers(tuple(sorted(set(numbers))))


def _number(parse: Callable[[Any], Any]) -> BeforeValidator:
    """Annotates a value that *parse* reads from text or a number."""
    return BeforeValidator(partial(as_fault, parse), json_schema_input_type=str | float)


def _value_of(value: Any) -> str:
    return str(value.value)


KINDS: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "pattern": (Annotated[LabelPattern, Parsed(_parse_pattern, "gemm*")], str),
    "numbers": (Annotated[Numbers, _number(_parse_numbers)], str),
    "factor": (Annotated[float, _number(_parse_factor)], "{:g}".format),
    "count": (Annotated[int, _number(_parse_count)], str),
    "duration": (Annotated[int, ReadAs(Duration, round)], format_duration),
    "size": (Size, format_size),
    "rate": (Bandwidth, format_bandwidth),
    "dtype": (NumberFormat, _value_of),
    "lane": (LaneWord, _value_of),
    "text": (str, str),
    "word": (str, str),
}
"""The kinds of parameters: how they are read, and shown in sentences."""
_KIND_OF_UNIT = {"_ns": "duration", "_bytes_per_s": "rate", "_bytes": "size"}
_KIND_OF_TYPE: dict[Any, str] = {
    LabelPattern: "pattern",
    Numbers: "numbers",
    float: "factor",
    int: "count",
    DType: "dtype",
    LaneWord: "lane",
    str: "text",
}


def kind_of(name: str, hint: Any) -> str | None:
    """The kind of parameter that an argument can be; None for switches and words of its own."""
    units = (kind for unit, kind in _KIND_OF_UNIT.items() if name.endswith(unit))
    return next(units, _KIND_OF_TYPE.get(hint))


def _as_text(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Text = Annotated[str, _number(_as_text)]
"""Text that may look like a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Form):
    """A parameter of a recipe, with its *default* as it is typed.

    One that is neither *optional* nor has a default must be given. *words* are the values of a
    word.
    """

    kind: Annotated[str, OneOf(tuple(KINDS)), Field(alias="is")]
    default: Text | None = None
    optional: Switch = False
    least: Text | None = None
    words: tuple[str, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is None and not self.optional

    @property
    def default_words(self) -> str:
        """Its default as text."""
        return "..." if self.is_required else self.default or "(none)"

    @property
    def placeholder(self) -> str:
        """The placeholder for its value in advice."""
        return "PATTERN" if self.kind == "pattern" else "NAME"

    def show(self, value: Any, spec: str = "") -> str:
        """*value* in a sentence, as a number in the format *spec* if that is given."""
        if value is None:
            return "(none)"
        is_number = isinstance(value, int | float)
        return format(value, spec) if spec and is_number else KINDS[self.kind][1](value)

    @property
    def type(self) -> Any:
        """The type it is read as."""
        if self.kind == "word":
            return Annotated[str, OneOf(self.words)]
        read, show = KINDS[self.kind]
        if self.least is None:
            return read
        least = TypeAdapter(read).validate_python(self.least)

        def check(value: Any) -> Any:
            if value < least:
                raise ValueError(f"must be at least {show(least)}, got {show(value)}")
            return value

        return Annotated[read, AfterValidator(check)]


@lru_cache(maxsize=256)
def values_form(parameters: tuple[tuple[str, Parameter], ...]) -> type[BaseModel]:
    """What values for *parameters* are read as."""
    keys: dict[str, Any] = {
        key: (one.type, ... if one.is_required else None) for key, one in parameters
    }
    return create_model("values", __config__=LOOSE, **keys)
