"""Fields: the types of values in documents, read strictly.

A whole number is a whole number: `true`, `"8"` and `8.0` are refused, because each of them is a
slip somewhere else in the file. A quantity carries its unit.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticKnownError, core_schema

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.base.reading import quote
from perfmodel.base.units import (
    parse_bandwidth,
    parse_duration_ns,
    parse_frequency_hz,
    parse_power_w,
    parse_rate_flops,
    parse_size,
)


def as_fault(parse: Callable[[Any], Any], value: Any) -> Any:
    """What *parse* makes of *value*, with a ValueError for what is wrong."""
    try:
        return parse(value)
    except InputError as fault:
        raise ValueError(str(fault)) from None


@dataclass(frozen=True, slots=True)
class Parsed:
    """Annotates a field that is written as text, such as *example*, and read by *parse*.

    A quantity is above zero, or zero where it *may_be_zero*, and not above *most*.
    """

    parse: Callable[[Any], Any]
    example: str
    most: str = ""
    may_be_zero: bool = False

    def read(self, text: Any) -> Any:
        """The value of *text*; pydantic collects a ValueError with its place."""
        value = as_fault(self.parse, text)
        if self.most:
            if value < 0 or (value == 0 and not self.may_be_zero):
                rule = "zero or more" if self.may_be_zero else "above zero"
                raise ValueError(f"must be {rule}, got {quote(text)}")
            if value > self.parse(self.most):
                raise ValueError(f"must be at most {self.most}, got {quote(text)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "string", "examples": [self.example]}


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotates a text that is one of *words*; those of a table are asked for at every value."""

    words: tuple[str, ...] | Callable[[], tuple[str, ...]]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        if isinstance(self.words, tuple):
            return core_schema.literal_schema(list(self.words))
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"enum": list(self._known()), "type": "string"}

    def _known(self) -> tuple[str, ...]:
        return self.words if isinstance(self.words, tuple) else self.words()

    def _read(self, value: Any) -> Any:
        known = self._known()
        if value not in known:
            *others, last = map(repr, known)
            expected = f"{', '.join(others)} or {last}" if others else last
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value


@dataclass(frozen=True, slots=True)
class ReadAs:
    """Annotates a field that a document states as a *kind*, from which *convert* makes it."""

    kind: Any
    convert: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        convert = partial(as_fault, self.convert)
        return core_schema.no_info_after_validator_function(
            convert, handler.generate_schema(self.kind)
        )


def _parse_format(value: Any) -> Any:
    return parse_dtype(value) if isinstance(value, str) else value


def _on_one_line(value: Any) -> Any:
    if isinstance(value, datetime.date):
        return value.isoformat()
    return " ".join(value.split()) if isinstance(value, str) else value


# Bounds are far above what anybody trains; beyond them products of sizes overflow, or a graph of
# so many layers is built for hours.
Count = Annotated[int, Field(strict=True, ge=1, le=2**31)]
Width = Annotated[int, Field(strict=True, ge=1, le=2**24)]
Degree = Annotated[int, Field(strict=True, ge=1, le=2**16)]
LayerCount = Annotated[int, Field(strict=True, ge=1, le=1_024)]
NaturalNumber = Annotated[int, Field(strict=True, ge=0, le=2**16)]
Switch = Annotated[bool, Field(strict=True)]
Words = Annotated[str, Field(strict=True, min_length=1)]
Line = Annotated[str, Field(min_length=1), BeforeValidator(_on_one_line)]
Number = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Factor = Annotated[float, Field(strict=True, ge=1e-3, le=1e3, allow_inf_nan=False)]
Constant = Annotated[
    float,
    Field(strict=True, ge=0, allow_inf_nan=False),
    PlainSerializer(lambda value: float(f"{value:.6g}")),
]
"""A fitted number, six digits of which are written."""
Size = Annotated[int, Parsed(parse_size, "80 GiB", "1024 PiB", may_be_zero=True)]
Duration = Annotated[float, Parsed(parse_duration_ns, "1.5 us", "10000 s", may_be_zero=True)]
Bandwidth = Annotated[float, Parsed(parse_bandwidth, "450 GB/s", "1 PB/s")]
Rate = Annotated[float, Parsed(parse_rate_flops, "989 TFLOP/s", "1000 PFLOP/s")]
Frequency = Annotated[float, Parsed(parse_frequency_hz, "1.98 GHz", "1 THz")]
Power = Annotated[float, Parsed(parse_power_w, "700 W", "1 GW")]
NumberFormat = Annotated[DType, Parsed(_parse_format, "bf16")]
