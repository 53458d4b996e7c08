"""Stream edges: which device task waits for which on another stream.

Where the trace holds the handles, the edge is read. Where it does not, the
order of calls suggests candidates; one that had not ended when the held-up
task started cannot have been waited for and is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from perfmodel.recordings.rank_view import CallKind, Int64s, RankView
from traces.trace import Category

# Stamps of two streams are of one clock; rounding to whole microseconds is all that differs.
_ROUNDING_NS = 1_000
# Older marks are hardly waited for, and looking through all of them takes quadratic time.
_MARKS_REMEMBERED = 32
_WAIT_WORDS = ("Stream Wait Event",)


@dataclass(frozen=True, slots=True, order=True)
class StreamEdge:
    """Device task *target* starts only when device task *source* has ended."""

    target: int
    source: int


def find_stream_edges(view: RankView) -> tuple[StreamEdge, ...]:
    """The edges between streams: read where handles are recorded, else inferred."""
    recorded = read_stream_edges(view)
    return infer_stream_edges(view) if recorded is None else recorded


def infer_stream_edges(view: RankView) -> tuple[StreamEdge, ...]:
    """The edges that call order suggests and time allows."""
    has_marks = bool((view.calls.kind == CallKind.MARK_RECORD).any())
    reader = _MarkReader(view) if has_marks else _OrderReader(view)
    launched = _launched_by_call(view)
    for call in range(len(view.calls)):
        reader.see(call)
        for task in launched.get(call, ()):
            reader.launch(int(view.calls.thread[call]), task)
    return tuple(sorted(reader.edges))


class _OrderReader:
    """Without recorded marks: a wait is for what was launched last on another stream.

    Several waits before one launch are for as many streams, latest first.
    """

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.edges: set[StreamEdge] = set()
        # The last task of each stream; the stream launched on last stands last.
        self.last_on = _launched_before_window(view)
        self.waiting: dict[int, list[list[int]]] = {}

    def see(self, call: int) -> None:
        """Take note of a call."""
        if self.view.calls.kind[call] == CallKind.STREAM_WAIT:
            thread = int(self.view.calls.thread[call])
            self.waiting.setdefault(thread, []).append(list(self.last_on.values())[::-1])

    def launch(self, thread: int, task: int) -> None:
        """Take note of a launched task: what its thread waited with waits here."""
        streams = self.view.device.stream
        taken: set[int] = set()
        for candidates in self.waiting.pop(thread, ()):
            source = next(
                (
                    candidate
                    for candidate in candidates
                    if streams[candidate] != streams[task]
                    and int(streams[candidate]) not in taken
                    and _may_wait(self.view, task, candidate)
                ),
                None,
            )
            if source is not None:
                taken.add(int(streams[source]))
                self.edges.add(StreamEdge(task, source))
        stream = int(streams[task])
        latest = max(self.last_on.pop(stream, -1), task)
        self.last_on[stream] = latest


class _MarkReader:
    """With recorded marks: a wait is for a mark, which stands on the stream used last.

    Waits behind a mark are for that mark, and hold up the next launch on other
    streams. Any other wait holds up the next launch of its thread, for the
    latest mark on another stream. A mark right behind a mark would be of no use
    on the same stream, so it stands on the one used before that.
    """

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.edges: set[StreamEdge] = set()
        self.last_on = _launched_before_window(view)
        self.threads: dict[int, _ThreadMarks] = {}

    def see(self, call: int) -> None:
        """Take note of a call."""
        kind = self.view.calls.kind[call]
        if kind in (CallKind.MARK_RECORD, CallKind.STREAM_WAIT):
            of_thread = self.threads.setdefault(int(self.view.calls.thread[call]), _ThreadMarks())
            if kind == CallKind.MARK_RECORD:
                of_thread.mark(self.last_on)
            else:
                of_thread.wait()

    def launch(self, thread: int, task: int) -> None:
        """Take note of a launched task."""
        device = self.view.device
        stream = int(device.stream[task])
        of_thread = self.threads.setdefault(thread, _ThreadMarks())
        for source in of_thread.sources_for(stream, device.stream):
            if _may_wait(self.view, task, source):
                self.edges.add(StreamEdge(task, source))
        self.last_on[stream] = max(self.last_on.get(stream, -1), task)
        of_thread.stream = stream
        of_thread.before = _Before.LAUNCH


class _Before(Enum):
    """What a thread did last."""

    LAUNCH = "launch"
    MARK = "mark"
    WAIT_FOR_MARK = "wait for mark"
    OTHER_WAIT = "other wait"


@dataclass(slots=True)
class _Mark:
    """A mark: the task launched last, others that it rather stands behind, and its waits."""

    task: int
    others: tuple[int, ...]
    waits: int = 0
    served: set[int] = field(default_factory=set)

    def sources_for(self, stream: int, streams: Int64s) -> list[int]:
        """The task behind which it stands, seen from a launch on another *stream*."""
        if streams[self.task] == stream:
            return []
        elsewhere = [task for task in self.others if streams[task] != stream]
        return [max(elsewhere) if elsewhere else self.task]


@dataclass(slots=True)
class _ThreadMarks:
    """The marks and waits of one thread."""

    stream: int | None = None
    marks: list[_Mark] = field(default_factory=list)
    before: _Before = _Before.LAUNCH
    other_waits: int = 0

    def mark(self, last_on: dict[int, int]) -> None:
        """A mark was recorded."""
        if self.stream is not None:
            # Other threads may have launched on the stream since.
            task = last_on[self.stream]
            is_repeated = self.before is _Before.MARK
            others = [other for other in last_on.values() if other != task]
            self.marks.append(_Mark(task, tuple(others) if is_repeated else ()))
            for earlier in self.marks[:-1]:
                earlier.waits = 0 if earlier.served else earlier.waits
            del self.marks[:-_MARKS_REMEMBERED]
        self.before = _Before.MARK

    def wait(self) -> None:
        """A wait was called."""
        is_behind_mark = self.before in (_Before.MARK, _Before.WAIT_FOR_MARK)
        if is_behind_mark and self.marks:
            self.marks[-1].waits += 1
            self.before = _Before.WAIT_FOR_MARK
        else:
            self.other_waits += 1
            self.before = _Before.OTHER_WAIT

    def sources_for(self, stream: int, streams: Int64s) -> list[int]:
        """What a launch on *stream* has to wait for."""
        found = []
        for mark in reversed(self.marks):
            is_waited_for = len(mark.served) < mark.waits and stream not in mark.served
            if not (is_waited_for or self.other_waits):
                continue
            sources = mark.sources_for(stream, streams)
            if sources:
                found += sources
                if is_waited_for:
                    mark.served.add(stream)
                else:
                    self.other_waits -= 1
        self.other_waits = 0
        return found


def read_stream_edges(view: RankView) -> tuple[StreamEdge, ...] | None:
    """The edges whose handles are recorded; None where the trace has no such rows."""
    columns = view.trace.columns
    rows = columns.rows_in(Category.SYNCHRONISATION)
    details = [view.trace.detail_of(row) for row in rows.tolist()]
    waits = [
        (row, detail)
        for row, detail in zip(rows.tolist(), details, strict=True)
        if detail.get("cuda_sync_kind") in _WAIT_WORDS
    ]
    if not len(rows):
        return None
    call_of = {int(columns.correlation[row]): call for call, row in enumerate(view.calls.row)}
    edges = set()
    for row, detail in waits:
        wait_call = call_of.get(int(columns.correlation[row]))
        mark_call = call_of.get(detail.get("wait_on_cuda_event_record_corr_id", -1))
        streams = (int(columns.stream[row]), detail.get("wait_on_stream", -1))
        if wait_call is None or mark_call is None:
            continue
        target = _first_launched_after(view, streams[0], wait_call)
        source = _last_launched_before(view, streams[1], mark_call)
        if target is not None and source is not None and target != source:
            edges.add(StreamEdge(target, source))
    return tuple(sorted(edges))


def _may_wait(view: RankView, target: int, source: int) -> bool:
    ended_ns = int(view.device.end_ns[source])
    return source != target and ended_ns <= int(view.device.start_ns[target]) + _ROUNDING_NS


def _launched_by_call(view: RankView) -> dict[int, list[int]]:
    launched: dict[int, list[int]] = {}
    for task, call in enumerate(view.device.call.tolist()):
        if call >= 0:
            launched.setdefault(call, []).append(task)
    return launched


def _launched_before_window(view: RankView) -> dict[int, int]:
    last_on: dict[int, int] = {}
    for task in np.flatnonzero(view.is_before_window()).tolist():
        last_on[int(view.device.stream[task])] = task
    return last_on


def _stream_of(view: RankView) -> np.ndarray:
    return view.device.stream & 0xFFFFFFFF


def _first_launched_after(view: RankView, stream: int, call: int) -> int | None:
    tasks = np.flatnonzero((_stream_of(view) == stream) & (view.device.call > call))
    return int(tasks[np.argmin(view.device.call[tasks])]) if len(tasks) else None


def _last_launched_before(view: RankView, stream: int, call: int) -> int | None:
    is_known = (view.device.call >= 0) & (view.device.call < call)
    tasks = np.flatnonzero((_stream_of(view) == stream) & is_known)
    return int(tasks[np.argmax(view.device.call[tasks])]) if len(tasks) else None
