"""Steps: where the training steps of a recording end on the device, by evidence.

Marks of the profiler (`ProfilerStep#7`) say which work belongs to a step, but are host time, and
the host runs ahead. A step ends on the device with the last collective launched in it, on all
ranks, or without collectives with its last task. Without marks, calls of the optimizer divide the
recording, and without those a sequence of collectives or kernels that repeats.

Steps may differ in turn (an optimizer that runs in every second one): then a cycle of them
repeats. Every rank shows a period by its marks, its ends and its repeated kernels: what does
not agree is a fault.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from perfmodel.base.units import format_duration
from perfmodel.extensions.recordings.collective_calls import CollectiveCall
from perfmodel.extensions.recordings.rank_clocks import MatchedGroup
from perfmodel.extensions.recordings.rank_view import RankView
from perfmodel.extensions.recordings.recorded_job import RankSteps, cycle_period_ns
from perfmodel.extensions.recordings.step_marks import (
    MOST_MARKS_APART,
    Marks,
    StepRule,
    find_marks,
    mark_of_tasks,
    may_be_steps,
)
from perfmodel.graph.program import Int64s

_MIN_REPEATED_RATIO = 0.7
_FEWEST_NAMES = 4
"""Kernels of fewer names repeat by chance, in a loop over layers."""
_ALIKE = 0.005
"""Neighbouring steps are similar if at most this share of their kernels differs."""
_MOST_IN_CYCLE = 0.05
"""At most this share of the kernels of a cycle differs from those of the next one."""
_MOST_SHIFTED = 0.1
"""The same by time of the device, where kernels of other streams end before or after by chance."""
_FEWEST_WITH_OTHER = 8
"""Of so many steps one may be unlike the others."""
_MOST_COLD = 1.25
"""A step that takes longer than so many usual ones allocates, compiles, validates or pauses."""
_CLEARLY = 0.25
"""Steps of a cycle differ by at most this share of what neighbours differ by."""
_MOST_APART = {"device": 0.05, "marks": MOST_MARKS_APART, "pattern": 0.05}
"""How far a rank may be from the step that is believed."""


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """The steps of all ranks: device tasks, as rank and task, whose last end ends each step.

    *count* is how many steps were found, *cycle* how many of them repeat together.
    """

    rule: StepRule
    count: int
    cycle: int
    ends: tuple[tuple[tuple[int, int], ...], ...] = ()
    evidence: tuple[RankSteps, ...] = ()
    faults: tuple[str, ...] = ()


def find_steps(
    views: Sequence[RankView],
    groups: Sequence[MatchedGroup],
    calls: Sequence[Sequence[CollectiveCall]],
) -> FoundSteps:
    """The steps of the ranks of *views*, their matched *groups* and collective *calls*."""
    marks, faults = find_marks(views)
    line = _choose_line(views, groups, calls)
    places: list[int] = []
    rule, cycle = StepRule.WHOLE, 1
    if marks is not None and len(marks[0].number) > 1:
        rule, view = marks[0].rule, views[line.rank]
        places = _last_places(line, view, marks[line.rank])
        cycle = _find_cycle(view, marks[line.rank])
        if len(places) < len(marks[0].number):
            # Some step has no collective of the chosen group.
            line = _kernel_line(views[0])
            places = _last_places(line, views[0], marks[0])
    else:
        places = _repeated_places(line, views[line.rank])
        if not places and line.fewest < _FEWEST_NAMES:
            line = _kernel_line(views[0])
            places = _repeated_places(line, views[0])
        if marks is not None:
            # The window may be cut in the steps around the marked one; shorter parts are layers.
            ends_ns = views[line.rank].device.end_ns[line.tasks[places]]
            places = places if may_be_steps(marks[0], np.diff(ends_ns)) else []
        rule = StepRule.REPEATED if len(places) > 1 else StepRule.WHOLE
    count = len(places) if rule is StepRule.REPEATED else 1
    if marks is not None and rule is not StepRule.REPEATED:
        rule, count = marks[0].rule, len(marks[0].number)
    ends = tuple(tuple(line.tasks_at(place)) for place in places) if len(places) > 1 else ()
    cycle = min(cycle, max(len(ends) - 1, 1))
    found = FoundSteps(rule, max(count, 1), cycle, _choose(views, ends, cycle))
    return _checked(replace(found, faults=faults), views, marks)


def _choose(
    views: Sequence[RankView], ends: tuple[tuple[tuple[int, int], ...], ...], cycle: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Of *ends* the longest run of whole cycles that were launched in the window and are warm."""
    device = [view.device for view in views]
    ends = tuple(end for end in ends if all(device[rank].call[task] >= 0 for rank, task in end))
    if len(ends) < 3:
        return ends
    moments_ns = [max(int(device[rank].end_ns[task]) for rank, task in end) for end in ends]
    lengths_ns = np.diff(moments_ns)
    usual_ns = np.sort(lengths_ns)[(len(lengths_ns) - 1) // 2]
    runs, first = [], 0
    for place, length_ns in enumerate([*lengths_ns.tolist(), np.inf]):
        if length_ns > _MOST_COLD * usual_ns:
            runs.append((first, place))
            first = place + 1
    # Of several runs the last one: what comes later is warmer.
    first, stop = max(runs, key=lambda run: ((run[1] - run[0]) // cycle, run[1]))
    whole = (stop - first) // cycle * cycle
    return ends[stop - whole if whole else first : stop + 1]


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Device work in order, of which some ends a step: collectives of a group, or kernels.

    *words* are what repeats, *tasks* the device tasks of *rank*. `members` holds, for every
    place, the tasks of all ranks. A repeated part has at least *fewest* different words.
    """

    rank: int
    words: Sequence[Hashable]
    tasks: Int64s
    members: tuple[tuple[tuple[int, int], ...], ...] = ()
    fewest: int = 1

    def tasks_at(self, place: int) -> tuple[tuple[int, int], ...]:
        """Rank and task of all that is at *place*."""
        return self.members[place] if self.members else ((self.rank, int(self.tasks[place])),)


def _choose_line(
    views: Sequence[RankView],
    groups: Sequence[MatchedGroup],
    calls: Sequence[Sequence[CollectiveCall]],
) -> _Line:
    """The collectives of the largest group; of a lone rank all of them; or else its kernels."""
    main = max(groups, key=lambda group: (len(group.members), group.count), default=None)
    if main is not None:
        members = tuple(
            tuple((rank, call.task) for rank, call in zip(main.members, of, strict=True))
            for of in zip(*main.calls, strict=True)
        )
        own = main.calls[0]
    elif calls[0]:
        members, own = (), tuple(calls[0])
    else:
        return _kernel_line(views[0])
    # Collectives launched before the window have no size, so sizes do not count.
    words = [(call.group, call.kind or call.signature[0]) for call in own]
    tasks = np.array([call.task for call in own], dtype=np.int64)
    return _Line(0 if main is None else main.members[0], words, tasks, members)


def _kernel_line(view: RankView) -> _Line:
    """The kernels of the stream with most."""
    streams, counts = np.unique(view.device.stream, return_counts=True)
    tasks = np.flatnonzero(view.device.stream == streams[np.argmax(counts)])
    names = view.trace.columns.name[view.device.row[tasks]].tolist()
    return _Line(0, names, tasks, fewest=_FEWEST_NAMES)


def _last_places(line: _Line, view: RankView, marks: Marks) -> list[int]:
    """The last place of *line* that each mark launched."""
    of_line = mark_of_tasks(view, marks)[line.tasks]
    found = [np.flatnonzero(of_line == mark) for mark in range(len(marks.number))]
    return [int(places[-1]) for places in found if len(places)]


def _find_cycle(view: RankView, marks: Marks) -> int:
    """How many steps repeat together: the fewest after which all steps launch the same."""
    of_task, names = mark_of_tasks(view, marks), view.trace.columns.name[view.device.row]
    count = len(marks.number)
    kinds = len(view.trace.names)
    steps = [np.bincount(names[of_task == mark], minlength=kinds) for mark in range(count)]

    def difference(distance: int) -> float:
        pairs = [(steps[at], steps[at + distance]) for at in range(count - distance)]
        return max(
            float(np.abs(one - other).sum() / max((one + other).sum(), 1)) for one, other in pairs
        )

    differences = {cycle: difference(cycle) for cycle in range(1, count)}
    if differences[1] <= _ALIKE:
        return 1
    most = min(_MOST_IN_CYCLE, _CLEARLY * differences[1])
    return next((cycle for cycle, apart in differences.items() if apart <= most), 1)


def repeats_from_end(words: Sequence[Hashable]) -> list[int]:
    """By distance, how many words, counted from the end, are like the one that much earlier.

    The Z function of the reversed sequence: linear, however it repeats.
    """
    line, count = list(reversed(words)), len(words)
    alike = [0] * count
    left = right = 0
    for at in range(1, count):
        same = min(right - at, alike[at - left]) if at < right else 0
        while at + same < count and line[same] == line[at + same]:
            same += 1
        alike[at] = same
        if at + same > right:
            left, right = at, at + same
    return alike


def _repeated_places(line: _Line, view: RankView) -> list[int]:
    """Places that end a repeated part of *line*: the last one, and its counterparts before it.

    The sequence must repeat over most of its length; at the beginning of the window some may be
    missing. Of several fitting lengths the shortest counts after which all kernels of *view*
    repeat: collectives of equal layers are equal, but layers are not steps.
    """
    words, length, repeated = line.words, len(line.words), repeats_from_end(line.words)
    different: set[Hashable] = set()
    for period in range(1, length // 2 + 1):
        different.add(words[length - period])
        is_repeated = repeated[period] >= max(period, _MIN_REPEATED_RATIO * (length - period))
        if is_repeated and len(different) >= line.fewest:
            first = length - period - repeated[period]
            places = list(range(length - 1, first - 1, -period))[::-1]
            if line.fewest > 1 or _do_kernels_repeat(view, line.tasks[places]):
                return places
    return []


def _do_kernels_repeat(view: RankView, ends: Int64s) -> bool:
    """Whether about the same kernels run between any two neighbours of the tasks *ends*.

    Between two ends alone it must be those that ran before the first of them.
    """
    moments_ns, kinds = np.sort(view.device.end_ns[ends]), len(view.trace.names)
    order = np.argsort(view.device.end_ns, kind="stable")
    names = view.trace.columns.name[view.device.row[order]]
    cuts = np.searchsorted(view.device.end_ns[order], moments_ns, side="right").tolist()
    parts = [names[first:stop] for first, stop in pairwise(cuts)]
    if len(parts) == 1:
        before = names[max(2 * cuts[0] - cuts[1], 0) : cuts[0]]
        parts = [before, parts[0][len(parts[0]) - len(before) :]]
    counts = np.array([np.bincount(part, minlength=kinds) for part in parts])
    usual = np.median(counts, axis=0)
    apart = np.abs(counts - usual).sum(axis=1) / np.maximum((counts + usual).sum(axis=1), 1)
    # One of several steps may do more, such as a validation; of layers many differ.
    return int((apart > _MOST_SHIFTED).sum()) <= int(len(parts) >= _FEWEST_WITH_OTHER)


def _checked(
    found: FoundSteps, views: Sequence[RankView], marks: Sequence[Marks] | None
) -> FoundSteps:
    """*found* with the periods that every rank shows, and what does not agree."""
    evidence = []
    for rank, view in enumerate(views):
        ends = np.array([task for of in found.ends for owner, task in of if owner == rank], int)
        line = _kernel_line(view)
        places = np.array(_repeated_places(line, view), int)
        pattern_ns = np.diff(view.device.end_ns[line.tasks[places]])
        periods_ns = np.diff(view.device.end_ns[ends])
        evidence.append(
            RankSteps(
                rank=view.trace.rank,
                marked=len(marks[rank].number) if marks is not None else 0,
                marked_ns=marks[rank].spacing_ns(found.cycle) if marks is not None else 0,
                device_ns=cycle_period_ns(periods_ns, found.cycle, chosen=True),
                pattern_ns=cycle_period_ns(pattern_ns, 1),
            )
        )
    told = [rank.device_ns for rank in evidence if rank.device_ns]
    if not told:
        return replace(found, evidence=tuple(evidence))
    step_ns = float(np.median(told))
    believed = f"accepted is {format_duration(round(step_ns))} per step, by {found.rule.value}"
    faults = []
    for place, own in enumerate(evidence):
        errors = _errors(own, step_ns)
        # Marks of a host that runs ahead are off by a part of a step; of a wrong step, by more.
        counted = [
            error for word, error in errors.items() if word != "marks" or error > _MOST_APART[word]
        ]
        evidence[place] = replace(own, error_ratio=max(counted))
        said = [
            f"its {word} {format_duration(length_ns)}"
            for word, length_ns in (
                ("device", own.device_ns),
                ("marks", own.marked_ns),
                ("pattern", own.pattern_ns),
            )
            if errors[word] > _MOST_APART[word]
        ]
        if said:
            faults.append(f"rank {own.rank} shows a different step: {', '.join(said)}; {believed}")
    return replace(found, evidence=tuple(evidence), faults=(*found.faults, *faults))


def _errors(rank: RankSteps, step_ns: float) -> dict[str, float]:
    """How far from *step_ns* is what *rank* says; 0 where it says nothing."""
    # Kernels may repeat after several steps, never after a part of one.
    steps = max(round(rank.pattern_ns / step_ns), 1)
    said_ns = {
        "device": rank.device_ns,
        "marks": rank.marked_ns,
        "pattern": rank.pattern_ns / steps,
    }
    return {word: abs(own / step_ns - 1) if own else 0.0 for word, own in said_ns.items()}
