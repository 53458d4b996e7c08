"""Operator calls: an operator of PyTorch and its tensors, however a file says it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.base.dtypes import DType

_WORDS = {
    "float": DType.FP32,
    "double": DType.FP64,
    "c10::Half": DType.FP16,
    "c10::BFloat16": DType.BF16,
    "c10::Float8_e4m3fn": DType.FP8,
    "c10::Float8_e5m2": DType.FP8,
    "c10::Float8_e4m3fnuz": DType.FP8,
    "c10::Float8_e5m2fnuz": DType.FP8,
    "long": DType.INT64,
    "long int": DType.INT64,
    "int": DType.INT32,
    "bool": DType.INT8,
    "unsigned char": DType.INT8,
    "signed char": DType.INT8,
    "char": DType.INT8,
}
"""Formats as C++ spells them; `Int` and `Bool` with a capital are no tensors."""
_MOST_VALUES = 2**48
"""More values than any memory holds: shapes beyond are damage, not work."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape and number format of a tensor."""

    shape: tuple[int, ...]
    dtype: DType
    is_on_host: bool = False

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self.count * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator and its arguments: the tensors that each holds, and its value if it has one.

    *results* are the tensors that came out, None where nobody said.
    """

    name: str
    arguments: tuple[tuple[Tensor, ...], ...]
    values: tuple[Any, ...] = ()
    results: tuple[Tensor, ...] | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that went in."""
        return tuple(tensor for argument in self.arguments for tensor in argument)

    def tensor(self, place: int, *, rank: int = 0) -> Tensor | None:
        """The one tensor in argument *place*, if it has *rank* dimensions (0 is any number)."""
        if place >= len(self.arguments) or len(self.arguments[place]) != 1:
            return None
        found = self.arguments[place][0]
        return found if not rank or len(found.shape) == rank else None

    def value(self, place: int) -> Any:
        """The value of argument *place*, None where nobody said."""
        return self.values[place] if place < len(self.values) else None


def parse_tensors(shape: Any, kind: Any, *, is_on_host: bool = False) -> tuple[Tensor, ...]:
    """The tensors of one argument: *shape* is a list of extents, or of such lists for many.

    *kind* is `float`, `Tensor(float)` or `GenericList[Tensor(float),...]`. Empty for anything
    that is no tensor or has no possible shape.
    """
    words = _words_of(str(kind))
    if not isinstance(shape, list) or not words:
        return ()
    shapes = shape if shape and all(isinstance(inner, list) for inner in shape) else [shape]
    if len(words) == 1:
        words *= len(shapes)
    found = [
        Tensor(tuple(extents), dtype, is_on_host)
        for extents, dtype in zip(shapes, words, strict=False)
        if _is_shape(extents)
    ]
    return tuple(found) if len(found) == len(shapes) else ()


_INNER = re.compile(r"Tensor\(([^()]*)\)")


def _words_of(kind: str) -> list[DType]:
    inner = _INNER.findall(kind)
    words = inner if inner or kind.startswith("GenericList") else [kind]
    found = [_WORDS.get(word.strip()) for word in words]
    return [dtype for dtype in found if dtype is not None] if None not in found else []


def _is_shape(extents: Any) -> bool:
    return (
        isinstance(extents, list)
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in extents)
        and math.prod(extents) <= _MOST_VALUES
    )


def call_of_detail(name: str, detail: Mapping[str, Any]) -> OperatorCall | None:
    """The call of an operator from what the profiler kept about it; None without its shapes."""
    shapes, kinds = detail.get("Input Dims"), detail.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        return None
    # Lists of tensors without shapes: what is known of the rest would pass for all of it.
    if any(kind == "TensorList" and not shape for shape, kind in zip(shapes, kinds, strict=True)):
        return None
    values = detail.get("Concrete Inputs")
    return OperatorCall(
        name=name,
        arguments=tuple(
            parse_tensors(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)
        ),
        values=tuple(values) if isinstance(values, list) else (),
    )


def whole_number(value: Any) -> int:
    """*value* where it is a possible count, else 0."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_VALUES
    return value if is_whole else 0
