"""Operator calls: a PyTorch operator and its tensors, from a recording or an execution trace.

Execution traces describe the operators of a recording better. Both see the same calls in the same
order, so calls of one name are matched by their number; a recording of several steps repeats the
calls of a trace of one step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.base.dtypes import DType
from perfmodel.recordings.rank_view import RankView
from traces.execution_trace import Argument, ExecutedOperator, ExecutionTrace
from traces.trace import Category

_DTYPES = {
    "float": DType.FP32,
    "double": DType.FP64,
    "c10::Half": DType.FP16,
    "c10::BFloat16": DType.BF16,
    **{f"c10::Float8_{kind}": DType.FP8 for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")},
    **dict.fromkeys(("long", "long int"), DType.INT64),
    "int": DType.INT32,
    **dict.fromkeys(("bool", "unsigned char", "signed char", "char"), DType.INT8),
}
"""Formats as C++ spells them; `Int` and `Bool` with a capital are no tensors."""
_MOST_VALUES = 2**48
"""More values than any memory holds: larger shapes are damage, not work."""


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
    """An operator and its arguments: the tensors of each, and its value if it has one.

    *results* are the output tensors, None if unknown.
    """

    name: str
    arguments: tuple[tuple[Tensor, ...], ...]
    values: tuple[Any, ...] = ()
    results: tuple[Tensor, ...] | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All input tensors."""
        return tuple(tensor for argument in self.arguments for tensor in argument)

    def tensor(self, place: int, *, rank: int = 0) -> Tensor | None:
        """The one tensor in argument *place*, if it has *rank* dimensions (0 is any number)."""
        if place >= len(self.arguments) or len(self.arguments[place]) != 1:
            return None
        found = self.arguments[place][0]
        return found if not rank or len(found.shape) == rank else None

    def value(self, place: int) -> Any:
        """The value of argument *place*, None if unknown."""
        return self.values[place] if place < len(self.values) else None


def parse_tensors(shape: Any, kind: Any, *, is_on_host: bool = False) -> tuple[Tensor, ...]:
    """The tensors of one argument: *shape* is a list of extents, or of such lists for many.

    *kind* is `float`, `Tensor(float)` or `GenericList[Tensor(float),...]`. Empty for anything
    that is no tensor or has an impossible shape.
    """
    inner = re.findall(r"Tensor\(([^()]*)\)", str(kind))
    words = inner if inner or str(kind).startswith("GenericList") else [str(kind)]
    dtypes = [_DTYPES[word.strip()] for word in words if word.strip() in _DTYPES]
    if not isinstance(shape, list) or not dtypes or len(dtypes) < len(words):
        return ()
    shapes = shape if shape and all(isinstance(inner, list) for inner in shape) else [shape]
    if len(dtypes) == 1:
        dtypes *= len(shapes)
    found = [
        Tensor(tuple(extents), dtype, is_on_host)
        for extents, dtype in zip(shapes, dtypes, strict=False)
        if all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in extents)
        and math.prod(extents) <= _MOST_VALUES
    ]
    return tuple(found) if len(found) == len(shapes) else ()


def call_of_detail(name: str, detail: Mapping[str, Any]) -> OperatorCall | None:
    """The call of an operator from the *detail* the profiler kept; None without its shapes."""
    shapes, kinds = detail.get("Input Dims"), detail.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        return None
    arguments = list(zip(shapes, kinds, strict=True))
    # Lists of tensors without shapes: the rest would pass for the whole call.
    if any(kind == "TensorList" and not shape for shape, kind in arguments):
        return None
    values = detail.get("Concrete Inputs")
    return OperatorCall(
        name=name,
        arguments=tuple(parse_tensors(shape, kind) for shape, kind in arguments),
        values=tuple(values) if isinstance(values, list) else (),
    )


def call_of_operator(operator: ExecutedOperator) -> OperatorCall:
    """The call of *operator* in an execution trace."""
    results = tuple(tensor for output in operator.outputs for tensor in _tensors(output))
    return OperatorCall(
        name=operator.name,
        arguments=tuple(_tensors(argument) for argument in operator.inputs),
        values=tuple(
            None if "Tensor(" in argument.kind else argument.value for argument in operator.inputs
        ),
        results=results or None,
    )


def _tensors(argument: Argument) -> tuple[Tensor, ...]:
    if "Tensor(" not in argument.kind:
        return ()
    return parse_tensors(argument.shape, argument.kind, is_on_host=argument.is_on_host)


def link_rows(view: RankView, executed: ExecutionTrace | None) -> dict[int, OperatorCall]:
    """Calls of the execution trace by the row of their operator in the recording."""
    trace = view.trace
    rows_of: dict[str, list[int]] = {}
    calls_of: dict[str, list[OperatorCall]] = {}
    for operator in executed.operators if executed else ():
        if operator.inputs:
            calls_of.setdefault(operator.name, []).append(call_of_operator(operator))
    if calls_of:
        rows = trace.columns.rows_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
        for row in rows.tolist():
            rows_of.setdefault(trace.name_of(row), []).append(row)
    linked = {}
    for name, calls in calls_of.items():
        of_name = rows_of.get(name, [])
        if len(of_name) % len(calls) == 0 or all(call == calls[0] for call in calls):
            for place, row in enumerate(of_name):
                linked[row] = calls[place % len(calls)]
    return linked


def whole_number(value: Any) -> int:
    """*value* if it is a possible count, else 0."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_VALUES
    return value if is_whole else 0
