"""Host overheads: what the CPU spends around kernel launches, by operator (T1 to T5).

T1 lies between two operators, T2 before the first launch of an operator, T3
after its last, T4 is a launch call, T5 lies between two launches; for an
operator that launches nothing T5 is all of it. The profiler itself costs time
for every row it writes, which is taken out.

Leaves out: samples beyond 1.5 quartile ranges, and gaps above 200 us, which
are waits or Python and no overhead of an operator.
Source: the taxonomy of Lin et al. (HiPC 2022), 2 us a host row, 4 us a device row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.graph.ops import HostPart
from perfmodel.recordings.rank_view import CallKind, Int64s, RankView
from traces.trace import Category

HOST_ROW_NS = 2_000
DEVICE_ROW_NS = 4_000
# The paper leaves 4 of 10 us of a launch; on faster hosts rows cost less than there, so at
# least that share of a call stays its own.
OWN_RATIO = 0.4
_LONGEST_GAP_NS = 200_000


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """One line of the table: a part, the operator or call it belongs to, and its statistics."""

    part: HostPart
    operator: str
    mean_us: float
    std_us: float
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class _Thread:
    """Rows of one thread by start: operators that no other is around, and launch calls."""

    operators: Int64s
    launches: Int64s
    rows: Int64s


def extract_host_overheads(views: Sequence[RankView]) -> tuple[HostOverhead, ...]:
    """The host overheads of all ranks pooled."""
    samples: dict[tuple[HostPart, str], list[int]] = {}
    for view in views:
        launching = view.calls.row[np.unique(view.device.call[view.device.call >= 0])]
        waits = set(view.calls.row[view.calls.kind != CallKind.OTHER].tolist())
        for thread in np.unique(view.calls.thread).tolist():
            rows = _thread_rows(view, thread, launching)
            _sample_operators(view, rows, waits, samples)
    found = [_summary(part, name, values) for (part, name), values in samples.items()]
    order = list(HostPart)
    return tuple(sorted(found, key=lambda line: (order.index(line.part), line.operator)))


def _thread_rows(view: RankView, thread: int, launching: Int64s) -> _Thread:
    columns = view.trace.columns
    on_thread = np.flatnonzero(
        (columns.thread == thread) & columns.is_in(Category.HOST_OPERATOR, Category.RUNTIME_CALL)
    )
    operators = on_thread[columns.category[on_thread] == Category.HOST_OPERATOR]
    ends = columns.end_ns
    reached = np.concatenate([[-1], np.maximum.accumulate(ends[operators])[:-1]])
    outermost = operators[columns.start_ns[operators] >= reached] if len(operators) else operators
    return _Thread(outermost, launching[columns.thread[launching] == thread], on_thread)


def _sample_operators(
    view: RankView,
    thread: _Thread,
    waits: set[int],
    samples: dict[tuple[HostPart, str], list[int]],
) -> None:
    columns = view.trace.columns
    starts, ends = columns.start_ns, columns.end_ns
    previous_end_ns = None
    row_starts = starts[thread.rows]
    for operator in thread.operators.tolist():
        name, low_ns, high_ns = view.trace.name_of(operator), starts[operator], ends[operator]
        if previous_end_ns is not None:
            _add(samples, HostPart.BETWEEN_OPERATORS, "", low_ns - previous_end_ns - HOST_ROW_NS)
        previous_end_ns = high_ns
        first, last = np.searchsorted(row_starts, [low_ns, high_ns])
        inside = thread.rows[first:last]
        if waits.intersection(inside.tolist()):
            continue  # what waits is no overhead, and would drown it
        place = np.searchsorted(starts[thread.launches], [low_ns, high_ns])
        launches = thread.launches[place[0] : place[1]]
        _sample_one(view, name, operator, inside, launches, samples)


def _sample_one(
    view: RankView,
    name: str,
    operator: int,
    inside: Int64s,
    launches: Int64s,
    samples: dict[tuple[HostPart, str], list[int]],
) -> None:
    columns = view.trace.columns
    starts, ends = columns.start_ns, columns.end_ns
    low_ns, high_ns = int(starts[operator]), int(ends[operator])

    def profiled_ns(from_ns: int, to_ns: int) -> int:
        count = int(((starts[inside] >= from_ns) & (starts[inside] < to_ns)).sum())
        return HOST_ROW_NS * count

    if not len(launches):
        length_ns = high_ns - low_ns - profiled_ns(low_ns + 1, high_ns)
        _add(samples, HostPart.BETWEEN_LAUNCHES, name, length_ns)
        return
    first_ns, last_ns = int(starts[launches[0]]), int(ends[launches[-1]])
    before = first_ns - low_ns - profiled_ns(low_ns + 1, first_ns)
    _add(samples, HostPart.BEFORE_LAUNCH, name, before)
    _add(samples, HostPart.AFTER_LAUNCH, name, high_ns - last_ns - profiled_ns(last_ns, high_ns))
    for row, following in zip(launches.tolist(), [*launches[1:].tolist(), None], strict=True):
        length_ns = int(columns.duration_ns[row])
        own_ns = max(length_ns - HOST_ROW_NS - DEVICE_ROW_NS, round(OWN_RATIO * length_ns))
        _add(samples, HostPart.LAUNCH, view.trace.name_of(row), own_ns)
        if following is not None:
            gap_ns = int(starts[following] - ends[row])
            profiled = profiled_ns(int(ends[row]), int(starts[following]))
            _add(samples, HostPart.BETWEEN_LAUNCHES, name, gap_ns - profiled)


def _add(
    samples: dict[tuple[HostPart, str], list[int]], part: HostPart, name: str, length_ns: int
) -> None:
    if part is HostPart.BETWEEN_OPERATORS and length_ns > _LONGEST_GAP_NS:
        return
    samples.setdefault((part, name), []).append(max(int(length_ns), 0))


def _summary(part: HostPart, name: str, lengths_ns: list[int]) -> HostOverhead:
    values = np.array(lengths_ns, dtype=np.float64) / 1e3
    low, high = np.percentile(values, [25, 75])
    margin = 1.5 * (high - low)
    kept = values[(values >= low - margin) & (values <= high + margin)]
    return HostOverhead(part, name, float(kept.mean()), float(kept.std()), len(kept))
