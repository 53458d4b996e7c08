"""Continuing: the explanation of a whole iteration from those of two smaller ones.

What a step more adds to each part, share and wait is added as often as there
are steps to go; parts and path still add up to the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from perfmodel.prediction.answer import (
    CriticalPath,
    Explanation,
    Part,
    PathShare,
    RankClass,
    RankWait,
    TimeParts,
)
from perfmodel.prediction.time_parts import mean_parts, share_out
from perfmodel.workloads.jobs import Continuation

Reach = Callable[[int, int], int]


def continue_explanation(
    small: Explanation, large: Explanation, continuation: Continuation, *, iteration_ns: int
) -> Explanation:
    """Why the whole iteration takes *iteration_ns*."""

    def reach(of_small: int, of_large: int) -> int:
        return max(continuation.reach(of_small, of_large), 0)

    classes = _continue_classes(small.rank_classes, large.rank_classes, reach, iteration_ns)
    return Explanation(
        time=mean_parts([entry.time for entry in classes], [len(entry.ranks) for entry in classes]),
        rank_classes=classes,
        critical_path=_continue_path(small.critical_path, large.critical_path, reach, iteration_ns),
        waits=_continue_waits(small.waits, large.waits, reach),
        provenance_ratio=large.provenance_ratio,
    )


def _continue_classes(
    small: Sequence[RankClass], large: Sequence[RankClass], reach: Reach, iteration_ns: int
) -> tuple[RankClass, ...]:
    before = {entry.ranks: entry.time.of_part_ns for entry in small}
    classes = []
    for entry in large:
        # Ranks that are alike in one job only are stretched as they are.
        own = entry.time.of_part_ns
        earlier = before.get(entry.ranks)
        parts_ns = own if earlier is None else {p: reach(earlier[p], own[p]) for p in Part}
        weights = [Fraction(parts_ns[part]) for part in Part]
        whole = dict(zip(Part, share_out(weights, iteration_ns), strict=True))
        classes.append(replace(entry, time=TimeParts(whole)))
    return tuple(classes)


def _continue_path(
    small: CriticalPath, large: CriticalPath, reach: Reach, iteration_ns: int
) -> CriticalPath:
    kinds = _continue_shares(small.by_kind, large.by_kind, reach)
    lengths_ns = share_out([Fraction(share.duration_ns) for share in kinds], iteration_ns)
    return CriticalPath(
        by_kind=tuple(
            replace(share, duration_ns=length_ns)
            for share, length_ns in zip(kinds, lengths_ns, strict=True)
        ),
        by_label=_continue_shares(small.by_label, large.by_label, reach),
        rank_changes=reach(small.rank_changes, large.rank_changes),
    )


def _continue_shares(
    small: Sequence[PathShare], large: Sequence[PathShare], reach: Reach
) -> tuple[PathShare, ...]:
    before = {share.name: share for share in small}
    shares = []
    for share in large:
        earlier = before.get(share.name, PathShare(share.name, 0, 0))
        duration_ns = reach(earlier.duration_ns, share.duration_ns)
        count = reach(earlier.task_count, share.task_count)
        shares.append(PathShare(share.name, duration_ns, count))
    return tuple(sorted(shares, key=lambda share: (-share.duration_ns, share.name)))


def _continue_waits(
    small: Sequence[RankWait], large: Sequence[RankWait], reach: Reach
) -> tuple[RankWait, ...]:
    before = {(wait.waiting_ranks, wait.awaited_rank, wait.label): wait for wait in small}
    waits = []
    for wait in large:
        earlier = before.get((wait.waiting_ranks, wait.awaited_rank, wait.label))
        earlier_ns = 0 if earlier is None else earlier.duration_ns
        waits.append(replace(wait, duration_ns=reach(earlier_ns, wait.duration_ns)))
    return tuple(
        sorted(waits, key=lambda wait: (-wait.duration_ns, wait.waiting_ranks, wait.label))
    )
