"""Call paths: the profiler ranges and modules around each call of a rank, as texts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfmodel.extensions.recordings.nesting import Nesting
from perfmodel.extensions.recordings.rank_view import NO_OPERATOR, RankView
from perfmodel.graph.program import Int64s
from traces.trace import Category, Trace

INSIDE = " > "
"""Separates a range from the range inside it."""
_NO_RANGES = ("ProfilerStep", "nccl:", "enumerate(DataLoader)")


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Texts of what is around each call: *number* is the place of its text in *texts*."""

    texts: tuple[str, ...]
    number: Int64s

    def of(self, call: int) -> str:
        """The text of *call*."""
        return self.texts[int(self.number[call])]


def ranges_of_calls(view: RankView) -> Paths:
    """The program's or PyTorch's named ranges around each call, outermost first, or nothing.

    The thread that runs backward has no ranges: it is in the range of the thread with most
    calls at that moment. Profiler steps and NCCL calls are no ranges.
    """
    trace = view.trace
    rows = trace.columns.rows_in(Category.HOST_ANNOTATION)
    is_range = np.array([not name.startswith(_NO_RANGES) for name in trace.names], dtype=bool)
    ranges = Nesting(trace.columns, rows[is_range[trace.columns.name[rows]]])
    moments_ns = trace.columns.start_ns[view.calls.row]
    found = ranges.around(moments_ns, view.calls.thread)
    threads, counts = np.unique(view.calls.thread, return_counts=True)
    if len(threads) > 1:
        main = np.full(len(view.calls), threads[np.argmax(counts)])
        on_main = ranges.around(moments_ns, main)
        found = np.where(found == NO_OPERATOR, on_main, found)
    return _paths(view.trace, ranges, found)


def modules_of_calls(view: RankView) -> Paths:
    """The modules around each call as the profiler named them, outermost first, or nothing.

    Backward work belongs to the module of the forward operator that it is the gradient of.
    """
    columns, calls = view.trace.columns, view.calls
    modules = Nesting(columns, columns.rows_in(Category.MODULE))
    found = modules.around(columns.start_ns[calls.row], calls.thread)
    is_operator = columns.is_in(Category.HOST_OPERATOR)
    if not columns.is_in(Category.MODULE).any():
        return _paths(view.trace, modules, found)
    operators = np.flatnonzero(is_operator & (columns.sequence >= 0))
    is_backward = columns.forward_thread[operators] > 0
    forward = operators[~is_backward]
    of_forward = modules.around(columns.start_ns[forward], columns.thread[forward]).tolist()
    module_of = dict(zip(columns.sequence[forward].tolist(), of_forward, strict=True))
    around = Nesting(columns, operators[is_backward]).around(
        columns.start_ns[calls.row], calls.thread, is_outermost=True
    )
    for call in np.flatnonzero((found == NO_OPERATOR) & (around != NO_OPERATOR)).tolist():
        found[call] = module_of.get(int(columns.sequence[around[call]]), NO_OPERATOR)
    return _paths(view.trace, modules, found)


def _paths(trace: Trace, nesting: Nesting, found: Int64s) -> Paths:
    """The names around each row of *found* and its own; empty for NO_OPERATOR."""
    rows, numbers = np.unique(found, return_inverse=True)
    parents = nesting.parents()
    texts: dict[int, str] = {NO_OPERATOR: ""}

    known: dict[str, int] = {}
    places = []
    for row in rows.tolist():
        unknown = [row]
        while unknown[-1] not in texts:
            unknown.append(parents[unknown[-1]])
        for around, inner in pairwise(reversed(unknown)):
            own = trace.name_of(inner).removeprefix("nn.Module: ")
            texts[inner] = f"{texts[around]}{INSIDE}{own}" if texts[around] else own
        places.append(known.setdefault(texts[row], len(known)))
    return Paths(tuple(known), np.array(places, dtype=np.int64)[numbers])
