"""Operator calls: a PyTorch operator and its tensors, from a recording or an execution trace.

Execution traces describe the operators of a recording better. Both see the same calls in the same
order, so calls of one name are matched by their number; a recording of several steps repeats the
calls of a trace of one step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.extensions.recordings.operators.calls import OperatorCall, Tensor, dtype_of
from perfmodel.extensions.recordings.rank_view import RankView
from traces.execution_trace import ExecutedOperator, ExecutionTrace, TraceArgument
from traces.job_trace import JobTrace
from traces.trace import Category

_MOST_VALUES = 2**48
"""More values than any memory holds: larger shapes are damage, not work."""


def parse_tensors(shape: Any, kind: Any, *, is_on_host: bool = False) -> tuple[Tensor, ...]:
    """The tensors of one argument: *shape* is a list of extents, or of such lists for many.

    *kind* is `float`, `Tensor(float)` or `GenericList[Tensor(float),...]`. Empty for anything
    that is not a tensor or has an impossible shape.
    """
    inner = re.findall(r"Tensor\(([^()]*)\)", str(kind))
    words = inner if inner or str(kind).startswith("GenericList") else [str(kind)]
    dtypes = [dtype for word in words if (dtype := dtype_of(word.strip())) is not None]
    if not isinstance(shape, list) or not dtypes or len(dtypes) < len(words):
        return ()
    shapes = shape if shape and all(isinstance(inner, list) for inner in shape) else [shape]
    if len(dtypes) == 1:
        dtypes *= len(shapes)
    found = [
        Tensor(tuple(extents), dtype, math.prod(extents) * dtype.size_bytes, is_on_host)
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
        values=dict(enumerate(values)) if isinstance(values, list) else {},
    )


def call_of_operator(operator: ExecutedOperator) -> OperatorCall:
    """The call of *operator* in an execution trace."""
    results = tuple(tensor for output in operator.outputs for tensor in _tensors(output))
    return OperatorCall(
        name=operator.name,
        arguments=tuple(_tensors(argument) for argument in operator.inputs),
        values={
            place: argument.value
            for place, argument in enumerate(operator.inputs)
            if "Tensor(" not in argument.kind
        },
        results=results or None,
    )


def _tensors(argument: TraceArgument) -> tuple[Tensor, ...]:
    if "Tensor(" not in argument.kind:
        return ()
    return parse_tensors(argument.shape, argument.kind, is_on_host=argument.is_on_host)


def link_ranks(traces: JobTrace, views: Sequence[RankView]) -> list[dict[int, OperatorCall]]:
    """By rank, the calls of its execution trace by the row of their operator in the recording."""
    executed = {trace.rank: trace for trace in traces.executed}
    return [_link_rows(view, executed.get(view.trace.rank)) for view in views]


def _link_rows(view: RankView, executed: ExecutionTrace | None) -> dict[int, OperatorCall]:
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
