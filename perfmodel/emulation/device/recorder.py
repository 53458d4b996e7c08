"""Recorder: what the script asked of its device, in order, thread by thread.

Python kernels write launches; native code logs streams and events. The log is
emptied before every launch, so that both stand in one order. An operator is
what one call of the script, or one node of the backward pass, launches: calls from
the same instruction belong together until the first kernel of it comes again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident, main_thread
from typing import Any

import orjson
import torch

from perfmodel.emulation.device.native import NativeDevice, ThreadState
from perfmodel.emulation.device.native_code import LOG_ENTRIES
from perfmodel.emulation.device.places import script_line
from perfmodel.emulation.rank_record import DEVICE_SHIFT, CallType

_LOGGED = {
    1: CallType.RECORD,
    2: CallType.AWAIT,
    3: CallType.SYNC_STREAM,
    4: CallType.SYNC_EVENT,
    5: CallType.SYNC_DEVICE,
}
_NO_OPERATOR = -1
_current_node: Callable[[], Any] = torch._C._current_autograd_node


class ScriptStop(SystemExit):
    """Ends the script once enough was seen; its exit code is 0."""


class Recorder:
    """Collects calls of all threads; off until `is_on` is set."""

    def __init__(self, native: NativeDevice) -> None:
        self.is_on = False
        self.is_over = False
        self.is_forked = False
        self.calls: list[tuple[int, int, int, int, int]] = []
        self.kinds: list[dict[str, Any]] = []
        self.collectives: list[dict[str, Any]] = []
        self.operator_names: list[str] = []
        self.stand_ins: Counter[str] = Counter()
        self.notes: dict[str, None] = {}
        self.launch_count = 0
        self._native = native
        self._log_seen = 0
        self._kind_of: dict[bytes, int] = {}
        self._states: dict[int, ThreadState] = {}
        self._main = main_thread().ident
        self._place: dict[int, tuple[object, int, int]] = {}

    @property
    def main_thread(self) -> int:
        """The thread that the script started on."""
        return self._main or 0

    def state(self) -> ThreadState:
        """Current device and stream of this thread."""
        thread = get_ident()
        state = self._states.get(thread)
        if state is None:
            state = self._states[thread] = self._native.thread_state()
        return state

    def stream(self) -> int:
        """The stream of this thread, with its device above bit 32."""
        state = self.state()
        return int(state.stream.value) | state.device << DEVICE_SHIFT

    def add_kind(self, description: dict[str, Any]) -> int:
        """The number that calls refer to *description* by."""
        self.kinds.append(description)
        return len(self.kinds) - 1

    def intern_kind(self, description: dict[str, Any]) -> int:
        """The number of *description*, the same for equal ones."""
        key = orjson.dumps(description)
        kind = self._kind_of.get(key)
        if kind is None:
            kind = self._kind_of[key] = self.add_kind(description)
        return kind

    def launch(self, kind: int, device: int, depth: int = 1) -> None:
        """A kernel of *kind* on the current stream of *device*."""
        self.launch_count += 1
        if not self.is_on:
            return
        thread = get_ident()
        state = self._states.get(thread) or self.state()
        stream = state.stream.value | device << DEVICE_SHIFT
        operator = self._operator(thread, kind, depth + 1)
        self.flush()
        self.calls.append((CallType.KERNEL, kind, thread, stream, operator))

    def note(self, kind: int, depth: int = 1) -> None:
        """An operator that launches nothing, such as a view."""
        if self.is_on:
            thread = get_ident()
            operator = self._operator(thread, _NO_OPERATOR, depth + 1)
            self.calls.append((CallType.NOTE, kind, thread, 0, operator))

    def communicate(self, call: dict[str, Any], stream: int) -> None:
        """A collective on *stream*."""
        self.launch_count += 1
        if not self.is_on:
            return
        self.flush()
        self.collectives.append(call)
        number, thread = len(self.collectives) - 1, get_ident()
        operator = self._new_operator(call["call"])
        self.calls.append((CallType.COLLECTIVE, number, thread, stream, operator))
        self._place.pop(thread, None)

    def synchronize(self, call_type: CallType, what: int = 0) -> None:
        """The host waits for the device."""
        if self.is_on:
            self.flush()
            self.calls.append((call_type, what, get_ident(), self.stream(), _NO_OPERATOR))

    def stand_in(self, what: str) -> None:
        """A value that the device would have computed was made up."""
        self.stand_ins[what] += 1

    def check_running(self) -> None:
        """Refuse device work of a forked process, and end the script when enough was seen."""
        if self.is_over:
            raise ScriptStop(0)
        if self.is_forked:
            raise RuntimeError(
                f"Cannot re-initialize CUDA in forked subprocess ({script_line()}). To use CUDA "
                "with multiprocessing, start processes with torch.multiprocessing.spawn."
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens in a `with` block."""
        was_on, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = was_on

    def flush(self) -> None:
        """Move what native code logged to the calls."""
        count = self._native.log_count.value
        if count == self._log_seen:
            return
        for number in range(max(self._log_seen, count - LOG_ENTRIES), count):
            entry = self._native.log[number % LOG_ENTRIES]
            kind, what, stream, thread = entry
            if not kind:
                # Another thread has taken the place and not filled it yet.
                break
            entry[0] = 0
            self._log_seen = number + 1
            if self.is_on:
                self.calls.append((_LOGGED[kind], what, thread, stream, _NO_OPERATOR))

    def _operator(self, thread: int, kind: int, depth: int) -> int:
        """The number of the operator that a call with *kind* belongs to."""
        name, place = "", None
        if thread != self._main:
            node = _current_node()
            if node is not None:
                name = node.name()
                place = (name, node._sequence_nr())
        if place is None:
            try:
                frame = sys._getframe(depth + 1)
                place = (id(frame), frame.f_lasti)
            except ValueError:
                place = (0, 0)
        last = self._place.get(thread)
        if last is not None and last[0] == place and (kind != last[1] or kind == _NO_OPERATOR):
            if last[1] == _NO_OPERATOR:
                self._place[thread] = (place, kind, last[2])
            return last[2]
        operator = self._new_operator(name)
        self._place[thread] = (place, kind, operator)
        return operator

    def _new_operator(self, name: str) -> int:
        self.operator_names.append(name)
        return len(self.operator_names) - 1
