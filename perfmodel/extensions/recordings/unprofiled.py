"""Unprofiled: what the profiler costs the host, and the job without it.

The profiler notes every operator, range and call while it happens, on the thread that made it, so
a host that issues small operators is slowed down and a GPU is not. A host that led its GPU when
the window opened kept pace before it was profiled: then the cost is as high as that takes. Hosts of
ranks that were not recorded save as much, and those arrive earlier, unless hosts keep their lead.

Source: calls of small operators under torch.profiler on a CPU, with and without shapes and stacks,
against the same calls without it; a callback for a call of the CUDA runtime is assumed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.units import format_duration
from perfmodel.engine.replay import find_period, replay
from perfmodel.engine.settle import Round, settle
from perfmodel.extensions.recordings.host_chain import HostChain, StepKind
from perfmodel.extensions.recordings.rank_view import RankView
from perfmodel.extensions.recordings.recorded_job import RecordedJob, Unprofiled, rank_parts
from perfmodel.extensions.recordings.steady import (
    QUEUE,
    SteadyJob,
    arriving,
    build_steady,
    longest_span,
    origins_by_row,
)
from perfmodel.extensions.recordings.stream_holds import HoldRule, hold_ratios, recorded_rules
from perfmodel.graph.program import Int64s
from traces.trace import Category

_OPERATOR_NS, _SHAPES_NS, _STACK_NS, _CALL_NS = 700, 1_400, 1_500, 1_500
_LEAST_LEFT = 0.25
"""At least this share of the time of a host task is its own."""
_FULL = QUEUE - 32
"""A stream with so many launches that have not begun is full, as far as stamps show."""
_USUAL_LAUNCH_NS = 4_000
_RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
_FEW_LAUNCHES = 9
_LEAST_LEAD, _SAME_LEAD = 0.05, 0.9
"""A shorter lead, by share of a step, says nothing; leads are as long within this share."""
_HARDLY, _REPLAY_DOUBT, _ABSENT_DOUBT = 0.02, 0.02, 0.05
_KNOWN = (
    "Without the profiler: what it costs per operator and call is taken from its hosts' work; "
    "nothing in the recording confirms it."
)
_KEPT = (
    "Without the profiler: what it costs per operator and call is taken from its hosts' work, and "
    "then they lead their GPUs as when the window opened, by {lead}."
)
_LED = (
    "Without the profiler: the hosts led their GPUs by {lead} when the window opened, and lose "
    "that while they are profiled, so their work takes as little as keeps the lead."
)
_ABSENT = "Hosts of ranks that were not recorded save as much, so those arrive earlier."
_AHEAD = "Without the profiler: the same, because the hosts run ahead of their GPUs."


def find_excess_ns(view: RankView, chain: HostChain) -> Int64s:
    """How much less each step of *chain* takes without the profiler and with room to launch."""
    steps, columns = chain.steps, view.trace.columns
    length_ns = steps.end_ns - steps.start_ns
    if not len(steps):
        return length_ns
    cost_ns = np.zeros(len(steps))
    operators = columns.is_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
    for categories, each_ns in (
        (operators, _operator_ns(view)),
        (columns.is_in(Category.RUNTIME_CALL), _CALL_NS),
    ):
        for number in np.unique(steps.chain).tolist():
            own = np.flatnonzero(steps.chain == number)
            threads = np.unique(steps.thread[own])
            rows = categories & np.isin(columns.thread, threads)
            starts_ns = np.sort(columns.start_ns[rows] + view.host_offset_ns)
            first, stop = (
                np.searchsorted(starts_ns, of[own]) for of in (steps.start_ns, steps.end_ns)
            )
            cost_ns[own] += each_ns * (stop - first)
    waits = steps.places_of(StepKind.WAIT, StepKind.FIRST, StepKind.ALLOCATION)
    cost_ns[waits] = 0
    excess_ns = np.minimum(cost_ns, (1 - _LEAST_LEFT) * length_ns)
    _add_queue_waits(view, chain, excess_ns)
    found: Int64s = np.minimum(np.rint(excess_ns).astype(np.int64), steps.duration_ns)
    return found


def _operator_ns(view: RankView) -> int:
    """What the profiler takes for an operator: more with its shapes, and with the stack."""
    stated, columns = view.trace.properties, view.trace.columns
    has_shapes = bool(stated.get("record_shapes")) or bool(
        (columns.detail[columns.is_in(Category.HOST_OPERATOR)] >= 0).any()
    )
    has_stack = bool(stated.get("with_stack")) or bool(columns.is_in(Category.MODULE).any())
    return _OPERATOR_NS + _SHAPES_NS * has_shapes + _STACK_NS * has_stack


def _add_queue_waits(
    view: RankView, chain: HostChain, excess_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    """Launches into a full stream take as long as others of their name."""
    device, steps, released = view.device, chain.steps, chain.releases.step
    is_full = np.zeros(len(steps), dtype=bool)
    for stream in np.unique(device.stream).tolist():
        own = np.flatnonzero(device.stream == stream)
        launched = own[released[own] >= 0]
        moments_ns = steps.start_ns[released[launched]]
        order = np.argsort(moments_ns, kind="stable")
        earlier = len(own) - len(launched) + np.arange(1, len(launched) + 1)
        begun = np.searchsorted(np.sort(device.start_ns[own]), moments_ns[order], side="right")
        is_full[released[launched[order]][earlier - begun >= _FULL]] = True
    length_ns = steps.duration_ns - excess_ns
    for label in np.unique(steps.label[is_full]).tolist():
        alike = (steps.label == label) & (steps.kind == steps.kind[is_full][0])
        free_ns = length_ns[alike & ~is_full]
        usual_ns = np.median(free_ns) if len(free_ns) else _USUAL_LAUNCH_NS
        late = np.flatnonzero(alike & is_full)
        excess_ns[late] += np.maximum(length_ns[late] - usual_ns, 0)


@dataclass(frozen=True, slots=True)
class _Settled:
    """The time of a step, and by how much the host of each rank leads when one ends."""

    step_ns: int
    lead_ns: Int64s


def with_estimate(job: RecordedJob) -> RecordedJob:
    """*job* with its time without the profiler, and with all that its host lost to it."""
    assert job.score is not None
    recorded_ns = job.score.iteration.recorded_ns
    steady, led_ns = build_steady(job), _leads_ns(job, slice(_FEW_LAUNCHES))
    own_ns, left_ns = job.durations().values_ns[:, 0], _leads_ns(job, slice(-_FEW_LAUNCHES, None))
    is_device, is_led = job.is_on_device(), led_ns > _LEAST_LEAD * recorded_ns
    late_ns = np.where(is_device, job.excess_ns, 0)
    is_same = np.minimum(left_ns, led_ns) >= _SAME_LEAD * np.maximum(left_ns, led_ns)
    # Hosts that lead by as much in the end do not make their ranks late.
    is_late = late_ns.any() and not (is_led & is_same).all()

    def lost_ns(host_ratio: float, cost: float = 1.0) -> Int64s:
        """What each host task lost, and how late absent ranks are because theirs did, too.

        If leads change in the window, ranks were not late before it.
        """
        left = np.maximum(own_ns - job.excess_ns * cost, 0) * host_ratio
        lost: Int64s = np.where(is_device, 0, own_ns - np.rint(left).astype(np.int64))
        share = min(lost.sum() / max(late_ns.sum(), 1), 1.0) if not is_led.all() else 1.0
        late: Int64s = np.rint(late_ns * share * is_late).astype(np.int64)
        return lost + late

    def ask(host_ratio: float, cost: float = 1.0) -> _Settled:
        return _replayed(job, steady, lost_ns(host_ratio, cost))

    usual, free = ask(1.0), ask(0.0)
    ratio, basis = 1.0, _KNOWN
    low_ns, high_ns = ask(1.0, cost=2.0).step_ns, recorded_ns
    if steady.repeats and is_led.any():
        lead = format_duration(int(np.median(led_ns)))
        if _leads(usual, led_ns):
            basis = _KEPT.format(lead=lead)
        elif _leads(free, led_ns):
            # A host that is faster leads by more, so the slowest that kept the lead is sought.
            place = bisect_left(_RATIOS, True, key=lambda one: _leads(ask(one), led_ns))
            kept = _RATIOS[min(place, len(_RATIOS) - 1)]
            # Any shorter time of the host explains the lead as well.
            ratio, basis = kept / 2, _LED.format(lead=lead)
            low_ns, high_ns = free.step_ns, ask(kept).step_ns
    step_ns = usual.step_ns if ratio == 1.0 else ask(ratio).step_ns
    if recorded_ns - free.step_ns < _HARDLY * recorded_ns:
        basis = _AHEAD
    doubt = _REPLAY_DOUBT
    if is_late:
        doubt, basis = _ABSENT_DOUBT, f"{basis} {_ABSENT}"
    found = Unprofiled(
        step_ns,
        round(min(low_ns, step_ns) * (1 - doubt)),
        round(max(high_ns, step_ns) * (1 + _REPLAY_DOUBT)),
        basis,
    )
    return replace(job, excess_ns=lost_ns(ratio), unprofiled=found)


def _leads(settled: _Settled, led_ns: Int64s) -> bool:
    """Whether every host that led its GPU when the window opened leads it by about as much."""
    is_ahead = led_ns > 0
    return bool((settled.lead_ns[is_ahead] >= _SAME_LEAD * led_ns[is_ahead]).all())


def _leads_ns(job: RecordedJob, few: slice) -> Int64s:
    """By rank, how long after its call work of *few* launches of the window began, at least."""
    leads = []
    for program, rows in rank_parts(job.graph):
        is_device, owners = program.is_on_device(), program.dep_owners()
        is_launch = is_device[owners] & ~is_device[program.dep_task] & (program.dep_task > 0)
        tasks, calls = owners[is_launch], program.dep_task[is_launch]
        called_ns = job.recorded_start_ns[rows][calls]
        first = np.argsort(called_ns, kind="stable")[few]
        lead_ns = job.recorded_start_ns[rows][tasks[first]] - called_ns[first]
        leads.append(max(int(lead_ns.min()), 0) if len(first) else 0)
    return np.array(leads, dtype=np.int64)


def settle_steady(job: RecordedJob, steady: SteadyJob, lost_ns: Int64s) -> Round:
    """The *steady* job of *job* with what its tasks do to each other, without what they lost."""
    graph = arriving(steady.graph, lost_ns)
    lengths_ns = job.durations().values_ns[:, 0] - np.where(job.is_on_device(), 0, lost_ns)
    origins = origins_by_row(graph)
    hold = HoldRule(hold_ratios(graph), job.can_be_held[origins])
    rules = recorded_rules(graph, hold, iterations=2 if steady.repeats else 1)
    return settle(replay, graph, lengths_ns[origins].astype(np.float64), rules)


def _replayed(job: RecordedJob, steady: SteadyJob, lost_ns: Int64s) -> _Settled:
    """The *steady* job of *job* without what its tasks *lost_ns*."""
    graph, settled = steady.graph, settle_steady(job, steady, lost_ns)
    if not steady.repeats:
        starts = job.graph.rank_rows()[:-1]
        span = longest_span(graph, starts, settled.start_ns, settled.end_ns)
        return _Settled(span.to_ns - span.from_ns, np.zeros(graph.rank_count, dtype=np.int64))
    found = find_period(replay, settled.job, settled.durations)
    leads = []
    for program, rows in rank_parts(graph):
        end_ns, is_device = found.replay.last.end_ns[rows, 0], program.is_on_device()
        leads.append(int(end_ns[is_device].max() - end_ns[~is_device].max()))
    return _Settled(round(int(found.period_ns[0]) / steady.steps), np.array(leads))
