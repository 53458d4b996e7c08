"""Trace diff: what takes longer in one recording than in another, per step of one rank.

Both are cut at the same step marks and their tasks aligned by the operator that launched them, the
range around it, and the kernel without its template arguments. Times are device times unless
stated, and sums over a step: overlapping tasks count twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from perfmodel.base.units import NS_PER_MS
from perfmodel.extensions.recordings.call_paths import INSIDE, modules_of_calls, ranges_of_calls
from perfmodel.extensions.recordings.collective_calls import find_collective_calls
from perfmodel.extensions.recordings.host_chain import StepKind, build_host_chain, step_label
from perfmodel.extensions.recordings.rank_view import NO_OPERATOR, RankView, view_rank
from perfmodel.extensions.recordings.recorded_job import SCHEMA_VERSION
from perfmodel.extensions.recordings.steps import find_steps
from traces.job_trace import JobTrace

_TEMPLATE = re.compile(r"<.*>|\(.*\)", re.DOTALL)
_NUMBERS = re.compile(r"(?<=[_#.])\d+\b")


class DiffKind(Enum):
    """How differences are grouped; the value is the word used in reports."""

    OPERATOR = "operator"
    KERNEL = "kernel"
    MODULE = "module"
    WAIT = "wait"


Amounts = dict[tuple[DiffKind, str], tuple[float, float]]
"""By kind and name: how often it happens in a step, and its total time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """The contents of a step of one recording, averaged over ranks and steps."""

    amounts: Amounts
    step_ns: float
    count: int
    sequence: tuple[str, ...]


def diff_traces(before: JobTrace, after: JobTrace) -> dict[str, Any]:
    """Compare two recordings, step for step, as plain values for JSON; largest change first."""
    first, second = _steps_of(before), _steps_of(after)
    changes = []
    for kind, name in dict.fromkeys((*first.amounts, *second.amounts)):
        old, new = (of.amounts.get((kind, name), (0.0, 0.0)) for of in (first, second))
        changes.append((new[1] - old[1], name, kind, old, new))
    lines: dict[str, list[dict[str, Any]]] = {kind.value: [] for kind in DiffKind}
    for change_ns, name, kind, old, new in sorted(changes, key=lambda one: (-abs(one[0]), one[1])):
        lines[kind.value].append(
            {
                "name": name,
                "before_ms": old[1] / NS_PER_MS,
                "after_ms": new[1] / NS_PER_MS,
                "change_ms": change_ns / NS_PER_MS,
                "before_count": round(old[0], 3),
                "after_count": round(new[0], 3),
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace_diff",
        "before": before.name,
        "after": after.name,
        "step_ms": [of.step_ns / NS_PER_MS for of in (first, second)],
        "change_ms": (second.step_ns - first.step_ns) / NS_PER_MS,
        "steps": [first.count, second.count],
        "same_tasks_pct": round(100 * _same_ratio(first.sequence, second.sequence), 2),
        "by": lines,
    }


def _add(amounts: Amounts, key: tuple[DiffKind, str], count: float, duration_ns: float) -> None:
    old_count, old_ns = amounts.get(key, (0.0, 0.0))
    amounts[key] = (old_count + count, old_ns + duration_ns)


def _steps_of(traces: JobTrace) -> _Steps:
    found = [_steps_of_rank(view_rank(trace)) for trace in traces.ranks]
    sums: Amounts = {}
    for of_rank in found:
        for key, (count, duration_ns) in of_rank.amounts.items():
            _add(sums, key, count / len(found), duration_ns / len(found))
    step_ns = float(np.mean([of_rank.step_ns for of_rank in found]))
    return _Steps(sums, step_ns, found[0].count, found[0].sequence)


def _steps_of_rank(view: RankView) -> _Steps:
    ends = _step_moments_ns(view)
    count = len(ends) - 1
    amounts: Amounts = {}
    sequence = []
    for kind, name, at_ns, length_ns in (*_device_parts(view), *_wait_parts(view)):
        if ends[0] <= at_ns < ends[-1]:
            _add(amounts, (kind, name), 1 / count, length_ns / count)
            if kind is DiffKind.OPERATOR and at_ns < ends[1]:
                sequence.append(name)
    return _Steps(amounts, (ends[-1] - ends[0]) / count, count, tuple(sequence))


def _step_moments_ns(view: RankView) -> list[int]:
    """Ends of steps on the device; both ends of the window if nothing repeats."""
    device = view.device
    steps = find_steps([view], (), [find_collective_calls(view)])
    moments = [int(device.end_ns[task]) for [(_, task)] in steps.ends]
    whole = (len(moments) - 1) // steps.cycle * steps.cycle
    if whole > 0:
        return moments[-whole - 1 :]
    return [int(device.start_ns.min()) - 1, int(device.end_ns.max())]


Part = tuple[DiffKind, str, int, int]


def _device_parts(view: RankView) -> Iterable[Part]:
    spans, modules = ranges_of_calls(view), modules_of_calls(view)
    trace, device = view.trace, view.device
    for task, row in enumerate(view.operators_of_tasks().tolist()):
        call = int(device.call[task])
        kernel = short_kernel(view.task_name(task))
        operator = kernel if row == NO_OPERATOR else trace.name_of(row)
        start_ns, length_ns = int(device.start_ns[task]), device.length_ns(task)
        # Modules keep their names; running numbers in ranges count steps and are dropped.
        around = modules.of(call) or _NUMBERS.sub("*", spans.of(call)) if call >= 0 else ""
        span = around.split(INSIDE)[-1] or "(no range)"
        yield DiffKind.OPERATOR, operator, start_ns, length_ns
        yield DiffKind.KERNEL, kernel, start_ns, length_ns
        yield DiffKind.MODULE, span, start_ns, length_ns


def _wait_parts(view: RankView) -> Iterable[Part]:
    """Blocking calls of the host, and times in which the device is idle."""
    steps = build_host_chain(view).steps
    for place in steps.places_of(StepKind.WAIT, StepKind.ALLOCATION).tolist():
        label = step_label(view.trace, int(steps.label[place]))
        from_ns = int(steps.start_ns[place])
        yield DiffKind.WAIT, f"host in {label}", from_ns, int(steps.end_ns[place]) - from_ns
    order = np.argsort(view.device.start_ns, kind="stable")
    start_ns, end_ns = view.device.start_ns[order], view.device.end_ns[order]
    reached_ns = np.maximum.accumulate(end_ns)
    for place in np.flatnonzero(start_ns[1:] > reached_ns[:-1]).tolist():
        from_ns = int(reached_ns[place])
        yield DiffKind.WAIT, "device without work", from_ns, int(start_ns[place + 1]) - from_ns


def short_kernel(name: str) -> str:
    """A kernel's name without template arguments, parameters and running numbers."""
    bare = _TEMPLATE.sub("", name).replace("void ", "").strip() or name
    return _NUMBERS.sub("*", bare) if bare.startswith("triton") else bare


def _same_ratio(first: Sequence[str], second: Sequence[str]) -> float:
    """Share of the tasks of a step that both recordings have in the same order."""
    if not first or not second:
        return 0.0
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, first, second, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return 2.0 * same / (len(first) + len(second))
