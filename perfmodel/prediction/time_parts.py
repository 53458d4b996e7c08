"""Time parts: exposed waits, parts of an iteration that add up, and their extrapolation.

Shares are rounded by largest remainder: every part is rounded down, and the
nanoseconds left over go to the parts that lost most; ties to the first part. Parts of a whole
iteration are extrapolated from those of two smaller jobs, and still add up to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from fractions import Fraction

import numpy as np

from perfmodel.engine.history import History, Occurrence
from perfmodel.engine.reasons import Breakdown, CoveredTime, Window, clipped_spans
from perfmodel.prediction.answer import (
    CriticalPath,
    Explanation,
    Part,
    PathShare,
    RankClass,
    RankWait,
    TimeParts,
)
from perfmodel.workloads.family import Extrapolation


def find_exposed_waits(history: History, rank: int, window: Window) -> list[tuple[Occurrence, int]]:
    """The waits of *rank* in *window* that its device idled for, and for how long.

    A wait counts only where the device does nothing else, so a receive that was posted early costs
    nothing. Where waits overlap, a moment belongs to the one that ended first: it set the device
    going. So the waits of a rank add up to its waiting part of the breakdown.
    """
    is_device = history.program_of(rank).is_on_device()
    busy = CoveredTime(clipped_spans(history, rank, window, is_device, is_wait=False))
    waits = clipped_waits(history, rank, window)
    covered: list[tuple[int, int]] = []
    gaps = [
        (number, *gap)
        for number, (from_ns, to_ns, _) in enumerate(waits)
        for gap in uncovered(covered, from_ns, to_ns)
    ]
    wait, begin_ns, end_ns = np.array(gaps, dtype=np.int64).reshape(-1, 3).T
    exposed_ns = np.zeros(len(waits), dtype=np.int64)
    np.add.at(exposed_ns, wait, end_ns - begin_ns - busy.within(begin_ns, end_ns))
    found = zip(waits, exposed_ns.tolist(), strict=True)
    return [(at, idle_ns) for (_, _, at), idle_ns in found if idle_ns]


def sum_waits(history: History, rank: int, window: Window) -> dict[tuple[int, int], int]:
    """How long *rank* idled, by its task and the rank that came last."""
    totals: Counter[tuple[int, int]] = Counter()
    for at, exposed_ns in find_exposed_waits(history, rank, window):
        totals[at.task, history.last_member(at).rank] += exposed_ns
    return totals


def uncovered(covered: list[tuple[int, int]], from_ns: int, to_ns: int) -> list[tuple[int, int]]:
    """The gaps that *covered* (in order, disjoint) leaves in a span, which is covered afterwards.

    Some may be empty. Spans come in order of their ends, so only the last ones can overlap.
    """
    gaps = []
    begin_ns, reach_ns = from_ns, to_ns
    while covered and covered[-1][1] >= from_ns:
        before_ns, after_ns = covered.pop()
        gaps.append((after_ns, max(after_ns, reach_ns)))
        reach_ns = min(reach_ns, before_ns)
        begin_ns = min(begin_ns, before_ns)
    gaps.append((from_ns, max(from_ns, reach_ns)))
    covered.append((begin_ns, to_ns))
    return gaps


def clipped_waits(history: History, rank: int, window: Window) -> list[tuple[int, int, Occurrence]]:
    """Waits that touch *window*, clipped to it, in order of their ends."""
    waits = []
    for iteration in history.iterations:
        ready_ns = history.ready_ns(iteration, rank).clip(window.from_ns, window.to_ns)
        start_ns = history.start_ns(iteration, rank).clip(window.from_ns, window.to_ns)
        for task in np.flatnonzero(start_ns > ready_ns).tolist():
            at = Occurrence(iteration, rank, task)
            waits.append((int(ready_ns[task]), int(start_ns[task]), at))
    return sorted(waits, key=lambda wait: (wait[1], wait[0], wait[2]))


def from_breakdown(breakdown: Breakdown, *, total_ns: int) -> TimeParts:
    """The parts of *breakdown*, scaled to an iteration of *total_ns*.

    A period may repeat after several iterations, so the window of a breakdown, which is one of
    them, can differ from the mean iteration.
    """
    return _as_parts(astuple(breakdown), total_ns)


def mean_parts(classes: Sequence[RankClass]) -> TimeParts:
    """The mean over all ranks of *classes*, whose times are equally long."""
    weights = [
        sum(len(entry.ranks) * entry.time.of_part_ns[part] for entry in classes) for part in Part
    ]
    return _as_parts(weights, classes[0].time.total_ns)


def share_out(weights: Sequence[int], total_ns: int) -> list[int]:
    """*total_ns* in whole parts in proportion to *weights*; all 0 where the weights are."""
    whole = sum(weights)
    if whole == 0:
        return [0] * len(weights)
    exact = [Fraction(weight * total_ns, whole) for weight in weights]
    floors = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda place: (floors[place] - exact[place], place))
    for place in order[: total_ns - sum(floors)]:
        floors[place] += 1
    return floors


def _as_parts(weights: Sequence[int], total_ns: int) -> TimeParts:
    return TimeParts(dict(zip(Part, share_out(weights, total_ns), strict=True)))


def scale_shares(shares: Sequence[PathShare], total_ns: int) -> tuple[PathShare, ...]:
    """*shares* of a path as those of one of *total_ns*."""
    lengths_ns = share_out([share.duration_ns for share in shares], total_ns)
    return tuple(
        replace(share, duration_ns=length_ns)
        for share, length_ns in zip(shares, lengths_ns, strict=True)
    )


def order_shares(shares: Iterable[PathShare]) -> tuple[PathShare, ...]:
    """*shares*, longest first."""
    return tuple(sorted(shares, key=lambda share: (-share.duration_ns, share.name)))


def order_waits(waits: Iterable[RankWait]) -> tuple[RankWait, ...]:
    """*waits*, longest first."""
    return tuple(
        sorted(waits, key=lambda wait: (-wait.duration_ns, wait.waiting_ranks, wait.label))
    )


def shrink_to_iteration(
    explanation: Explanation, *, iteration_ns: int, window_ns: int
) -> Explanation:
    """*explanation* of a window of *window_ns* as that of an iteration of *iteration_ns*."""
    ratio = Fraction(iteration_ns, max(window_ns, 1))
    return replace(
        explanation,
        critical_path=_shrink_path(explanation.critical_path, iteration_ns),
        waits=tuple(
            replace(wait, duration_ns=round(wait.duration_ns * ratio)) for wait in explanation.waits
        ),
    )


def _shrink_path(path: CriticalPath, iteration_ns: int) -> CriticalPath:
    if not path.length_ns:
        return path
    ratio = Fraction(iteration_ns, path.length_ns)
    return replace(
        path,
        by_kind=scale_shares(path.by_kind, iteration_ns),
        by_label=tuple(
            replace(share, duration_ns=round(share.duration_ns * ratio)) for share in path.by_label
        ),
    )


Reach = Callable[[int, int], int]


def extrapolate_explanation(
    small: Explanation, large: Explanation, extrapolation: Extrapolation, *, iteration_ns: int
) -> Explanation:
    """Why the whole iteration takes *iteration_ns*."""

    def reach(of_small: int, of_large: int) -> int:
        return max(extrapolation.extrapolate(of_small, of_large), 0)

    classes = _extrapolate_classes(small.rank_classes, large.rank_classes, reach, iteration_ns)
    return Explanation(
        time=mean_parts(classes),
        rank_classes=classes,
        critical_path=_extrapolate_path(
            small.critical_path, large.critical_path, reach, iteration_ns
        ),
        waits=_extrapolate_waits(small.waits, large.waits, reach),
        provenance_ratio=large.provenance_ratio,
    )


def _extrapolate_classes(
    small: Sequence[RankClass], large: Sequence[RankClass], reach: Reach, iteration_ns: int
) -> tuple[RankClass, ...]:
    before = {entry.ranks: entry.time.of_part_ns for entry in small}
    classes = []
    for entry in large:
        # Ranks that are equal in one of the jobs only are scaled as they are.
        own = entry.time.of_part_ns
        earlier = before.get(entry.ranks)
        parts_ns = own if earlier is None else {p: reach(earlier[p], own[p]) for p in Part}
        whole = _as_parts([parts_ns[part] for part in Part], iteration_ns)
        classes.append(replace(entry, time=whole))
    return tuple(classes)


def _extrapolate_path(
    small: CriticalPath, large: CriticalPath, reach: Reach, iteration_ns: int
) -> CriticalPath:
    kinds = _extrapolate_shares(small.by_kind, large.by_kind, reach)
    return CriticalPath(
        by_kind=scale_shares(kinds, iteration_ns),
        by_label=_extrapolate_shares(small.by_label, large.by_label, reach),
        rank_changes=reach(small.rank_changes, large.rank_changes),
    )


def _extrapolate_shares(
    small: Sequence[PathShare], large: Sequence[PathShare], reach: Reach
) -> tuple[PathShare, ...]:
    before = {share.name: share for share in small}
    shares = []
    for share in large:
        earlier = before.get(share.name, PathShare(share.name, 0, 0))
        duration_ns = reach(earlier.duration_ns, share.duration_ns)
        count = reach(earlier.task_count, share.task_count)
        shares.append(PathShare(share.name, duration_ns, count))
    return order_shares(shares)


def _extrapolate_waits(
    small: Sequence[RankWait], large: Sequence[RankWait], reach: Reach
) -> tuple[RankWait, ...]:
    before = {(wait.waiting_ranks, wait.awaited_rank, wait.label): wait for wait in small}
    waits = []
    for wait in large:
        earlier = before.get((wait.waiting_ranks, wait.awaited_rank, wait.label))
        earlier_ns = 0 if earlier is None else earlier.duration_ns
        waits.append(replace(wait, duration_ns=reach(earlier_ns, wait.duration_ns)))
    return order_waits(waits)
