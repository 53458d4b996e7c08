"""Host chain: the steps of a rank's host threads between, in and after the calls that matter.

The main thread and the autograd thread hand over to each other and never work at the same time,
so their calls form one chain; a thread whose calls overlap others has a chain of its own. Time
between two calls is host work. A blocking call keeps only its floor: from the end of the work it
waited for to its return. The trace does not say what that was. A call can only have waited for
work that was launched before it and had ended when it returned; among that, the kind of the call
and the distance between the two ends decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from perfmodel.graph.builder import Dependency
from perfmodel.graph.program import Anchor, Int64s
from perfmodel.recordings.rank_view import NO_OPERATOR, CallKind, RankView
from perfmodel.recordings.throttle import ALLOCATION, alone_ns, host_of

_NO_STEP = -1
_IDLE_KINDS = (CallKind.OTHER, CallKind.STREAM_WAIT, CallKind.MARK_RECORD)
"""Calls that matter only if they launch something."""
# Calls of threads that hand over to each other do not overlap, but stamps are rounded.
_MAX_OVERLAP_RATIO = 0.02
_IDLE_DELAY_LIMIT_NS = 100_000
_TYPICAL_LAG_NS = 2_000
_TYPICAL_DELAY_NS = 7_000
_COPY_ROUNDING_NS = 5_000
_LONGEST_RETURN_NS = 500_000
# Remaining error of the skew between the clocks of host and device.
_CLOCK_TOLERANCE_NS = 50_000
_SHORT_CALL_NS = 50_000
_SHORT_MARK_WAIT_NS = 20_000
_RETURN_LIMIT_NS = 500_000
_OWN_STREAM_LIMIT_NS = 200_000
# Without a recorded wait: a gap this long before an elapsed time is read is a wait.
_HIDDEN_WAIT_NS = 200_000
_HIDDEN_RETURN_NS = 300_000
_HIDDEN_AHEAD_NS = 20_000


class StepKind(Enum):
    """The kind of a host step."""

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
class HostChain:
    """The steps of all threads of a rank, and the dependency of device tasks on steps.

    *cut_ns* is how long the profiler's own last wait lasted after all device work.
    """

    steps: tuple[HostStep, ...]
    releases: dict[int, Dependency]
    hidden_waits: int
    cut_ns: int = 0


def build_host_chain(view: RankView) -> HostChain:
    """The steps of the host in the order of the calls."""
    writer = _ChainWriter(view)
    for call in writer.relevant:
        writer.add(call)
    cut_ns = writer.cut_last_wait()
    return HostChain(tuple(writer.steps), writer.releases, writer.waits.hidden_waits, cut_ns)


def with_unshared_allocations(chains: Sequence[HostChain], gpus_per_host: int) -> list[HostChain]:
    """*chains* of all ranks, in which allocations take the time they take alone."""
    steps = [list(chain.steps) for chain in chains]
    places: dict[int, list[tuple[int, int]]] = {}
    for rank, of_rank in enumerate(steps):
        for number, step in enumerate(of_rank):
            if step.kind is StepKind.ALLOCATION:
                places.setdefault(host_of(rank, gpus_per_host), []).append((rank, number))
    for of_host in places.values():
        ends = np.array([steps[rank][number].end_ns for rank, number in of_host])
        floors = np.array([steps[rank][number].duration_ns for rank, number in of_host])
        own_ns = alone_ns(ends - floors, ends).tolist()
        for (rank, number), length_ns in zip(of_host, own_ns, strict=True):
            steps[rank][number] = replace(steps[rank][number], duration_ns=length_ns)
    return [replace(chain, steps=tuple(of)) for chain, of in zip(chains, steps, strict=True)]


class _ChainWriter:
    """Goes through the relevant calls once, in order."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.steps: list[HostStep] = []
        self.releases: dict[int, Dependency] = {}
        self.waits = _WaitFinder(view)
        self.operators = view.operators_of_calls()
        self.launched = view.tasks_by_call()
        is_relevant = ~np.isin(view.calls.kind, _IDLE_KINDS)
        is_relevant[list(self.launched)] = True
        self.relevant: list[int] = np.flatnonzero(is_relevant).tolist()
        self.lag_ns, self.delay_ns = _launch_lags(view)
        self.chain_of = _chains(view, self.relevant)
        self.last_step: dict[int, int] = {}
        self.reached_ns: dict[int, int] = {}

    def add(self, call: int) -> None:
        """Add the steps of *call*, and the host work before it."""
        calls, tasks = self.view.calls, self.launched.get(call)
        kind = CallKind(int(calls.kind[call]))
        start_ns, end_ns = int(calls.start_ns[call]), int(calls.end_ns[call])
        self._reach(call, start_ns, is_hidden_wait=kind is CallKind.ELAPSED_TIME)
        if tasks:
            self._launch(call, tasks, start_ns, end_ns)
        elif kind is CallKind.ELAPSED_TIME:
            self._append(StepKind.CALL, call, start_ns, end_ns)
        else:
            is_allocation = kind in (CallKind.FREE, CallKind.ALLOCATE)
            step_kind = StepKind.ALLOCATION if is_allocation else StepKind.WAIT
            awaited = self.waits.awaited_by(call, kind, start_ns, end_ns)
            self._append(step_kind, call, start_ns, end_ns, awaited)
        chain = self.chain_of[int(calls.thread[call])]
        self.reached_ns[chain] = max(self.reached_ns[chain], end_ns)

    def cut_last_wait(self) -> int:
        """Shorten a last wait that outlasts all device work: the profiler stops inside it."""
        last = self.steps[-1] if self.steps else None
        if last is None or last.kind is not StepKind.WAIT or last.duration_ns <= _LONGEST_RETURN_NS:
            return 0
        if self.view.calls.kind[last.call] != CallKind.DEVICE_SYNCHRONISE:
            return 0
        cut_ns = last.duration_ns - _LONGEST_RETURN_NS
        self.steps[-1] = replace(last, duration_ns=_LONGEST_RETURN_NS, end_ns=last.end_ns - cut_ns)
        return cut_ns

    def _reach(self, call: int, start_ns: int, *, is_hidden_wait: bool) -> None:
        """Fill the time since the last step of the chain."""
        chain = self.chain_of[int(self.view.calls.thread[call])]
        since_ns = self.reached_ns.setdefault(chain, start_ns)
        if chain not in self.last_step:
            self._append(StepKind.FIRST, call, since_ns, start_ns)
        elif start_ns > since_ns:
            hidden = self.waits.hidden_wait(since_ns, start_ns) if is_hidden_wait else ()
            kind = StepKind.WAIT if hidden else StepKind.WORK
            self._append(kind, call, since_ns, start_ns, hidden)

    def _launch(self, call: int, tasks: list[int], start_ns: int, end_ns: int) -> None:
        blocking = self._blocking_copy(tasks, start_ns, end_ns)
        if blocking is None:
            step = self._append(StepKind.LAUNCH, call, start_ns, end_ns)
            release = Dependency(step, lag_ns=self.lag_ns)
        else:
            step = self._append(StepKind.LAUNCH, call, start_ns, start_ns)
            release = Dependency(step, Anchor.START, self.delay_ns)
            self._append(StepKind.WAIT, call, start_ns, end_ns, [blocking])
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
        return max(copies, key=lambda task: int(device.end_ns[task]), default=None)

    def _append(
        self,
        kind: StepKind,
        call: int,
        start_ns: int,
        end_ns: int,
        awaited: Sequence[int] = (),
    ) -> int:
        """Add a step; it keeps what is left of its time after all *awaited* have ended."""
        waited_ns = max((int(self.view.device.end_ns[task]) for task in awaited), default=start_ns)
        own_ns = end_ns - max(start_ns, min(waited_ns, end_ns))
        thread = int(self.view.calls.thread[call])
        label = self.view.trace.name_of(int(self.view.calls.row[call]))
        if kind is StepKind.FIRST:
            label = "until the first call"
        elif kind is StepKind.WORK:
            operator = int(self.operators[call])
            label = "python" if operator == NO_OPERATOR else self.view.trace.name_of(operator)
        previous = self.last_step.get(self.chain_of[thread], _NO_STEP)
        self.last_step[self.chain_of[thread]] = len(self.steps)
        order = tuple(sorted(awaited))
        self.steps.append(
            HostStep(kind, thread, label, own_ns, start_ns, end_ns, order, previous, call)
        )
        return len(self.steps) - 1


class _WaitFinder:
    """Finds the device tasks that a call waited for.

    Keeps track of all that was launched before the current call.
    """

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.end_ns: list[int] = view.device.end_ns.tolist()
        self.hidden_waits = 0
        self.last_on = view.last_before_window()
        self.stream_of_thread: dict[int, int] = {}
        before = np.flatnonzero(view.is_before_window())
        # Filled from the front as calls come; a list would be copied at every look.
        self.launched = np.empty(len(view.device), dtype=np.int64)
        self.launched[: len(before)] = before
        self.launched_count = len(before)

    def note_launch(self, call: int, task: int) -> None:
        """Take note that *call* launched *task*."""
        stream = int(self.view.device.stream[task])
        self.last_on[stream] = max(self.last_on.get(stream, -1), task)
        self.stream_of_thread[int(self.view.calls.thread[call])] = stream
        self.launched[self.launched_count] = task
        self.launched_count += 1

    def awaited_by(self, call: int, kind: CallKind, start_ns: int, end_ns: int) -> list[int]:
        """The tasks that *call* waited for."""
        ended = {
            stream: task
            for stream, task in self.last_on.items()
            if self.end_ns[task] <= end_ns + _CLOCK_TOLERANCE_NS
        }
        if kind in (CallKind.DEVICE_SYNCHRONISE, CallKind.FREE):
            return list(ended.values())
        if kind is CallKind.ALLOCATE:
            # It waits for the whole device or, if some work outlasts it, for nothing.
            is_whole = len(ended) == len(self.last_on)
            return [task for task in ended.values() if is_whole and self.end_ns[task] > start_ns]
        if kind is CallKind.MARK_SYNCHRONISE:
            if end_ns - start_ns <= _SHORT_MARK_WAIT_NS:
                return []
            return self._last_ended(start_ns - _CLOCK_TOLERANCE_NS, end_ns + _CLOCK_TOLERANCE_NS)
        stream = self.stream_of_thread.get(int(self.view.calls.thread[call]))
        own = None if stream is None else ended.get(stream)
        return self._awaited_on_stream(ended, own, start_ns, end_ns)

    def hidden_wait(self, since_ns: int, until_ns: int) -> list[int]:
        """The same for a gap before an elapsed time is read; nothing if it was no wait."""
        if until_ns - since_ns <= _HIDDEN_WAIT_NS:
            return []
        tasks = self._last_ended(until_ns - _HIDDEN_RETURN_NS, until_ns + _HIDDEN_AHEAD_NS)
        self.hidden_waits += len(tasks)
        return tasks

    def _awaited_on_stream(
        self, ended: dict[int, int], own: int | None, start_ns: int, end_ns: int
    ) -> list[int]:
        """Of the last tasks of all streams, the nearest; *own* is that of the thread's stream."""
        if end_ns - start_ns > _SHORT_CALL_NS and ended:
            nearest = min(ended.values(), key=lambda task: abs(end_ns - self.end_ns[task]))
            if own is not None and abs(end_ns - self.end_ns[own]) < _OWN_STREAM_LIMIT_NS:
                nearest = own
            if abs(end_ns - self.end_ns[nearest]) < _RETURN_LIMIT_NS:
                return [nearest]
        return [] if own is None else [own]

    def _last_ended(self, low_ns: int, high_ns: int) -> list[int]:
        """Of the launched tasks that ended between two moments, the one that ended last."""
        launched = self.launched[: self.launched_count]
        ends: Int64s = self.view.device.end_ns[launched]
        is_fitting = (ends >= low_ns) & (ends <= high_ns)
        if not is_fitting.any():
            return []
        return [int(launched[is_fitting][np.argmax(ends[is_fitting])])]


def _launch_lags(view: RankView) -> tuple[int, int]:
    """Typical time from the end, and from the start, of a call to a task that nothing else held."""
    device, calls = view.device, view.calls
    lags, delays = [], []
    last_end: dict[int, int] = {}
    links = zip(device.stream.tolist(), device.call.tolist(), strict=True)
    for task, (stream, call) in enumerate(links):
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


def _chains(view: RankView, relevant: Sequence[int]) -> dict[int, int]:
    """The chain of each thread: 0, or its own number if it overlaps the others."""
    calls = view.calls
    overlaps: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    reached_ns, by_thread = -1, -1
    for call in relevant:
        thread = int(calls.thread[call])
        counts[thread] += 1
        if thread != by_thread and calls.start_ns[call] < reached_ns - 1_000:
            overlaps.update((thread, by_thread))
        if calls.end_ns[call] > reached_ns:
            reached_ns, by_thread = int(calls.end_ns[call]), thread
    main = max(counts, key=lambda thread: counts[thread], default=0)
    chain_of = {int(thread): 0 for thread in np.unique(calls.thread)}
    for thread, count in counts.items():
        if thread != main and overlaps[thread] > _MAX_OVERLAP_RATIO * count:
            chain_of[thread] = 1 + sorted(counts).index(thread)
    return chain_of
