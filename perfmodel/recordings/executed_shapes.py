"""Executed shapes: what execution traces know about the operators of a recording.

Both see the same calls in the same order, so the number of a call among those
of its name tells which is which. A recording of several steps beside the trace
of one sees the same again and again.
"""

from __future__ import annotations

import numpy as np

from perfmodel.recordings.operator_calls import OperatorCall, Tensor, parse_tensors
from perfmodel.recordings.rank_view import RankView
from traces.execution_trace import Argument, ExecutedOperator, ExecutionTrace
from traces.trace import Category


def call_of_operator(operator: ExecutedOperator) -> OperatorCall:
    """The call that *operator* is."""
    results = tuple(tensor for output in operator.outputs for tensor in _tensors(output))
    return OperatorCall(
        name=operator.name,
        arguments=tuple(_tensors(argument) for argument in operator.inputs),
        values=tuple(_value(argument) for argument in operator.inputs),
        results=results or None,
    )


def _tensors(argument: Argument) -> tuple[Tensor, ...]:
    if "Tensor(" not in argument.kind:
        return ()
    return parse_tensors(argument.shape, argument.kind, is_on_host=argument.is_on_host)


def _value(argument: Argument) -> object:
    return None if "Tensor(" in argument.kind else argument.value


def link_rows(view: RankView, executed: ExecutionTrace | None) -> dict[int, OperatorCall]:
    """Calls by the row of their operator in the recording."""
    if executed is None:
        return {}
    columns, trace = view.trace.columns, view.trace
    rows_of: dict[str, list[int]] = {}
    wanted = columns.is_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
    for row in np.flatnonzero(wanted).tolist():
        rows_of.setdefault(trace.name_of(row), []).append(row)
    calls_of: dict[str, list[OperatorCall]] = {}
    for operator in executed.operators:
        if operator.inputs:
            calls_of.setdefault(operator.name, []).append(call_of_operator(operator))
    linked = {}
    for name, calls in calls_of.items():
        rows = rows_of.get(name, [])
        is_repeated = len(rows) % len(calls) == 0
        if is_repeated or len(set(calls)) == 1:
            for place, row in enumerate(rows):
                linked[row] = calls[place % len(calls)]
    return linked
