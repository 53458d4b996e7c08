"""Waits: what a blocking call waited for.

The trace does not say. A call can only have waited for work that was launched
before it and had ended when it returned; among that, the meaning of the call
and the nearness of the two ends decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.recordings.rank_view import CallKind, RankView

# What the skew between the clocks of host and device can still be off by.
CLOCK_TOLERANCE_NS = 50_000
_SHORT_CALL_NS = 50_000
_SHORT_MARK_WAIT_NS = 20_000
_RETURN_LIMIT_NS = 500_000
_OWN_STREAM_LIMIT_NS = 200_000
# Where nothing is recorded: a gap this long before the elapsed time is asked for is a wait.
_HIDDEN_WAIT_NS = 200_000
_HIDDEN_RETURN_NS = 300_000
_HIDDEN_AHEAD_NS = 20_000


@dataclass(frozen=True, slots=True)
class Awaited:
    """The device tasks that were waited for, and what the call took beyond them."""

    tasks: tuple[int, ...]
    floor_ns: int


class WaitFinder:
    """Knows at every moment of the calls what has been launched."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.hidden_waits = 0
        self.last_on: dict[int, int] = {}
        self.stream_of_thread: dict[int, int] = {}
        before = np.flatnonzero(view.is_before_window())
        # Filled from the front as calls come; a list would be copied at every look.
        self.launched = np.empty(len(view.device), dtype=np.int64)
        self.launched[: len(before)] = before
        self.launched_count = len(before)
        for task in before.tolist():
            self.last_on[int(view.device.stream[task])] = task

    def note_launch(self, call: int, task: int) -> None:
        """Take note that *call* launched *task*."""
        stream = int(self.view.device.stream[task])
        self.last_on[stream] = max(self.last_on.get(stream, -1), task)
        self.stream_of_thread[int(self.view.calls.thread[call])] = stream
        self.launched[self.launched_count] = task
        self.launched_count += 1

    def awaited_by(self, call: int, kind: CallKind) -> Awaited:
        """What *call* waited for."""
        start_ns = int(self.view.calls.start_ns[call])
        end_ns = int(self.view.calls.end_ns[call])
        ended = {
            stream: task
            for stream, task in self.last_on.items()
            if self._end_ns(task) <= end_ns + CLOCK_TOLERANCE_NS
        }
        if kind in (CallKind.DEVICE_SYNCHRONISE, CallKind.FREE):
            tasks = list(ended.values())
        elif kind is CallKind.ALLOCATE:
            tasks = self._awaited_by_allocation(ended, start_ns)
        elif kind is CallKind.MARK_SYNCHRONISE:
            tasks = self._awaited_by_mark(start_ns, end_ns)
        else:
            stream = self.stream_of_thread.get(int(self.view.calls.thread[call]))
            tasks = self._awaited_by_stream(ended, stream, start_ns, end_ns)
        return self._with_floor(tasks, start_ns, end_ns)

    def hidden_wait(self, since_ns: int, until_ns: int) -> Awaited | None:
        """What was waited for before an elapsed time was asked for, if there was a wait."""
        if until_ns - since_ns <= _HIDDEN_WAIT_NS:
            return None
        low_ns, high_ns = until_ns - _HIDDEN_RETURN_NS, until_ns + _HIDDEN_AHEAD_NS
        task = self._last_ended(low_ns, high_ns)
        if task is None:
            return None
        self.hidden_waits += 1
        return self._with_floor([task], since_ns, until_ns)

    def _awaited_by_allocation(self, ended: dict[int, int], start_ns: int) -> list[int]:
        """An allocation waits for the whole device or, where work outlasts it, for nothing."""
        if len(ended) < len(self.last_on):
            return []
        return [task for task in ended.values() if self._end_ns(task) > start_ns]

    def _awaited_by_mark(self, start_ns: int, end_ns: int) -> list[int]:
        if end_ns - start_ns <= _SHORT_MARK_WAIT_NS:
            return []
        task = self._last_ended(start_ns - CLOCK_TOLERANCE_NS, end_ns + CLOCK_TOLERANCE_NS)
        return [] if task is None else [task]

    def _awaited_by_stream(
        self, ended: dict[int, int], stream: int | None, start_ns: int, end_ns: int
    ) -> list[int]:
        own = ended.get(stream) if stream is not None else None
        if end_ns - start_ns > _SHORT_CALL_NS and ended:
            nearest = min(ended.values(), key=lambda task: abs(end_ns - self._end_ns(task)))
            if own is not None and abs(end_ns - self._end_ns(own)) < _OWN_STREAM_LIMIT_NS:
                nearest = own
            if abs(end_ns - self._end_ns(nearest)) < _RETURN_LIMIT_NS:
                return [nearest]
        return [] if own is None else [own]

    def _last_ended(self, low_ns: int, high_ns: int) -> int | None:
        """Of the launched tasks that ended between two moments, the one that ended last."""
        launched = self.launched[: self.launched_count]
        ends = self.view.device.end_ns[launched]
        fitting = launched[(ends >= low_ns) & (ends <= high_ns)]
        if not len(fitting):
            return None
        return int(fitting[np.argmax(self.view.device.end_ns[fitting])])

    def _with_floor(self, tasks: list[int], start_ns: int, end_ns: int) -> Awaited:
        last_ns = max((self._end_ns(task) for task in tasks), default=start_ns)
        floor_ns = end_ns - max(start_ns, min(last_ns, end_ns))
        return Awaited(tuple(sorted(tasks)), floor_ns)

    def _end_ns(self, task: int) -> int:
        return int(self.view.device.end_ns[task])
