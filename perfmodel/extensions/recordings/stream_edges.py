"""Stream edges: which device task waits for which on another stream.

If the trace holds the event handles, edges are read from them. Otherwise the order of calls
suggests candidates; a task that had not ended when the delayed task started cannot have been
waited for and is dropped. An edge is a pair: its target starts only when its source has ended.
Branches of a captured graph have no calls: there, the ends just before a start suggest edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfmodel.extensions.recordings.rank_view import CallKind, RankView, plain
from traces.trace import Category

Edge = tuple[int, int]
"""The device task that waits, and the one it waits for."""
# Streams share one clock; only rounding to whole microseconds can put stamps in the wrong order.
_ROUNDING_NS = 1_000
# Older marks are hardly ever waited for, and a search through all of them takes quadratic time.
_MARKS_REMEMBERED = 32


def find_stream_edges(view: RankView) -> tuple[Edge, ...]:
    """The edges between streams: read if handles are recorded, else inferred."""
    recorded = read_stream_edges(view)
    edges = infer_stream_edges(view) if recorded is None else recorded
    return tuple(sorted({*edges, *_edges_in_graphs(view)}))


def _edges_in_graphs(view: RankView) -> Iterator[Edge]:
    """In work of one launch on several streams: a task waits for the last that ended before it.

    Only if its own stream had been idle longer, or it is the first there.
    """
    launched, device = view.tasks_by_call(), view.device
    for call in np.flatnonzero(np.diff(launched.bounds) > 1).tolist():
        tasks = launched.by(call)
        ended: dict[int, int] = {}
        for task in tasks if len(set(device.stream[tasks].tolist())) > 1 else ():
            stream = int(device.stream[task])
            idle_ns = int(device.end_ns[ended[stream]]) if stream in ended else 0
            others = [one for own, one in ended.items() if own != stream]
            source = max(
                (one for one in others if _may_wait(view, task, one)),
                key=lambda one: int(device.end_ns[one]),
                default=None,
            )
            if source is not None and device.end_ns[source] > idle_ns:
                yield task, source
            ended[stream] = task


def infer_stream_edges(view: RankView) -> tuple[Edge, ...]:
    """The edges that call order suggests and time allows."""
    has_marks = bool((view.calls.kind == CallKind.MARK_RECORD).any())
    edges = _edges_by_marks(view) if has_marks else _edges_by_order(view)
    return tuple(sorted(set(edges)))


def _edges_by_order(view: RankView) -> Iterator[Edge]:
    """Without recorded marks: a wait is for the last launch on another stream.

    Several waits before one launch are for as many streams, latest first.
    """
    launched, streams = view.tasks_by_call(), plain(view.device.stream)
    is_launch, kinds = plain(launched.has_any()), plain(view.calls.kind)
    # The last task of each stream, in the order of the last launches.
    last_on = view.last_before_window()
    waiting: dict[int, list[list[int]]] = {}
    for call, thread in enumerate(plain(view.calls.thread)):
        if kinds[call] == CallKind.STREAM_WAIT:
            waiting.setdefault(thread, []).append(list(last_on.values())[::-1])
        for task in launched.by(call) if is_launch[call] else ():
            taken = {streams[task]}
            for candidates in waiting.pop(thread, ()):
                for source in candidates:
                    if streams[source] not in taken and _may_wait(view, task, source):
                        taken.add(streams[source])
                        yield task, source
                        break
            last_on[streams[task]] = max(last_on.pop(streams[task], -1), task)


def _edges_by_marks(view: RankView) -> Iterator[Edge]:
    """With recorded marks: a wait is for a mark, which is on the stream used last.

    Waits right after a mark are for that mark and delay the next launch on other streams. Any
    other wait delays the next launch of its thread, until the latest mark on another stream. A
    second mark in a row would be of no use on the same stream, so it is on the stream used before.
    """
    launched, streams = view.tasks_by_call(), plain(view.device.stream)
    is_launch, kinds = plain(launched.has_any()), plain(view.calls.kind)
    last_on = view.last_before_window()
    threads: dict[int, _ThreadMarks] = {}
    for call, thread in enumerate(plain(view.calls.thread)):
        kind, marks = kinds[call], threads.setdefault(thread, _ThreadMarks())
        if kind == CallKind.MARK_RECORD:
            marks.mark(last_on)
        elif kind == CallKind.STREAM_WAIT:
            marks.wait()
        for task in launched.by(call) if is_launch[call] else ():
            for source in marks.sources_for(streams[task], streams):
                if _may_wait(view, task, source):
                    yield task, source
            last_on[streams[task]] = max(last_on.get(streams[task], -1), task)
            marks.stream = streams[task]
            marks.is_after_mark = marks.has_just_marked = False


@dataclass(slots=True)
class _Mark:
    """A mark: the task launched last, other tasks it more likely follows, and its waits."""

    task: int
    others: tuple[int, ...]
    waits: int = 0
    served: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _ThreadMarks:
    """The marks and waits of one thread, and whether the last call was a mark or a wait for it."""

    stream: int | None = None
    marks: list[_Mark] = field(default_factory=list)
    has_just_marked: bool = False
    is_after_mark: bool = False
    other_waits: int = 0
    may_be_waited_for: bool = False

    def mark(self, last_on: dict[int, int]) -> None:
        """A mark was recorded."""
        if self.stream is not None:
            # Other threads may have launched on the stream since.
            task = last_on[self.stream]
            others = [other for other in last_on.values() if other != task]
            for earlier in self.marks:
                earlier.waits = 0 if earlier.served else earlier.waits
            self.marks.append(_Mark(task, tuple(others) if self.has_just_marked else ()))
            del self.marks[:-_MARKS_REMEMBERED]
        self.has_just_marked = self.is_after_mark = True

    def wait(self) -> None:
        """A wait was called."""
        self.has_just_marked = False
        if self.is_after_mark and self.marks:
            self.marks[-1].waits += 1
            self.may_be_waited_for = True
        else:
            self.is_after_mark = False
            self.other_waits += 1

    def sources_for(self, stream: int, streams: Sequence[int]) -> list[int]:
        """The tasks that a launch on *stream* has to wait for."""
        found: list[int] = []
        if not (self.other_waits or self.may_be_waited_for):
            return found
        for mark in reversed(self.marks):
            is_waited_for = len(mark.served) < mark.waits and stream not in mark.served
            if not (is_waited_for or self.other_waits) or streams[mark.task] == stream:
                continue
            elsewhere = [task for task in mark.others if streams[task] != stream]
            found.append(max(elsewhere, default=mark.task))
            if is_waited_for:
                mark.served.add(stream)
            else:
                self.other_waits -= 1
        self.may_be_waited_for = any(len(mark.served) < mark.waits for mark in self.marks)
        self.other_waits = 0
        return found


def _may_wait(view: RankView, target: int, source: int) -> bool:
    ended_ns = int(view.device.end_ns[source])
    return source != target and ended_ns <= int(view.device.start_ns[target]) + _ROUNDING_NS


def read_stream_edges(view: RankView) -> tuple[Edge, ...] | None:
    """The edges whose handles are recorded; None if the trace has no handle."""
    columns, device = view.trace.columns, view.device
    rows = columns.rows_in(Category.SYNCHRONISATION).tolist()
    if not rows:
        return None
    waits = handles = 0
    call_of = {int(columns.correlation[row]): call for call, row in enumerate(view.calls.row)}
    streams, launches = device.stream & 0xFFFFFFFF, device.call
    edges = set()
    for row in rows:
        detail = view.trace.detail_of(row)
        if detail.get("cuda_sync_kind") != "Stream Wait Event":
            continue
        waits += 1
        wait_call = call_of.get(int(columns.correlation[row]))
        mark_call = call_of.get(detail.get("wait_on_cuda_event_record_corr_id", -1))
        if wait_call is None or mark_call is None:
            continue
        handles += 1
        is_source = (streams == detail.get("wait_on_stream", -1)) & (launches < mark_call)
        after = np.flatnonzero((streams == columns.stream[row]) & (launches > wait_call))
        before = np.flatnonzero(is_source & (launches >= 0))
        if len(after) and len(before):
            target = int(after[np.argmin(launches[after])])
            source = int(before[np.argmax(launches[before])])
            if target != source:
                edges.add((target, source))
    return None if waits and not handles else tuple(sorted(edges))
