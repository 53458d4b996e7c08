"""Touched: which tasks a change altered, and what they took before and after.

Tasks are recognised by origin and label, so every task of the job has an origin of
its own (`graph.job.with_own_origins`). A change that alters nothing is refused: "no
change" would read like an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.units import format_duration, format_size
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Op,
)
from perfmodel.graph.program import Program

_Name = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Amounts:
    """What some tasks of all ranks come to."""

    tasks: int = 0
    launches: int = 0
    size_bytes: int = 0
    duration_ns: int = 0


@dataclass(frozen=True, slots=True)
class Touched:
    """What a change altered: tasks of all ranks by how, and what they came to before and after.

    *matched* were asked for, whether that altered them or not.
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
        """Tasks that were altered or asked for, of all ranks."""
        return max(self.retimed + self.removed + self.added + self.reordered, self.matched)

    @property
    def words(self) -> str:
        """What was touched, for people."""
        how = {
            "retimed": self.retimed,
            "taken out": self.removed,
            "put in": self.added,
            "reordered": self.reordered,
        }
        parts = [f"{count:,} {word}" for word, count in how.items() if count]
        kept = f"{self.matched:,} matched and kept as they are"
        said = [f"{self.tasks:,} tasks ({', '.join(parts) or kept})"]
        if self.before.launches or self.after.launches:
            said.append(f"launches {self.before.launches:,} -> {self.after.launches:,}")
        if self.before.size_bytes or self.after.size_bytes:
            before, after = (format_size(one.size_bytes) for one in (self.before, self.after))
            said.append(f"{before} -> {after}")
        times = (format_duration(one.duration_ns) for one in (self.before, self.after))
        return f"{', '.join(said)}, {' -> '.join(times)} on all ranks"


def find_touched(before: JobGraph, after: JobGraph, matched: int = 0) -> Touched:
    """What differs between a job and the one that a change made of it.

    *matched* tasks were asked for, whether that altered them or not.
    """
    counts: Counter[str] = Counter()
    old, new = [], []
    copies = max(after.rank_count // before.rank_count, 1)
    pairs = Counter(
        (int(before.rank_program[rank % before.rank_count]), int(after.rank_program[rank]))
        for rank in range(after.rank_count)
    )
    for (first, second), ranks in pairs.items():
        compared = _compare(before, before.programs[first], after, after.programs[second])
        for word, number in compared.counts.items():
            counts[word] += number * ranks
        old.append(_scaled(compared.before, ranks / copies))
        new.append(_scaled(compared.after, ranks))
    new_ranks = range(before.rank_count, after.rank_count)
    cloned = sum(after.program_of(rank).task_count for rank in new_ranks)
    return Touched(
        retimed=counts["retimed"],
        removed=counts["removed"],
        added=counts["added"] + cloned,
        reordered=counts["reordered"],
        matched=matched,
        before=_sum(old),
        after=_sum(new),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    counts: dict[str, int]
    before: Amounts
    after: Amounts


def _compare(before: JobGraph, old: Program, after: JobGraph, new: Program) -> _Compared:
    if old is new and before.ops == after.ops[: len(before.ops)]:
        return _Compared({}, Amounts(), Amounts())
    old_names, new_names = _names(old), _names(new)
    place_of = {name: task for task, name in enumerate(old_names)}
    old_keys, new_keys = _keys(old, old_names), _keys(new, new_names)
    seen: set[int] = set()
    retimed: list[tuple[int, int]] = []
    reordered: list[tuple[int, int]] = []
    added = []
    for task, name in enumerate(new_names):
        source = place_of.get(name)
        if source is None:
            added.append(task)
            continue
        seen.add(source)
        if before.ops[int(old.op[source])] != after.ops[int(new.op[task])]:
            retimed.append((source, task))
        elif old_keys[source] != new_keys[task]:
            reordered.append((source, task))
    removed = [task for task in range(old.task_count) if task not in seen]
    return _Compared(
        {
            "retimed": len(retimed),
            "removed": len(removed),
            "added": len(added),
            "reordered": len(reordered),
        },
        _amounts(before, old, [*(source for source, _ in (*retimed, *reordered)), *removed]),
        _amounts(after, new, [*(task for _, task in (*retimed, *reordered)), *added]),
    )


def _names(program: Program) -> list[_Name]:
    """What a task is called before and after a change: origin, label, and the how-manieth."""
    counts: Counter[tuple[int, int]] = Counter()
    names = []
    for key in zip(program.origin.tolist(), program.label.tolist(), strict=True):
        names.append((*key, counts[key]))
        counts[key] += 1
    return names


def _keys(program: Program, names: list[_Name]) -> list[tuple[object, ...]]:
    """Where every task stands, and what it waits for."""
    lanes, starts = program.task_lanes().tolist(), set(program.lane_start.tolist())
    bounds, sources = program.dep_start.tolist(), program.dep_task.tolist()
    lags, distances = program.dep_lag_ns.tolist(), program.dep_distance.tolist()
    return [
        (
            program.lanes[lane],
            None if task in starts else names[task - 1],
            sorted(
                (names[sources[row]], lags[row], distances[row])
                for row in range(bounds[task], bounds[task + 1])
                if lanes[sources[row]] != lane or lags[row] or distances[row]
            ),
        )
        for task, lane in enumerate(lanes)
    ]


def count_matched(job: JobGraph, masks: Callable[[Program], Any], ranks: Iterable[int]) -> int:
    """How many tasks of *ranks* a mask of their program holds."""
    of_program = Counter(int(job.rank_program[rank]) for rank in ranks)
    return sum(
        int(np.count_nonzero(masks(job.programs[number]))) * count
        for number, count in of_program.items()
    )


def _amounts(job: JobGraph, program: Program, tasks: list[int]) -> Amounts:
    ops = [job.ops[int(program.op[task])] for task in tasks]
    return Amounts(
        tasks=len(tasks),
        launches=len(_launches(program, tasks)),
        size_bytes=round(sum(bytes_of(op) for op in ops)),
        duration_ns=sum(op.duration_ns for op in ops if isinstance(op, Fixed)),
    )


def _launches(program: Program, tasks: list[int]) -> set[int]:
    """Host tasks that launch one of *tasks*."""
    is_device = np.array([lane.kind.is_device for lane in program.lanes], dtype=bool)
    on_device = is_device[program.task_lanes()]
    launches: set[int] = set()
    for task in tasks:
        if on_device[task]:
            rows = slice(program.dep_start[task], program.dep_start[task + 1])
            sources = program.dep_task[rows][program.dep_distance[rows] == 0]
            launches.update(int(source) for source in sources if not on_device[source])
    return launches


def _scaled(amounts: Amounts, ranks: float) -> Amounts:
    return Amounts(
        round(amounts.tasks * ranks),
        round(amounts.launches * ranks),
        round(amounts.size_bytes * ranks),
        round(amounts.duration_ns * ranks),
    )


def _sum(parts: Iterable[Amounts]) -> Amounts:
    rows = [(one.tasks, one.launches, one.size_bytes, one.duration_ns) for one in parts]
    return Amounts(*(sum(column) for column in zip(*rows, strict=True))) if rows else Amounts()


def bytes_of(op: Op) -> float:
    """Bytes that a task reads and writes, or carries; 0 where nobody knows."""
    work = op.work if isinstance(op, Fixed) else op
    count = _BYTES.get(type(work))
    return 0.0 if count is None else float(count(work))


def _attention_bytes(work: Attention) -> float:
    query = 2 * work.heads * work.query_length
    keys = 2 * work.kv_heads * work.key_length
    return work.batch * (query + keys) * work.head_dim * work.dtype.size_bits / 8


def _lookup_bytes(work: EmbeddingOp) -> float:
    tables = work.lookup.tables
    return sum(work.lookup.lookup_count(one) * one.width * one.dtype.size_bytes for one in tables)


_BYTES: dict[type[object], Callable[[Any], float]] = {
    Gemm: lambda work: (
        work.batch
        * (work.m * work.k + work.k * work.n + work.m * work.n)
        * work.dtype.size_bits
        / 8
    ),
    GroupedGemm: lambda work: (
        work.groups
        * (work.m * work.k + work.k * work.n + work.m * work.n)
        * work.dtype.size_bits
        / 8
    ),
    Convolution: lambda work: work.read_bytes + work.write_bytes,
    Attention: _attention_bytes,
    MemoryBound: lambda work: work.read_bytes + work.write_bytes,
    EmbeddingOp: _lookup_bytes,
    Copy: lambda work: work.size_bytes,
    Communication: lambda work: work.collective.size_bytes,
}
