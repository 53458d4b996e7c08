"""Steps: one table of the training steps of a recording, and the choice from it.

A row is a step of a rank: how long its host launched it, when its device had done it, its kernels,
whether all of it was launched inside the window, and whether it was warm. Hosts run ahead, so marks
of the profiler, or calls of the optimizer, only say which work belongs to a step; without them a
sequence of collectives or kernels that repeats divides the recording. A step ends on the device
with the last collective launched in it, on all ranks, or without collectives with its last task.

Steps may differ in turn (an optimizer that runs in every second one): then a cycle of them
repeats. The latest longest run of whole cycles that were launched inside the window and are warm is
chosen. What ranks, marks and kernels say against that is a fault. So is a window in which nothing
shows what a step takes: the span of a part of a step, or of one and a half, is no step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import numpy as np

from perfmodel.base.units import format_duration
from perfmodel.extensions.recordings.collective_calls import CollectiveKernel
from perfmodel.extensions.recordings.rank_clocks import MatchedGroup
from perfmodel.extensions.recordings.rank_view import RankView
from perfmodel.extensions.recordings.recorded_job import StepRow, cycle_period_ns
from perfmodel.graph.program import Int64s
from traces.trace import Category

_MARKS = (r"ProfilerStep#(\d+)$", r"(?i:step|iteration|iter)[ _#:]*(\d+)$")
"""How steps are marked: by the profiler, or by ranges of the user."""
_OPTIMIZER = "Optimizer.step#"
_ALIKE = 0.05
"""Parts of a recording are alike if at most this share of them differs."""
_HARDLY, _CLEARLY = 0.1 * _ALIKE, 0.25
"""Steps repeat one by one if at most so much of their kernels differs; else as a cycle, whose steps
differ by at most this share of what neighbours differ by."""
_MOST_COLD = 1.25
"""A step that takes longer than so many usual ones allocates, compiles, validates or pauses."""
_MOST_AHEAD = 1 / 3
"""How far marks may be from the steps of the device: the host runs ahead."""
_LONE_APART = 0.02
"""A lone period is believed if both steps of its hosts take as long within this share."""
_FEWEST_NAMES = 4
"""Kernels of fewer names repeat by chance, in a loop over layers."""
_FEWEST_WITH_OTHER = 8
"""Of so many steps one may be unlike the others."""
_HELP = "Record at least four steps, with a profiler that marks them (profiler.step())."


class StepRule(Enum):
    """What the steps of a recording were found by."""

    MARKS = "profiler marks"
    OPTIMIZER = "optimizer calls"
    REPEATED = "repeated sequence"
    WHOLE = "the whole window is one step"


End = tuple[tuple[int, int], ...]
"""Device tasks, as rank and task, whose last end ends a step."""


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """The steps of all ranks: the table, and the *ends* of those that were chosen from it.

    *count* is how many steps were found, *cycle* how many of them repeat together.
    """

    rule: StepRule
    count: int
    cycle: int
    ends: tuple[End, ...] = ()
    table: tuple[StepRow, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """Moments of the host of a rank between which steps launch; *number* names each."""

    rule: StepRule
    number: tuple[int, ...]
    bounds_ns: Int64s

    @property
    def whole_ns(self) -> Int64s:
        """How long the host took for each whole step."""
        # The first optimizer call ends a step whose beginning is unknown.
        return np.diff(self.bounds_ns)[self.rule is StepRule.OPTIMIZER :]

    def may_be(self, periods_ns: Int64s) -> bool:
        """Whether *periods_ns* are not much shorter than the one step that is marked."""
        least_ns = (1 - _MOST_AHEAD) * self.whole_ns.max(initial=0)
        return len(periods_ns) > 0 and float(np.median(periods_ns)) >= least_ns

    def only(self, numbers: set[int]) -> _Marks:
        """The same with only *numbers*, which follow each other."""
        kept = [place for place, number in enumerate(self.number) if number in numbers]
        first, stop = kept[0], kept[-1] + 1
        bounds_ns = self.bounds_ns[first : stop + 1]
        return replace(self, number=self.number[first:stop], bounds_ns=bounds_ns)


def find_steps(
    views: Sequence[RankView],
    groups: Sequence[MatchedGroup],
    calls: Sequence[Sequence[CollectiveKernel]],
) -> FoundSteps:
    """The steps of the ranks of *views*, their matched *groups* and collective *calls*."""
    marks, faults = _find_marks(views)
    line = _choose_line(views, groups, calls)
    view, rule, cycle = views[line.rank], StepRule.WHOLE, 1
    if marks is not None and len(marks[0].number) > 1:
        rule, count = marks[0].rule, len(marks[0].number)
        places = _last_places(line, view, marks[line.rank])
        cycle = _find_cycle(view, marks[line.rank])
        if len(places) < count:
            # Some step has no collective of the chosen group.
            line = _kernel_line(views[0])
            places = _last_places(line, views[0], marks[0])
    else:
        places = _repeated_places(line, view)
        if not places and line.fewest < _FEWEST_NAMES:
            line = _kernel_line(views[0])
            places = _repeated_places(line, views[0])
        # The window may be cut in the steps around a marked one; shorter parts are layers.
        ends_ns = views[line.rank].device.end_ns[line.tasks[places]]
        if marks is not None and not marks[0].may_be(np.diff(ends_ns)):
            rule, places = marks[0].rule, []
        count = max(len(places), 1)
        if places:
            rule, marks = StepRule.REPEATED, None
    ends = tuple(line.tasks_at(place) for place in places) if len(places) > 1 else ()
    cycle = min(cycle, max(len(ends) - 1, 1))
    table, chosen = _choose(views, ends, cycle, marks)
    found = FoundSteps(rule, count, cycle, chosen, table)
    against = _find_contradictions(found, views, marks)
    return replace(found, faults=(*faults, *_find_doubt(found, views, marks), *against))


def _find_marks(views: Sequence[RankView]) -> tuple[list[_Marks] | None, tuple[str, ...]]:
    """The marks of all ranks, or else the ends of their optimizers' calls.

    In a window that is cut in the steps around a single mark, the optimizer shows more steps.
    """
    marks, faults = _common([_marked(view) for view in views])
    if marks is None or len(marks[0].number) == 1:
        ends, odd = _common([_optimized(view) for view in views])
        if marks is None or (ends and marks[0].may_be(ends[0].whole_ns)):
            return ends, (*faults, *odd)
    return marks, faults


def _marked(view: RankView) -> _Marks | None:
    columns = view.trace.columns
    # Old profilers write marks as operators.
    host = columns.rows_in(Category.HOST_ANNOTATION, Category.HOST_OPERATOR)
    for word in _MARKS:
        numbers = [re.match(word, name) for name in view.trace.names]
        is_mark = np.array([found is not None for found in numbers], dtype=bool)
        rows = host[is_mark[columns.name[host]]].tolist()
        marked: dict[int, int] = {}
        for row in rows:
            found = numbers[int(columns.name[row])]
            assert found is not None
            marked.setdefault(int(found[1]), row)
        if marked:
            own = list(marked.values())
            bounds_ns = np.append(columns.start_ns[own], columns.end_ns[own[-1]])
            bounds_ns += view.host_offset_ns
            return _executed(view, _Marks(StepRule.MARKS, tuple(marked), bounds_ns))
    return None


def _optimized(view: RankView) -> _Marks | None:
    columns = view.trace.columns
    host = columns.rows_in(Category.HOST_ANNOTATION, Category.HOST_OPERATOR)
    called = Counter(columns.name[host].tolist())
    of_optimizer = [name for name in called if view.trace.names[name].startswith(_OPTIMIZER)]
    if not of_optimizer:
        return None
    most = max(of_optimizer, key=lambda name: called[name])
    ends_ns = columns.end_ns[host[columns.name[host] == most]]
    bounds_ns = np.append(columns.start_ns[0] - 1, ends_ns) + view.host_offset_ns
    return _executed(view, _Marks(StepRule.OPTIMIZER, tuple(range(-len(ends_ns), 0)), bounds_ns))


def _executed(view: RankView, marks: _Marks) -> _Marks:
    """*marks* without the last ones, if the window ends before the device has done their work."""
    has_task = view.tasks_by_call().has_any()
    names = view.trace.columns.name[view.calls.row]
    launches = np.flatnonzero(np.isin(names, names[has_task]))
    place = np.searchsorted(marks.bounds_ns, view.calls.start_ns[launches], side="right") - 1
    of_mark = [has_task[launches[place == mark]] for mark in range(len(marks.number))]
    shares = [float(own.mean()) if len(own) else 1.0 for own in of_mark]
    count = len(shares)
    while count > 1 and shares[count - 1] < max(shares) - _ALIKE:
        count -= 1
    return marks.only(set(marks.number[:count]))


def _common(marks: Sequence[_Marks | None]) -> tuple[list[_Marks] | None, tuple[str, ...]]:
    """The marks that all ranks have, and a fault if some have others; None without any."""
    known = [one for one in marks if one is not None]
    if len(known) < len(marks) or len({one.rule for one in known}) > 1:
        return None, ()
    numbers = set(known[0].number).intersection(*(one.number for one in known))
    if all(len(one.number) == len(numbers) for one in known):
        return known, ()
    if not numbers:
        return None, ("ranks have no step in common by their marks",)
    counts = sorted({len(one.number) for one in known})
    fault = f"ranks have {counts[0]} to {counts[-1]} steps: the {len(numbers)} common ones are used"
    return [one.only(numbers) for one in known], (fault,)


def _mark_of_tasks(view: RankView, marks: _Marks) -> Int64s:
    """The place of the mark that each device task was launched in, or -1."""
    place = np.searchsorted(marks.bounds_ns, view.launched_ns(), side="right") - 1
    return np.where(place < len(marks.number), place, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Device work in order, of which some ends a step: collectives of a group, or kernels.

    *words* are what repeats, *tasks* the device tasks of *rank*. `members` holds, for every
    place, the tasks of all ranks. A repeated part has at least *fewest* different words.
    """

    rank: int
    words: Sequence[Hashable]
    tasks: Int64s
    members: tuple[End, ...] = ()
    fewest: int = 1

    def tasks_at(self, place: int) -> End:
        """Rank and task of all that is at *place*."""
        return self.members[place] if self.members else ((self.rank, int(self.tasks[place])),)


def _choose_line(
    views: Sequence[RankView],
    groups: Sequence[MatchedGroup],
    calls: Sequence[Sequence[CollectiveKernel]],
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


def _last_places(line: _Line, view: RankView, marks: _Marks) -> list[int]:
    """The last place of *line* that each mark launched."""
    of_line = _mark_of_tasks(view, marks)[line.tasks]
    found = [np.flatnonzero(of_line == mark) for mark in range(len(marks.number))]
    return [int(places[-1]) for places in found if len(places)]


def _find_cycle(view: RankView, marks: _Marks) -> int:
    """How many steps repeat together: the fewest after which all steps launch the same."""
    of_task, names = _mark_of_tasks(view, marks), view.trace.columns.name[view.device.row]
    count, kinds = len(marks.number), len(view.trace.names)
    steps = [np.bincount(names[of_task == mark], minlength=kinds) for mark in range(count)]
    apart = {
        cycle: max(_difference(*pair) for pair in zip(steps, steps[cycle:], strict=False))
        for cycle in range(1, count)
    }
    least = max(_HARDLY, _CLEARLY * apart[1])
    return next((cycle for cycle, found in apart.items() if found <= least), 1)


def _difference(one: Int64s, other: Int64s) -> float:
    """The share of two counts that differs."""
    return float(np.abs(one - other).sum() / max((one + other).sum(), 1))


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
        is_repeated = repeated[period] >= max(period, (length - period) * (1 - _MOST_AHEAD))
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
    # Kernels of other streams end before or after by chance, which counts on both sides.
    unlike = sum(_difference(of, usual) > 2 * _ALIKE for of in counts)
    # One of several steps may do more, such as a validation; of layers many differ.
    return unlike <= int(len(parts) >= _FEWEST_WITH_OTHER)


def _choose(
    views: Sequence[RankView],
    ends: tuple[End, ...],
    cycle: int,
    marks: Sequence[_Marks] | None,
) -> tuple[tuple[StepRow, ...], tuple[End, ...]]:
    """The table of the steps that end with *ends*, and which of *ends* are chosen.

    The latest longest run of whole cycles, with the end before it: what comes later is warmer.
    """
    moments_ns = [max(int(views[rank].device.end_ns[task]) for rank, task in end) for end in ends]
    is_inside = [all(views[rank].device.call[task] >= 0 for rank, task in end) for end in ends]
    lengths_ns = np.diff(moments_ns)
    known_ns = np.sort(lengths_ns[is_inside[:-1]]) if len(ends) > 1 else lengths_ns
    usual_ns = known_ns[(len(known_ns) - 1) // 2] if len(known_ns) > 1 else np.inf
    is_warm = [True, *(lengths_ns <= _MOST_COLD * usual_ns).tolist()]
    runs, first = [(0, 0)], 0
    for place in range(len(ends)):
        if not is_inside[place]:
            first = place + 1
        elif not is_warm[place]:
            first = place
        runs.append((first, place))
    first, last = max(runs, key=lambda run: ((run[1] - run[0]) // cycle, run[1]))
    if (last - first) // cycle:
        first = last - (last - first) // cycle * cycle
    rows = []
    launched_ns = [view.launched_ns() for view in views]
    for place, end in enumerate(ends):
        for rank, task in end:
            if marks is not None and len(marks[rank].number) == len(ends):
                bounds_ns = marks[rank].bounds_ns[place : place + 2]
            else:
                before = dict(ends[place - 1]).get(rank) if place else None
                bounds_ns = launched_ns[rank][[task if before is None else before, task]] + 1
            now = (launched_ns[rank] >= bounds_ns[0]) & (launched_ns[rank] < bounds_ns[1])
            rows.append(
                StepRow(
                    step=place if marks is None else marks[rank].number[place],
                    rank=views[rank].trace.rank,
                    host_ns=int(bounds_ns[1] - bounds_ns[0]),
                    end_ns=int(views[rank].device.end_ns[task]),
                    kernels=int(now.sum()),
                    is_inside=is_inside[place],
                    is_warm=is_warm[place],
                    is_chosen=first < place <= last,
                )
            )
    return tuple(rows), ends[first : last + 1] if last > first else ()


def _find_doubt(
    found: FoundSteps, views: Sequence[RankView], marks: Sequence[_Marks] | None
) -> list[str]:
    """A sentence if too little of the window shows what a step takes."""
    if not found.ends:
        alone = [
            float((_mark_of_tasks(view, own) == 0).mean())
            for view, own in zip(views, marks or (), strict=marks is not None)
            if own.rule is StepRule.MARKS and len(own.number) == 1
        ]
        if alone and min(alone) >= 1 - _ALIKE:
            return []
        return [f"no step is whole between two others, so the time is that of the window. {_HELP}"]
    if found.rule is StepRule.REPEATED and _may_be_a_layer(found.ends, views):
        layers = "without marks, what repeats may be a layer: one host thread launches all of it, "
        return [f"{layers}so nothing shows a forward and a backward pass. {_HELP}"]
    warm = {row.step for row in found.table if row.is_inside and row.is_warm}
    if len(warm) - 1 > found.cycle:
        return []
    step_ns = _step_ns(found.ends, views)
    spans_ns = [own.whole_ns[-found.cycle - 1 :] for own in marks or ()]
    both_ns = [
        float(part.mean()) for of in spans_ns if len(of) > found.cycle for part in (of[1:], of[:-1])
    ]
    if both_ns and all(abs(one / step_ns - 1) <= _LONE_APART for one in both_ns):
        return []
    lone = (
        f"nothing but one time of {format_duration(round(step_ns))} per step shows how long steps "
        f"take, and so not how much they differ. {_HELP}"
    )
    return [lone]


def _may_be_a_layer(ends: Sequence[End], views: Sequence[RankView]) -> bool:
    """Whether kernels of one host thread are all that repeats: autograd has its own thread."""
    (rank, last), (_, first) = ends[-1][0], ends[-2][0]
    view, launched_ns = views[rank], views[rank].launched_ns()
    own = (launched_ns > launched_ns[first]) & (launched_ns <= launched_ns[last])
    is_alone = len(np.unique(view.calls.thread[view.device.call[own]])) == 1
    return is_alone and not view.device.is_collective[last]


def _step_ns(ends: Sequence[End], views: Sequence[RankView]) -> float:
    """The mean time between *ends*."""
    first, last = ends[0], ends[-1]
    moments = [
        max(int(views[rank].device.end_ns[task]) for rank, task in end) for end in (first, last)
    ]
    return (moments[1] - moments[0]) / (len(ends) - 1)


def _find_contradictions(
    found: FoundSteps, views: Sequence[RankView], marks: Sequence[_Marks] | None
) -> list[str]:
    """What ranks, marks and repeated kernels say against the chosen steps, one sentence a rank."""
    if not found.ends:
        return []
    step_ns = _step_ns(found.ends, views)
    believed = f"accepted is {format_duration(round(step_ns))} per step, by {found.rule.value}"
    faults = []
    for rank, view in enumerate(views):
        said = []
        own = [task for end in found.ends for owner, task in end if owner == rank]
        device_ns = np.diff(view.device.end_ns[own]).mean() if own else step_ns
        if abs(device_ns / step_ns - 1) > _ALIKE:
            said.append(f"its device {format_duration(round(device_ns))}")
        host_ns = cycle_period_ns(marks[rank].whole_ns, found.cycle) if marks is not None else 0
        if host_ns and abs(host_ns / step_ns - 1) > _MOST_AHEAD:
            said.append(f"its marks {format_duration(host_ns)}")
        line = _kernel_line(view)
        if own and (places := _repeated_places(line, view)):
            # Kernels may repeat after several steps, never after a part of one.
            inside = np.searchsorted(line.tasks, [own[0], own[-1]])
            kernels = max(float(np.diff(inside)[0]) / (len(found.ends) - 1), 1.0)
            repeated = float(np.diff(places).mean())
            if abs(repeated / kernels / max(round(repeated / kernels), 1) - 1) > _ALIKE:
                said.append(f"its kernels repeat after {repeated:.0f}, not {kernels:.0f}")
        if said:
            name = view.trace.rank
            faults.append(f"rank {name} shows a different step: {', '.join(said)}; {believed}")
    return faults
