"""Host chain: what the threads of a rank did between, in and after the calls that matter.

The main thread and the autograd thread hand over to each other and never work
at the same time, so their calls form one chain; a thread whose calls overlap
others has a chain of its own. Time between two calls is host work. A call that
blocks keeps only its floor: from the end of what it waited for to its return.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from perfmodel.recordings.rank_view import NO_OPERATOR, CallKind, RankView
from perfmodel.recordings.throttle import ALLOCATION
from perfmodel.recordings.waits import Awaited, WaitFinder

_NO_STEP = -1
# Calls of threads that hand over to each other do not overlap, but stamps are rounded.
_MAX_OVERLAP_RATIO = 0.02
_IDLE_DELAY_LIMIT_NS = 100_000
_TYPICAL_LAG_NS = 2_000
_TYPICAL_DELAY_NS = 7_000
_COPY_ROUNDING_NS = 5_000
_LONGEST_RETURN_NS = 500_000


class StepKind(Enum):
    """What a step of the host is."""

    FIRST = "first call"
    WORK = "host work"
    LAUNCH = "launch"
    WAIT = "wait"
    ALLOCATION = ALLOCATION
    CALL = "call"


@dataclass(frozen=True, slots=True)
class HostStep:
    """One step; it follows *previous* and ends *duration_ns* after all *awaited* have ended."""

    kind: StepKind
    thread: int
    label: str
    duration_ns: int
    start_ns: int
    end_ns: int
    awaited: tuple[int, ...]
    previous: int
    call: int


@dataclass(frozen=True, slots=True)
class Release:
    """A device task may start *lag_ns* after *step* has ended, or has started."""

    step: int
    lag_ns: int
    is_from_start: bool = False


@dataclass(frozen=True, slots=True)
class HostChain:
    """The steps of all threads of a rank, and which step releases each device task.

    *cut_ns* is what the profiler's own last wait took after the device had done all.
    """

    steps: tuple[HostStep, ...]
    releases: dict[int, Release]
    hidden_waits: int
    cut_ns: int = 0


def build_host_chain(view: RankView) -> HostChain:
    """The steps of the host in the order of the calls."""
    writer = _ChainWriter(view)
    for call in range(len(view.calls)):
        writer.add(call)
    cut_ns = writer.cut_last_wait()
    return HostChain(tuple(writer.steps), writer.releases, writer.waits.hidden_waits, cut_ns)


class _ChainWriter:
    """Goes through the calls once, in order."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.steps: list[HostStep] = []
        self.releases: dict[int, Release] = {}
        self.waits = WaitFinder(view)
        self.operators = view.operators_of_calls()
        self.launched: dict[int, list[int]] = {}
        for task, call in enumerate(view.device.call.tolist()):
            if call >= 0:
                self.launched.setdefault(call, []).append(task)
        self.lag_ns, self.delay_ns = _launch_lags(view)
        self.chain_of = _chains(view, set(self.launched))
        self.last_step: dict[int, int] = {}
        self.reached_ns: dict[int, int] = {}

    def add(self, call: int) -> None:
        """Add the steps of *call*, and the host work before it."""
        kind, tasks = CallKind(int(self.view.calls.kind[call])), self.launched.get(call, [])
        is_idle = kind in (CallKind.OTHER, CallKind.STREAM_WAIT, CallKind.MARK_RECORD)
        if is_idle and not tasks:
            return
        start_ns, end_ns = self._span(call)
        self._reach(call, start_ns, is_hidden_wait=kind is CallKind.ELAPSED_TIME)
        if tasks:
            self._launch(call, tasks)
        elif kind is CallKind.ELAPSED_TIME:
            self._step(StepKind.CALL, call, end_ns - start_ns)
        else:
            awaited = self.waits.awaited_by(call, kind)
            is_allocation = kind in (CallKind.FREE, CallKind.ALLOCATE)
            step_kind = StepKind.ALLOCATION if is_allocation else StepKind.WAIT
            self._step(step_kind, call, awaited.floor_ns, awaited)
        chain = self.chain_of[int(self.view.calls.thread[call])]
        self.reached_ns[chain] = max(self.reached_ns[chain], end_ns)

    def cut_last_wait(self) -> int:
        """Shorten a last wait that outlasts all device work: the profiler stops inside it."""
        last = self.steps[-1] if self.steps else None
        if last is None or last.kind is not StepKind.WAIT or last.duration_ns <= _LONGEST_RETURN_NS:
            return 0
        if CallKind(int(self.view.calls.kind[last.call])) is not CallKind.DEVICE_SYNCHRONISE:
            return 0
        cut_ns = last.duration_ns - _LONGEST_RETURN_NS
        self.steps[-1] = replace(last, duration_ns=_LONGEST_RETURN_NS, end_ns=last.end_ns - cut_ns)
        return cut_ns

    def _span(self, call: int) -> tuple[int, int]:
        return int(self.view.calls.start_ns[call]), int(self.view.calls.end_ns[call])

    def _reach(self, call: int, start_ns: int, *, is_hidden_wait: bool) -> None:
        """Fill the time since the last step of the chain."""
        chain = self.chain_of[int(self.view.calls.thread[call])]
        if chain not in self.reached_ns:
            self.reached_ns[chain] = start_ns
            self._append(StepKind.FIRST, call, (start_ns, start_ns), 0, ())
            return
        since_ns = self.reached_ns[chain]
        if start_ns <= since_ns:
            return
        hidden = self.waits.hidden_wait(since_ns, start_ns) if is_hidden_wait else None
        if hidden is None:
            self._append(StepKind.WORK, call, (since_ns, start_ns), start_ns - since_ns, ())
        else:
            span = (since_ns, start_ns)
            self._append(StepKind.WAIT, call, span, hidden.floor_ns, hidden.tasks)

    def _launch(self, call: int, tasks: list[int]) -> None:
        start_ns, end_ns = self._span(call)
        blocking = self._blocking_copy(tasks, start_ns, end_ns)
        if blocking is None:
            step = self._step(StepKind.LAUNCH, call, end_ns - start_ns)
            release = Release(step, self.lag_ns)
        else:
            step = self._append(StepKind.LAUNCH, call, (start_ns, start_ns), 0, ())
            release = Release(step, self.delay_ns, is_from_start=True)
            copied_ns = int(self.view.device.end_ns[blocking])
            floor_ns = max(end_ns - max(copied_ns, start_ns), 0)
            self._append(StepKind.WAIT, call, (start_ns, end_ns), floor_ns, (blocking,))
        for task in tasks:
            self.releases[task] = release
            self.waits.note_launch(call, task)

    def _blocking_copy(self, tasks: list[int], start_ns: int, end_ns: int) -> int | None:
        """The copy that had ended when the call returned: a pageable one blocks its caller."""
        if end_ns - start_ns <= self.delay_ns:
            return None
        device = self.view.device
        copies = [
            task
            for task in tasks
            if device.is_copy[task] and device.end_ns[task] <= end_ns + _COPY_ROUNDING_NS
        ]
        return max(copies, key=lambda task: int(device.end_ns[task])) if copies else None

    def _step(
        self, kind: StepKind, call: int, duration_ns: int, awaited: Awaited | None = None
    ) -> int:
        tasks = () if awaited is None else awaited.tasks
        return self._append(kind, call, self._span(call), duration_ns, tasks)

    def _append(
        self,
        kind: StepKind,
        call: int,
        span_ns: tuple[int, int],
        duration_ns: int,
        awaited: tuple[int, ...],
    ) -> int:
        thread = int(self.view.calls.thread[call])
        chain = self.chain_of[thread]
        step = HostStep(
            kind=kind,
            thread=thread,
            label=self._label(kind, call),
            duration_ns=duration_ns,
            start_ns=span_ns[0],
            end_ns=span_ns[1],
            awaited=awaited,
            previous=self.last_step.get(chain, _NO_STEP),
            call=call,
        )
        self.steps.append(step)
        self.last_step[chain] = len(self.steps) - 1
        return len(self.steps) - 1

    def _label(self, kind: StepKind, call: int) -> str:
        if kind is StepKind.FIRST:
            return "until the first call"
        if kind is StepKind.WORK:
            operator = int(self.operators[call])
            return "python" if operator == NO_OPERATOR else self.view.trace.name_of(operator)
        return self.view.trace.name_of(int(self.view.calls.row[call]))


def _launch_lags(view: RankView) -> tuple[int, int]:
    """Typical time from the end, and from the start, of a call to a task that nothing else held."""
    device, calls = view.device, view.calls
    lags, delays = [], []
    last_end: dict[int, int] = {}
    for task, (stream, call) in enumerate(
        zip(device.stream.tolist(), device.call.tolist(), strict=True)
    ):
        if call >= 0:
            delay_ns = int(device.start_ns[task] - calls.start_ns[call])
            is_free = last_end.get(stream, -1) < calls.start_ns[call]
            if is_free and delay_ns < _IDLE_DELAY_LIMIT_NS:
                delays.append(delay_ns)
                lags.append(int(device.start_ns[task] - calls.end_ns[call]))
        last_end[stream] = max(last_end.get(stream, -1), int(device.end_ns[task]))
    if not lags:
        return _TYPICAL_LAG_NS, _TYPICAL_DELAY_NS
    return max(int(np.median(lags)), 0), max(int(np.median(delays)), 0)


def _chains(view: RankView, launching: set[int]) -> dict[int, int]:
    """The chain of each thread: 0, or its own number where it overlaps the others."""
    calls = view.calls
    matters = [
        call
        for call in range(len(calls))
        if call in launching
        or calls.kind[call] not in (CallKind.OTHER, CallKind.STREAM_WAIT, CallKind.MARK_RECORD)
    ]
    overlaps: dict[int, int] = {}
    counts: dict[int, int] = {}
    reached_ns, by_thread = -1, -1
    for call in matters:
        thread = int(calls.thread[call])
        counts[thread] = counts.get(thread, 0) + 1
        if thread != by_thread and calls.start_ns[call] < reached_ns - 1_000:
            overlaps[thread] = overlaps.get(thread, 0) + 1
            overlaps[by_thread] = overlaps.get(by_thread, 0) + 1
        if calls.end_ns[call] > reached_ns:
            reached_ns, by_thread = int(calls.end_ns[call]), thread
    main = max(counts, key=lambda thread: counts[thread], default=0)
    chain_of = {int(thread): 0 for thread in np.unique(calls.thread)}
    for thread, count in counts.items():
        if thread != main and overlaps.get(thread, 0) > _MAX_OVERLAP_RATIO * count:
            chain_of[thread] = 1 + sorted(counts).index(thread)
    return chain_of
