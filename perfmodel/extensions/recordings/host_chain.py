"""Host chain: the steps of a rank's host threads between, in and after the calls that matter.

The main thread and the autograd thread alternate and never work at the same time,
so their calls form one chain; a thread whose calls overlap others has a chain of its own. Time
between two calls is host work. A blocking call keeps only its floor: from the end of the work it
waited for to its return. The trace does not say what that was. A call can only have waited for
work that was launched before it and had ended when it returned; the kind of the call decides.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from perfmodel.extensions.recordings.rank_view import (
    NO_OPERATOR,
    SHORTEST_LAUNCH_NS,
    CallKind,
    RankView,
    plain,
)
from perfmodel.extensions.recordings.throttle import ALLOCATION, alone_ns, host_of
from perfmodel.graph.program import Anchor, Int64s
from traces.trace import Category, Trace

_NO_STEP = -1
_STEP_FIELDS = 7
_IDLE_KINDS = (CallKind.OTHER, CallKind.STREAM_WAIT, CallKind.MARK_RECORD)
"""Calls that matter only if they launch something."""
_LONGEST_GAP_NS = 5_000
"""A longer gap between queued tasks was a wait for another stream."""
_COPY_ROUNDING_NS = 5_000
"""A blocking copy returns when it has ended, on clocks that differ by so much."""
_OWNED_NS = 100_000
"""Longer host work is named after what fills it, shorter after the call that it leads to."""
_NO_OWNERS = ("ProfilerStep", "nccl:")
# Without a recorded wait: a gap this long before an elapsed time is read is a wait.
_HIDDEN_WAIT_NS = 200_000
_HIDDEN_AHEAD_NS = 20_000


class StepKind(Enum):
    """The kind of a host step."""

    FIRST = "first call"
    WORK = "host work"
    LAUNCH = "launch"
    WAIT = "wait"
    ALLOCATION = ALLOCATION
    CALL = "call"
    __hash__ = object.__hash__


KINDS = tuple(StepKind)
_CODES = {kind: code for code, kind in enumerate(KINDS)}
FIRST_LABEL, PYTHON_LABEL = -2, -1
"""Labels of steps that no name of the trace describes."""
_LABELS = {FIRST_LABEL: "until the first call", PYTHON_LABEL: "python"}


@dataclass(frozen=True, slots=True, eq=False)
class HostSteps:
    """The steps of a rank as columns, in the order of the calls.

    A step follows *previous* (or nothing: -1) and ends *duration_ns* after all that it *awaited*
    have ended; *kind* is a place in KINDS, *label* a name of the trace or one of the two above.
    *chain* numbers the threads that never work at the same time.
    """

    kind: NDArray[np.uint8]
    label: NDArray[np.int32]
    thread: Int64s
    duration_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    previous: Int64s
    call: Int64s
    awaited: dict[int, tuple[int, ...]]
    chain: Int64s

    def __len__(self) -> int:
        return len(self.kind)

    def places_of(self, *kinds: StepKind) -> Int64s:
        """The places of the steps of *kinds*."""
        return np.flatnonzero(np.isin(self.kind, [_CODES[kind] for kind in kinds]))


def step_label(trace: Trace, label: int) -> str:
    """The text of the *label* of a step."""
    return _LABELS[label] if label < 0 else trace.names[label]


@dataclass(frozen=True, slots=True, eq=False)
class Releases:
    """By device task, the step that launched it (or -1), from which end of it, and the lag.

    *gap_ns* is how long it starts after the task ahead of it on its stream at the earliest.
    """

    step: Int64s
    anchor: NDArray[np.uint8]
    lag_ns: Int64s
    gap_ns: Int64s


@dataclass(frozen=True, slots=True)
class HostChain:
    """The steps of all threads of a rank, and the dependency of device tasks on steps."""

    steps: HostSteps
    releases: Releases
    hidden_waits: int


def build_host_chain(view: RankView) -> HostChain:
    """The steps of the host in the order of the calls."""
    writer = _ChainWriter(view)
    for call in writer.relevant:
        writer.add(call)
    return HostChain(writer.steps(), writer.releases, writer.waits.hidden_waits)


def with_unshared_allocations(chains: Sequence[HostChain], gpus_per_host: int) -> list[HostChain]:
    """*chains* of all ranks, in which allocations take the time they take alone."""
    lengths_ns = [chain.steps.duration_ns.copy() for chain in chains]
    by_host: dict[int, list[tuple[int, Int64s]]] = {}
    for rank, chain in enumerate(chains):
        places = chain.steps.places_of(StepKind.ALLOCATION)
        by_host.setdefault(host_of(rank, gpus_per_host), []).append((rank, places))
    for of_host in by_host.values():
        ends = np.concatenate([chains[rank].steps.end_ns[places] for rank, places in of_host])
        floors = np.concatenate([lengths_ns[rank][places] for rank, places in of_host])
        own_ns = alone_ns(ends - floors, ends) if len(ends) else ends
        bounds = np.cumsum([len(places) for _, places in of_host])[:-1]
        for (rank, places), alone in zip(of_host, np.split(own_ns, bounds), strict=True):
            lengths_ns[rank][places] = alone
    return [
        replace(chain, steps=replace(chain.steps, duration_ns=own))
        for chain, own in zip(chains, lengths_ns, strict=True)
    ]


class _ChainWriter:
    """Goes through the relevant calls once, in order."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.waits = _WaitFinder(view)
        self.launched = view.tasks_by_call()
        is_launch = self.launched.has_any()
        is_relevant = ~np.isin(view.calls.kind, _IDLE_KINDS) | is_launch
        self.relevant = plain(np.flatnonzero(is_relevant))
        self.is_launch = plain(is_launch)
        self.lag_ns, self.delay_ns = _launch_lags(view)
        calls, names = view.calls, view.trace.columns.name
        chain_of = _chains(view, self.relevant)
        self.chains = [chain_of[thread] for thread in calls.thread.tolist()]
        self.kinds = plain(calls.kind)
        self.start_ns, self.end_ns = plain(calls.start_ns), plain(calls.end_ns)
        self.began_ns, self.ended_ns = plain(view.device.start_ns), plain(view.device.end_ns)
        self.names = plain(names[calls.row])
        operators = names[np.maximum(view.operators, 0)] if len(names) else view.operators
        self.operators = plain(np.where(view.operators == NO_OPERATOR, PYTHON_LABEL, operators))
        self.owners, self.threads = _Owners(view), plain(view.calls.thread)
        self.last_step: dict[int, int] = {}
        self.reached_ns: dict[int, int] = {}
        self._rows, self._awaited = array("q"), dict[int, tuple[int, ...]]()
        count = len(view.device)
        self.releases = Releases(
            np.full(count, _NO_STEP, dtype=np.int64),
            np.zeros(count, dtype=np.uint8),
            np.zeros(count, dtype=np.int64),
            _stream_gaps_ns(view),
        )

    def steps(self) -> HostSteps:
        """All steps so far, as columns."""
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, _STEP_FIELDS)
        kind, label, duration_ns, start_ns, end_ns, previous, call = rows.T
        return HostSteps(
            kind=kind.astype(np.uint8),
            label=label.astype(np.int32),
            thread=self.view.calls.thread[call],
            duration_ns=duration_ns.copy(),
            start_ns=start_ns.copy(),
            end_ns=end_ns.copy(),
            previous=previous.copy(),
            call=call.copy(),
            awaited=self._awaited,
            chain=np.array(self.chains, dtype=np.int64)[call],
        )

    def add(self, call: int) -> None:
        """Add the steps of *call*, and the host work before it."""
        kind = self.kinds[call]
        start_ns, end_ns = self.start_ns[call], self.end_ns[call]
        self._reach(call, start_ns, is_hidden_wait=kind == CallKind.ELAPSED_TIME)
        if self.is_launch[call]:
            self._launch(call, self.launched.by(call), start_ns, end_ns)
        elif kind == CallKind.ELAPSED_TIME:
            self._append(StepKind.CALL, call, start_ns, end_ns)
        else:
            is_allocation = kind in (CallKind.FREE, CallKind.ALLOCATE)
            step_kind = StepKind.ALLOCATION if is_allocation else StepKind.WAIT
            awaited = self.waits.awaited_by(call, CallKind(kind), start_ns, end_ns)
            self._append(step_kind, call, start_ns, end_ns, awaited)
        chain = self.chains[call]
        self.reached_ns[chain] = max(self.reached_ns[chain], end_ns)

    def _reach(self, call: int, start_ns: int, *, is_hidden_wait: bool) -> None:
        """Fill the time since the last step of the chain."""
        chain = self.chains[call]
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
            anchor, lag_ns = Anchor.END, self.lag_ns
        else:
            step = self._append(StepKind.LAUNCH, call, start_ns, start_ns)
            anchor, lag_ns = Anchor.START, self.delay_ns
            self._append(StepKind.WAIT, call, start_ns, end_ns, [blocking])
        for task in tasks:
            began_ns = self.began_ns[task]
            # A call that fills a buffer for a copy, or launches a graph, returns after it begins.
            is_inside = blocking is None and start_ns < began_ns < end_ns
            is_inside = is_inside and (bool(self.view.device.is_copy[task]) or len(tasks) > 1)
            self.releases.step[task] = step
            self.releases.anchor[task] = Anchor.START if is_inside else anchor
            self.releases.lag_ns[task] = began_ns - start_ns if is_inside else lag_ns
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
        own_ns, chain = end_ns - start_ns, self.chains[call]
        step = len(self._rows) // _STEP_FIELDS
        if awaited:
            waited_ns = max(self.ended_ns[task] for task in awaited)
            own_ns = end_ns - max(start_ns, min(waited_ns, end_ns))
            self._awaited[step] = tuple(sorted(awaited))
        label = self.names[call]
        if kind is StepKind.FIRST:
            label = FIRST_LABEL
        elif kind is StepKind.WORK:
            label = self.operators[call]
            if own_ns > _OWNED_NS:
                label = self.owners.owner_of(self.threads[call], start_ns, end_ns, label)
        previous = self.last_step.get(chain, _NO_STEP)
        self.last_step[chain] = step
        self._rows.extend((_CODES[kind], label, own_ns, start_ns, end_ns, previous, call))
        return step


class _Owners:
    """Ranges and operators that may own long host work: loaders, compilation, code of the user."""

    def __init__(self, view: RankView) -> None:
        columns = view.trace.columns
        is_own = np.array([not name.startswith(_NO_OWNERS) for name in view.trace.names], bool)
        rows = columns.rows_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
        rows = rows[is_own[columns.name[rows]] & (columns.duration_ns[rows] > _OWNED_NS // 2)]
        self.name, self.thread = columns.name[rows], columns.thread[rows]
        self.start_ns = columns.start_ns[rows] + view.host_offset_ns
        self.end_ns = self.start_ns + columns.duration_ns[rows]

    def owner_of(self, thread: int, since_ns: int, until_ns: int, nobody: int) -> int:
        """The name of the innermost that fills half of a time of *thread*, or *nobody*."""
        shared_ns = np.minimum(self.end_ns, until_ns) - np.maximum(self.start_ns, since_ns)
        own = np.flatnonzero((self.thread == thread) & (2 * shared_ns > until_ns - since_ns))
        if not len(own):
            return nobody
        lengths_ns = self.end_ns[own] - self.start_ns[own]
        return int(self.name[own[np.argmin(lengths_ns)]])


class _WaitFinder:
    """Finds the device tasks that a call waited for.

    Keeps track of all that was launched before the current call.
    """

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.end_ns = plain(view.device.end_ns)
        self.streams, self.threads = plain(view.device.stream), plain(view.calls.thread)
        self.hidden_waits = 0
        self.last_on = view.last_before_window()
        self.stream_of_thread: dict[int, int] = {}
        self.is_launched = view.is_before_window()
        self.by_end = np.argsort(view.device.end_ns, kind="stable")
        self.sorted_end_ns = view.device.end_ns[self.by_end]

    def note_launch(self, call: int, task: int) -> None:
        """Take note that *call* launched *task*."""
        stream = self.streams[task]
        self.last_on[stream] = max(self.last_on.get(stream, -1), task)
        self.stream_of_thread[self.threads[call]] = stream
        self.is_launched[task] = True

    def awaited_by(self, call: int, kind: CallKind, start_ns: int, end_ns: int) -> list[int]:
        """The tasks that *call* waited for."""
        ended = {
            stream: task for stream, task in self.last_on.items() if self.end_ns[task] <= end_ns
        }
        if kind in (CallKind.DEVICE_SYNCHRONISE, CallKind.FREE):
            return list(ended.values())
        if kind is CallKind.ALLOCATE:
            return [task for task in ended.values() if self.end_ns[task] > start_ns]
        if kind is CallKind.MARK_SYNCHRONISE:
            return self._last_ended(start_ns, end_ns)
        own = ended.get(self.stream_of_thread.get(self.threads[call], -1))
        return [] if own is None else [own]

    def hidden_wait(self, since_ns: int, until_ns: int) -> list[int]:
        """The same for a gap before an elapsed time is read; nothing if it was no wait."""
        if until_ns - since_ns <= _HIDDEN_WAIT_NS:
            return []
        tasks = self._last_ended(until_ns - _HIDDEN_WAIT_NS, until_ns + _HIDDEN_AHEAD_NS)
        self.hidden_waits += len(tasks)
        return tasks

    def _last_ended(self, low_ns: int, high_ns: int) -> list[int]:
        """Of the launched tasks that ended between two moments, the one that ended last."""
        first, last = np.searchsorted(self.sorted_end_ns, (low_ns, high_ns + 1)).tolist()
        for task in self.by_end[first:last][::-1].tolist():
            if self.is_launched[task]:
                return [task]
        return []


def _launch_lags(view: RankView) -> tuple[int, int]:
    """Typical time from the end, and from the start, of a call to a task that nothing else held."""
    device, calls = view.device, view.calls
    launched = np.flatnonzero(device.call >= 0)
    start_ns, call = device.start_ns[launched], device.call[launched]
    delay_ns = start_ns - calls.start_ns[call]
    is_free = device.reached_ns()[launched] < calls.start_ns[call]
    if not is_free.any():
        return 0, SHORTEST_LAUNCH_NS
    # The lower one of two in the middle: few launches may be held by something else.
    middle = (int(is_free.sum()) - 1) // 2
    after_ns = int(np.sort((start_ns - calls.end_ns[call])[is_free])[middle])
    return max(after_ns, 0), max(int(np.sort(delay_ns[is_free])[middle]), 0)


def _stream_gaps_ns(view: RankView) -> Int64s:
    """The time a device needs from the end of a task to the start of the next on its stream.

    As recorded where that was launched long before; the typical time where something else held it.
    Collectives start late for many reasons, and wait inside the kernel anyway.
    """
    device = view.device
    reached_ns = device.reached_ns()
    gap_ns = device.start_ns - reached_ns
    launched_ns = np.append(view.calls.end_ns, 0)[device.call]
    is_queued = (launched_ns < reached_ns) & (gap_ns <= _LONGEST_GAP_NS)
    is_queued &= ~device.is_collective
    if not is_queued.any():
        return np.zeros_like(gap_ns)
    typical_ns = int(np.median(gap_ns[is_queued]))
    gap_ns = np.where(is_queued, gap_ns, typical_ns)
    return np.where(device.is_collective, 0, np.maximum(gap_ns, 0))


def _chains(view: RankView, relevant: Iterable[int]) -> dict[int, int]:
    """The chain of each thread: 0, or its own number if it overlaps the others."""
    calls = view.calls
    picked = np.fromiter(relevant, dtype=np.int64)
    threads, start_ns, end_ns = (
        plain(column[picked]) for column in (calls.thread, calls.start_ns, calls.end_ns)
    )
    overlaps: Counter[int] = Counter()
    reached_ns, by_thread = -1, -1
    for thread, began_ns, ended_ns in zip(threads, start_ns, end_ns, strict=True):
        if thread != by_thread and began_ns < reached_ns - 1_000:
            overlaps.update((thread, by_thread))
        if ended_ns > reached_ns:
            reached_ns, by_thread = ended_ns, thread
    counts = Counter(threads)
    main = max(counts, key=lambda thread: counts[thread], default=0)
    chain_of = {int(thread): 0 for thread in np.unique(calls.thread)}
    for thread in counts:
        if thread != main and overlaps[thread]:
            chain_of[thread] = 1 + sorted(counts).index(thread)
    return chain_of
