"""Touched: which tasks a change altered, and their amounts before and after.

Tasks are recognised by origin and label, so every task of the job has an origin of its own
(`graph.job.with_own_origins`). A change that alters nothing is refused: "no change" would
read like an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from perfmodel.base.units import format_duration, format_size
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Program, read_dependencies
from perfmodel.whatif.recosting import bytes_of

_Name = tuple[int, int, int]


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
        for how, tasks in touched.items():
            counts[how] += len(tasks) * ranks
        both = [pair for tasks in touched.values() for pair in tasks]
        old = old.add(_amounts(before, was, [one for one, _ in both]), ranks / copies)
        new = new.add(_amounts(after, now, [one for _, one in both]), ranks)
    counts["added"] += sum(
        after.program_of(rank).task_count for rank in range(before.rank_count, after.rank_count)
    )
    return Touched(**counts, matched=matched, before=old, after=new)


def _compare(
    before: JobGraph, old: Program, after: JobGraph, new: Program
) -> dict[str, list[tuple[int | None, int | None]]]:
    """Pairs of a task before and after, by how it was touched; None where it is not there."""
    old_names, new_names = _names(old), _names(new)
    left = {name: task for task, name in enumerate(old_names)}
    old_keys, new_keys = _keys(old, old_names), _keys(new, new_names)
    touched: dict[str, list[tuple[int | None, int | None]]] = {
        "retimed": [], "reordered": [], "removed": [], "added": [],
    }  # fmt: skip
    for task, name in enumerate(new_names):
        source = left.pop(name, None)
        if source is None:
            touched["added"].append((None, task))
        elif before.ops[int(old.op[source])] != after.ops[int(new.op[task])]:
            touched["retimed"].append((source, task))
        elif old_keys[source] != new_keys[task]:
            touched["reordered"].append((source, task))
    touched["removed"] = [(task, None) for task in left.values()]
    return touched


def _names(program: Program) -> list[_Name]:
    """How a task is recognised after a change: origin, label, and its number among equals."""
    counts: Counter[tuple[int, int]] = Counter()
    names = []
    for key in zip(program.origin.tolist(), program.label.tolist(), strict=True):
        names.append((*key, counts[key]))
        counts[key] += 1
    return names


def _keys(program: Program, names: list[_Name]) -> list[tuple[object, ...]]:
    """The position of every task, and what it waits for."""
    lanes, starts = program.task_lanes().tolist(), set(program.lane_start.tolist())
    return [
        (
            program.lanes[lane],
            None if task in starts else names[task - 1],
            sorted(
                (names[dep.task], dep.lag_ns, dep.distance)
                for dep in after
                if lanes[dep.task] != lane or dep.lag_ns or dep.distance
            ),
        )
        for task, (lane, after) in enumerate(zip(lanes, read_dependencies(program), strict=True))
    ]


def _amounts(job: JobGraph, program: Program, numbers: Sequence[int | None]) -> Amounts:
    tasks = [number for number in numbers if number is not None]
    ops = [job.ops[int(program.op[task])] for task in tasks]
    is_device, after = program.is_on_device().tolist(), read_dependencies(program)
    launches = {
        dep.task
        for task in tasks
        for dep in after[task]
        if is_device[task] and not is_device[dep.task] and not dep.distance
    }
    return Amounts(
        tasks=len(tasks),
        launches=len(launches),
        size_bytes=round(sum(bytes_of(op) for op in ops)),
        duration_ns=sum(op.duration_ns for op in ops if isinstance(op, Fixed)),
    )
