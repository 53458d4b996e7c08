"""Recorder: the device calls of the script, in order, thread by thread, and its iterations.

Python kernels record launches; native code logs streams and events. The log is emptied before
every launch, so that both share one order. An operator is what one call of the script, or one
node of the backward pass, launches: calls from the same instruction belong together until its
first kernel is launched again.

An iteration lasts from one step of the first optimizer to its next. The first ones are left
out: DDP rebuilds its buckets after the first, optimizers make their state. A script that updates
its parameters by hand clears their gradients once per iteration.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident, main_thread
from typing import Any

import torch

from perfmodel.extensions.emulation.driver.descriptions import script_line
from perfmodel.extensions.emulation.rank_record import DEVICE_SHIFT, CallType

_LOGGED = {
    1: CallType.RECORD,
    2: CallType.AWAIT,
    3: CallType.SYNC_STREAM,
    4: CallType.SYNC_EVENT,
    5: CallType.SYNC_DEVICE,
}
_COLLECTIVE = 6
_NO_OPERATOR = -1
_REGION = "compiled_region"
"""What the host does before compiled code runs: guards, and the tensors that are passed in."""
_current_node: Callable[[], Any] = torch._C._current_autograd_node


class ScriptStop(SystemExit):
    """Ends the script once enough was recorded; its exit code is 0."""


class Recorder:
    """Collects calls of all threads; off until `is_on` is set. The script runs on *main_thread*."""

    def __init__(self, driver: Any) -> None:
        self.is_on = False
        self.is_over = False
        self.is_forked = False
        self.is_capturing = False
        self.on_capture: Callable[[], None] = lambda: None
        self.on_replay: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        self.captured_steps = 0
        self.kernels_aside = 0
        self.is_stepping = False
        self.calls: list[Any] = []
        self.kinds: list[dict[str, Any]] = []
        self.collectives: list[dict[str, Any]] = []
        self.operator_names: list[str] = []
        self.placeholders: Counter[str] = Counter()
        self.notes: dict[str, None] = {}
        self.on_collective: Callable[[int, int, int], None] = lambda *_: None
        self._driver = driver
        self._log_seen = 0
        self._kind_of: dict[str, int] = {}
        self._states: dict[int, Any] = {}
        self.main_thread = main_thread().ident or 0
        self._place: dict[int, tuple[object, int, int]] = {}
        self._before_capture: tuple[list[Any], bool] = ([], False)
        self._regions: dict[int, str] = {}

    def state(self) -> Any:
        """Current device and stream of this thread."""
        thread = get_ident()
        if thread not in self._states:
            self._states[thread] = self._driver.thread_state()
        return self._states[thread]

    def enter_stream(self) -> None:
        """The state of a thread is that of its last kernel, which torch may not have launched."""
        state = self.state()
        state.stream.value = torch._C._cuda_getCurrentRawStream(state.device)

    def stream(self) -> int:
        """The stream of this thread that torch is on, with its device above bit 32."""
        self.enter_stream()
        state = self.state()
        return int(state.stream.value) | state.device << DEVICE_SHIFT

    def add_kind(self, description: dict[str, Any]) -> int:
        """The number that calls refer to *description* by."""
        self.kinds.append(description)
        return len(self.kinds) - 1

    def intern_kind(self, description: dict[str, Any]) -> int:
        """The number of *description*, the same for equal ones."""
        key = repr(description)
        kind = self._kind_of.get(key)
        if kind is None:
            kind = self._kind_of[key] = self.add_kind(description)
        return kind

    def launch(self, kind: int, device: int, depth: int = 1) -> None:
        """A kernel of *kind* on the current stream of *device*."""
        thread = get_ident()
        if thread == self.main_thread and not (self.is_stepping or torch.is_grad_enabled()):
            self.kernels_aside += 1
        if not self.is_on:
            return
        state = self._states.get(thread) or self.state()
        stream = state.stream.value | device << DEVICE_SHIFT
        operator = self._operator(thread, kind, depth + 1)
        # An operator was launched before what it made the driver do.
        self.calls.append((CallType.KERNEL, kind, thread, stream, operator))
        self.flush()

    def note(self, kind: int, depth: int = 1) -> None:
        """An operator that launches nothing, such as a view."""
        if self.is_on:
            thread = get_ident()
            if thread in self._regions:
                return
            operator = self._operator(thread, _NO_OPERATOR, depth + 1)
            self.calls.append((CallType.NOTE, kind, thread, 0, operator))

    def communicate(self, call: dict[str, Any], thread: int, stream: int) -> None:
        """A collective of *thread* on *stream*."""
        self.collectives.append(call)
        operator = self._new_operator(call["call"])
        number = len(self.collectives) - 1
        self.calls.append((CallType.COLLECTIVE, number, thread, stream, operator))

    def synchronize(self, call_type: CallType, what: int = 0) -> None:
        """The host waits for the device."""
        if self.is_on:
            self._add(call_type, what, get_ident(), self.stream(), _NO_OPERATOR)

    def count_placeholder(self, what: str) -> None:
        """A placeholder was used for a value that a real device computes."""
        self.placeholders[what] += 1

    def check_running(self) -> None:
        """Refuse device work of a forked process, and end the script when enough was recorded."""
        if self.is_over:
            if get_ident() != self.main_thread and _current_node() is None:
                # The main thread may wait for this one for ever; that of a backward pass does not.
                self.on_stop()
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

    @contextmanager
    def in_region(self, name: str) -> Iterator[None]:
        """Compiled code called *name* runs in a `with` block: every launch is its own operator."""
        thread = get_ident()
        before = self._regions.get(thread)
        if before is None and self.is_on:
            operator = self._new_operator(_REGION)
            kind = self.intern_kind({"operator": _REGION})
            self.calls.append((CallType.NOTE, kind, thread, 0, operator))
        self._regions[thread] = name
        try:
            yield
        finally:
            self._place.pop(thread, None)
            if before is None:
                del self._regions[thread]
            else:
                self._regions[thread] = before

    @contextmanager
    def in_graph(self) -> Iterator[None]:
        """What is launched in a `with` block is one launch of a captured graph."""
        if self.is_capturing:
            yield
            return
        self.synchronize(CallType.GRAPH, 1)
        try:
            yield
        finally:
            self.synchronize(CallType.GRAPH, 0)

    def begin_capture(self) -> None:
        """Record what follows for a graph instead of the iteration, also while off."""
        self.on_capture()
        self.flush()
        self._before_capture = (self.calls, self.is_on)
        self.calls, self.is_on = [], True
        self.is_capturing, self.captured_steps = True, 0

    def end_capture(self) -> tuple[list[Any], int]:
        """The calls of the graph, and how many steps of the optimizer it has."""
        self.flush()
        captured = self.calls
        self.calls, self.is_on = self._before_capture
        self.is_capturing = False
        return captured, self.captured_steps

    def replay(self, captured: list[Any], stream: int, *, steps: int) -> None:
        """Launch a graph that was *captured* on *stream*, on the current stream and thread."""
        if self.is_on:
            self.flush()
            thread, current = get_ident(), self.stream()
            self.calls.append((CallType.GRAPH, 1, thread, current, _NO_OPERATOR))
            for kind, what, _, on, operator in captured:
                if kind == CallType.COLLECTIVE:
                    # Every call of a collective has a number of its own.
                    self.collectives.append(self.collectives[what])
                    what = len(self.collectives) - 1  # noqa: PLW2901  the new one
                place = current if on == stream else on
                self.calls.append((kind, what, thread, place, operator))
            self.calls.append((CallType.GRAPH, 0, thread, current, _NO_OPERATOR))
            self._place.pop(thread, None)
        for _ in range(steps):
            self.on_replay()

    def _add(self, *call: int) -> None:
        self.flush()
        self.calls.append(call)

    def flush(self) -> None:
        """Move what the driver logged to the calls."""
        count = self._driver.log_count.value
        if count == self._log_seen:
            return
        for number in range(max(self._log_seen, count - len(self._driver.log)), count):
            entry = self._driver.log[number % len(self._driver.log)]
            kind, what, stream, thread = entry
            if not kind:
                # Another thread has reserved the entry and not filled it yet.
                break
            entry[0] = 0
            self._log_seen = number + 1
            if self.is_on and kind == _COLLECTIVE:
                self.on_collective(what, thread, stream)
            elif self.is_on:
                self.calls.append((_LOGGED[kind], what, thread, stream, _NO_OPERATOR))

    def _operator(self, thread: int, kind: int, depth: int) -> int:
        """The number of the operator that a call with *kind* belongs to."""
        region = self._regions.get(thread)
        if region is not None:
            return self._new_operator(region)
        name, place = "", None
        if thread != self.main_thread:
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
