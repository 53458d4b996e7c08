"""Touched: which tasks a change altered, and their amounts before and after.

Tasks are recognised by origin and label, so every task of the job has an origin of its own
(`graph.job.with_own_origins`). A change that alters nothing is refused: "no change" would
read like an answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import format_duration, format_size
from perfmodel.extensions.whatif.recosting import bytes_of
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Int64s, Program


@dataclass(frozen=True, slots=True)
class Amounts:
    """Totals over some tasks of all ranks."""

    tasks: int = 0
    launches: int = 0
    size_bytes: int = 0
    duration_ns: int = 0

    def add(self, other: Amounts, factor: float) -> Amounts:
        """These, and *factor* times the *other* ones."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Amounts(*(own + round(more * factor) for own, more in pairs))


@dataclass(frozen=True, slots=True)
class Touched:
    """What a change altered: tasks of all ranks by how, and their amounts before and after.

    *matched* tasks were selected, whether they changed or not.
    """

    retimed: int
    removed: int
    added: int
    reordered: int
    matched: int
    before: Amounts
    after: Amounts

    @property
    def tasks(self) -> int:
        """Tasks that were altered or selected, on all ranks."""
        return max(self.retimed + self.removed + self.added + self.reordered, self.matched)

    @property
    def words(self) -> str:
        """What was touched, as text."""
        how = {word: getattr(self, word) for word in ("retimed", "removed", "added", "reordered")}
        parts = [f"{count:,} {word}" for word, count in how.items() if count]
        kept = f"{self.matched:,} matched and unchanged"
        said = [f"{self.tasks:,} tasks ({', '.join(parts) or kept})"]
        if self.before.launches or self.after.launches:
            said.append(f"launches {self.before.launches:,} -> {self.after.launches:,}")
        if self.before.size_bytes or self.after.size_bytes:
            before, after = (format_size(one.size_bytes) for one in (self.before, self.after))
            said.append(f"{before} -> {after}")
        times = (format_duration(one.duration_ns) for one in (self.before, self.after))
        return f"{', '.join(said)}, {' -> '.join(times)} on all ranks"


def find_touched(before: JobGraph, after: JobGraph, matched: int = 0) -> Touched:
    """What differs between a job and the one that a change made of it."""
    counts = Counter(retimed=0, removed=0, added=0, reordered=0)
    old, new = Amounts(), Amounts()
    copies = max(after.rank_count // before.rank_count, 1)
    pairs = Counter(
        (int(before.rank_program[rank % before.rank_count]), int(after.rank_program[rank]))
        for rank in range(after.rank_count)
    )
    for (first, second), ranks in pairs.items():
        was, now = before.programs[first], after.programs[second]
        if was is now and before.ops == after.ops[: len(before.ops)]:
            continue
        # Tasks by how they were touched, with their numbers before and after.
        touched = _compare(before, was, after, now)
        for how, pair in touched.items():
            counts[how] += max(map(len, pair)) * ranks
        sides = [np.concatenate(side) for side in zip(*touched.values(), strict=True)]
        old = old.add(_amounts(before, was, sides[0]), ranks / copies)
        new = new.add(_amounts(after, now, sides[1]), ranks)
    counts["added"] += sum(
        after.program_of(rank).task_count for rank in range(before.rank_count, after.rank_count)
    )
    return Touched(**counts, matched=matched, before=old, after=new)


def _compare(
    before: JobGraph, old: Program, after: JobGraph, new: Program
) -> dict[str, tuple[Int64s, Int64s]]:
    """Tasks before and after, in pairs where both are there, by how they were touched."""
    old_names, new_names = _names(old, new)
    order = np.argsort(old_names)
    place = np.minimum(np.searchsorted(old_names, new_names, sorter=order), len(order) - 1)
    is_kept = old_names[order[place]] == new_names
    tasks, sources = np.flatnonzero(is_kept), order[place[is_kept]]
    pairs = list(zip(old.op[sources].tolist(), new.op[tasks].tolist(), strict=True))
    differ = {(one, other) for one, other in set(pairs) if before.ops[one] != after.ops[other]}
    is_retimed = np.array([pair in differ for pair in pairs], dtype=bool)
    is_moved = (_places(old, sources) != _places(new, tasks)).any(axis=1)
    # Tasks that are as long as before and follow others than before.
    is_moved[1:] |= np.diff(sources) < 0
    is_moved &= ~is_retimed
    nothing = np.empty(0, dtype=np.int64)
    return {
        "retimed": (sources[is_retimed], tasks[is_retimed]),
        "reordered": (sources[is_moved], tasks[is_moved]),
        "removed": (np.setdiff1d(np.arange(old.task_count), sources), nothing),
        "added": (nothing, np.flatnonzero(~is_kept)),
    }


def _names(old: Program, new: Program) -> tuple[Int64s, Int64s]:
    """Numbers that recognise tasks after a change: of origin, label and place among equals."""
    origin, label = (
        np.concatenate([getattr(old, name), getattr(new, name)]).astype(np.int64)
        for name in ("origin", "label")
    )
    kind = np.unique((origin + 1) * (label.max() + 1) + label, return_inverse=True)[1]
    named = []
    for kinds in (kind[: old.task_count], kind[old.task_count :]):
        order = np.argsort(kinds, kind="stable")
        place = np.empty(len(kinds), dtype=np.int64)
        ranked = kinds[order]
        place[order] = np.arange(len(kinds)) - np.searchsorted(ranked, ranked)
        named.append(kinds * len(kind) + place)
    return named[0], named[1]


def _places(program: Program, tasks: Int64s) -> NDArray[np.int64]:
    """One row per task: its lane, how many waits it has, their lags and their distances."""
    lanes, owner = program.task_lanes(), program.dep_owners()
    is_wait = (lanes[owner] != lanes[program.dep_task]) | (program.dep_lag_ns != 0)
    is_wait |= program.dep_distance != 0
    sums = [
        np.bincount(owner[is_wait], weights=of[is_wait], minlength=program.task_count)
        for of in (np.ones(len(owner)), program.dep_lag_ns, program.dep_distance)
    ]
    return np.stack([lanes, *sums], axis=1)[tasks].astype(np.int64)


def _amounts(job: JobGraph, program: Program, tasks: Int64s) -> Amounts:
    ops = [job.ops[op] for op in program.op[tasks].tolist()]
    is_device, owner = program.is_on_device(), program.dep_owners()
    is_launch = np.isin(owner, tasks) & is_device[owner] & ~is_device[program.dep_task]
    launches = np.unique(program.dep_task[is_launch & (program.dep_distance == 0)])
    return Amounts(
        tasks=len(tasks),
        launches=len(launches),
        size_bytes=round(sum(bytes_of(op) for op in ops)),
        duration_ns=sum(op.duration_ns for op in ops if isinstance(op, Fixed)),
    )
