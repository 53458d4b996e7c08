"""Interference samples: recorded kernels with and without an overlapping collective.

Two calls are the same work if kernel, launch grid, block and the input shapes of the launching
operator are equal. Where a trace has no shapes, kernels whose times alone differ are left out as
mixed work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.base.documents import load_yaml
from perfmodel.costs.interference import Phase
from perfmodel.extensions.recordings.collective_calls import find_collective_calls
from perfmodel.extensions.recordings.rank_clocks import match_collectives, transfer_ns
from perfmodel.extensions.recordings.rank_view import NO_OPERATOR, RankView, view_rank
from perfmodel.graph.program import Int64s
from traces.job_trace import JobTrace

SHORTEST_NS = 5_000
"""Shorter kernels are launch and timer: some traces count whole microseconds."""
FEWEST = 3
LEAST_COVER_RATIO = 0.25
"""Share of a kernel that a collective must cover for its loss to be measurable."""
PURE_RATIO = 0.9
"""Share of the cover that one phase must have for the loss to be attributed to it."""
MOST_SPREAD_RATIO = 0.1
"""Interquartile range of the times alone, over their median, beyond which work is mixed."""
LOSS_LIMITS = (-0.25, 0.75)
"""No kernel gains that much from an overlap or becomes four times as long: mixed work again."""
MOST_OVERLAP_RATIO = 0.02
"""Share of a kernel that kernels and copies of other streams may overlap."""


@dataclass(frozen=True, slots=True)
class KernelLoss:
    """What one *kernel* of one shape loses in one phase, as a share of its covered time.

    *covered_ns* is how long it was covered in all calls together.
    """

    device: str
    family: str
    phase: Phase
    kernel: str
    loss_ratio: float
    covered_ns: float
    calls: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One recorded kernel, and how long collectives that wait or move bytes cover it."""

    duration_ns: int
    waiting_ns: int
    moving_ns: int

    @property
    def covered_ns(self) -> int:
        return self.waiting_ns + self.moving_ns

    def phase(self) -> Phase | None:
        """The phase that a loss would be due to; None where it is ambiguous."""
        if not self.covered_ns:
            return Phase.NONE
        if self.covered_ns < LEAST_COVER_RATIO * self.duration_ns:
            return None
        if self.moving_ns >= PURE_RATIO * self.covered_ns:
            return Phase.MOVING
        return Phase.WAITING if self.waiting_ns >= PURE_RATIO * self.covered_ns else None


_Work = tuple[str, str, str]
"""What a kernel did, as far as the trace shows: its name, launch grid and block, and shapes."""


def collect_losses(jobs: Iterable[tuple[JobTrace, str]]) -> list[KernelLoss]:
    """The losses of every kernel of *jobs*, each with the name of its device."""
    calls: dict[tuple[str, _Work], list[_Call]] = defaultdict(list)
    for job, device in jobs:
        views = [view_rank(trace) for trace in job.ranks]
        for view, spans in zip(views, _phase_spans(views), strict=True):
            for work, call in _calls(view, spans):
                calls[device, work].append(call)
    return [
        loss
        for (device, (kernel, _, _)), of_work in calls.items()
        for loss in _losses(device, kernel, of_work)
    ]


def family_of_kernel(name: str) -> str:
    """The family of cost models that the kernel *name* is of."""
    word = name.lower()
    for family, parts in _load_words().items():
        if any(part in word for part in parts):
            return family
    return "memory"


@cache
def _load_words() -> dict[str, list[str]]:
    return load_yaml(Path(__file__).with_name("kernel_words.yaml"))


def _losses(device: str, kernel: str, calls: Sequence[_Call]) -> Iterator[KernelLoss]:
    by_phase: dict[Phase, list[_Call]] = defaultdict(list)
    for call in calls:
        phase = call.phase()
        if phase is not None:
            by_phase[phase].append(call)
    alone_ns = np.array([call.duration_ns for call in by_phase.pop(Phase.NONE, ())])
    if len(alone_ns) < FEWEST:
        return
    low_ns, middle_ns, high_ns = np.quantile(alone_ns, [0.25, 0.5, 0.75])
    if high_ns - low_ns > MOST_SPREAD_RATIO * middle_ns:
        return
    for phase, beside in by_phase.items():
        if len(beside) < FEWEST:
            continue
        # The median call, so that one with another disturbance does not decide.
        loss = np.median([(call.duration_ns - middle_ns) / call.covered_ns for call in beside])
        if LOSS_LIMITS[0] <= loss <= LOSS_LIMITS[1]:
            covered_ns = float(sum(call.covered_ns for call in beside))
            family = family_of_kernel(kernel)
            yield KernelLoss(device, family, phase, kernel, float(loss), covered_ns, len(beside))


def _phase_spans(views: Sequence[RankView]) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    """When collectives of every rank wait or move bytes, when they move, and unknown times.

    A kernel moves bytes once the last member has arrived. Where only one rank was recorded, that
    time is unknown and all of the kernel counts as moving.
    """
    waiting: list[list[tuple[int, int]]] = [[] for _ in views]
    moving: list[list[tuple[int, int]]] = [[] for _ in views]
    known: list[set[int]] = [set() for _ in views]
    for group in match_collectives(views, [find_collective_calls(view) for view in views]):
        for number in range(group.count):
            lengths_ns = transfer_ns(views, group, number)
            for member, rank in enumerate(group.members):
                task = group.calls[member][number].task
                start_ns, end_ns = _span(views[rank], task)
                began_ns = max(start_ns, end_ns - lengths_ns[member])
                waiting[rank].append((start_ns, began_ns))
                moving[rank].append((began_ns, end_ns))
                known[rank].add(task)
    for rank, view in enumerate(views):
        tasks = np.flatnonzero(view.device.is_collective).tolist()
        rest = [_span(view, task) for task in tasks if task not in known[rank]]
        unknown: list[tuple[int, int]] = []
        if len(views) == 1:
            moving[rank] = rest
        else:
            unknown = rest
        yield _joined(waiting[rank] + moving[rank]), _joined(moving[rank]), _joined(unknown)


def _span(view: RankView, task: int) -> tuple[int, int]:
    return int(view.device.start_ns[task]), int(view.device.end_ns[task])


def _joined(spans: Iterable[tuple[int, int]]) -> Int64s:
    """*spans* by start, with touching ones merged."""
    joined: list[list[int]] = []
    for start_ns, end_ns in sorted(spans):
        if joined and start_ns <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end_ns)
        elif end_ns > start_ns:
            joined.append([start_ns, end_ns])
    return np.array(joined, dtype=np.int64).reshape(-1, 2)


def _covered_ns(spans: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
    """How much of each interval *spans*, which do not overlap, cover."""
    if not len(spans):
        return np.zeros(len(starts_ns), dtype=np.int64)
    reached = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    moments = spans.ravel()
    levels = np.repeat(reached, 2)[1:-1]
    reached_ns = [np.rint(np.interp(at_ns, moments, levels)) for at_ns in (starts_ns, ends_ns)]
    covered: Int64s = np.diff(reached_ns, axis=0)[0].astype(np.int64)
    return covered


def _calls(view: RankView, spans: tuple[Int64s, Int64s, Int64s]) -> Iterator[tuple[_Work, _Call]]:
    """Kernels that nothing else disturbs; *spans* are those of `_phase_spans`."""
    device = view.device
    starts_ns, ends_ns = device.start_ns, device.end_ns
    covered_ns, moving_ns, unknown_ns = (_covered_ns(one, starts_ns, ends_ns) for one in spans)
    is_usable = ~device.is_collective & ~device.is_copy & (unknown_ns == 0)
    is_usable &= ends_ns - starts_ns >= SHORTEST_NS
    is_usable &= _overlap_ns(view) <= MOST_OVERLAP_RATIO * (ends_ns - starts_ns)
    operator_of_call = view.operators
    for task in np.flatnonzero(is_usable).tolist():
        yield (
            _work(view, task, operator_of_call),
            _Call(
                duration_ns=int(ends_ns[task] - starts_ns[task]),
                waiting_ns=int(covered_ns[task] - moving_ns[task]),
                moving_ns=int(moving_ns[task]),
            ),
        )


def _work(view: RankView, task: int, operator_of_call: Int64s) -> _Work:
    row, call = int(view.device.row[task]), int(view.device.call[task])
    launch = view.trace.detail_of(row)
    operator = int(operator_of_call[call]) if call >= 0 else NO_OPERATOR
    shapes = view.trace.detail_of(operator).get("Input Dims") if operator >= 0 else None
    return view.trace.name_of(row), f"{launch.get('grid')} {launch.get('block')}", str(shapes)


def _overlap_ns(view: RankView) -> Int64s:
    """How long kernels and copies of other streams overlap each device task."""
    device = view.device
    overlap_ns = np.zeros(len(device), dtype=np.int64)
    for stream in np.unique(device.stream):
        on_stream = device.stream == stream
        others = ~on_stream & ~device.is_collective
        spans = zip(device.start_ns[others].tolist(), device.end_ns[others].tolist(), strict=True)
        overlap_ns[on_stream] = _covered_ns(
            _joined(spans), device.start_ns[on_stream], device.end_ns[on_stream]
        )
    return overlap_ns
