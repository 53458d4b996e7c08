"""Chrome trace: the predicted timeline as JSON that Perfetto opens.

Records are written one by one, so that a timeline is never held a second
time. A job too big to look at is cut to the ranks that matter most, and the
file says so.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson

from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_US
from perfmodel.base.writing import draft_of
from perfmodel.graph.ops import Communication, Fixed
from perfmodel.graph.program import Anchor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.explain import ExplainedReplay, find_path
from perfmodel.reports.text import format_ranks

MAX_TASKS = 400_000

Record = dict[str, Any]
Task = tuple[int, int]
"""A rank and one of its tasks."""
_PLAIN = (int, float, str, bool)


def write_trace(
    prediction: Prediction,
    path: Path,
    *,
    max_tasks: int = MAX_TASKS,
    only_ranks: Sequence[int] | None = None,
) -> None:
    """Write the iteration that *prediction* shows to *path*; *only_ranks* chooses them.

    A name that ends in .gz is compressed; Perfetto reads both.
    """
    evidence = prediction.evidence
    if only_ranks is None:
        ranks = choose_ranks(evidence, max_tasks=max_tasks)
    else:
        ranks = find_classes(evidence, only_ranks)
    classes = evidence.job.rank_count
    note = "every class of ranks is shown"
    if len(ranks) < classes:
        note = f"{classes - len(ranks)} of {classes} classes of ranks are left out: too big"
    with draft_of(path) as draft, _open(draft, is_packed=path.suffix == ".gz") as file:
        file.write(b'{"displayTimeUnit":"ns","otherData":')
        file.write(orjson.dumps({"job": evidence.job.facts.name, "shown": note}))
        file.write(b',"traceEvents":[\n')
        for number, record in enumerate(iter_records(prediction, ranks)):
            file.write(b",\n" if number else b"")
            file.write(orjson.dumps(record))
        file.write(b"\n]}\n")


@contextmanager
def _open(path: Path, *, is_packed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if not is_packed:
            yield file
            return
        # Without name and time of writing, so that equal answers are equal files.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            yield cast(IO[bytes], packed)


def find_classes(evidence: ExplainedReplay, ranks: Sequence[int]) -> tuple[int, ...]:
    """The classes that *ranks* of the whole job are in."""
    of_rank = {rank: one for one, members in enumerate(evidence.class_ranks) for rank in members}
    unknown = [rank for rank in ranks if rank not in of_rank]
    if unknown:
        raise InputError(
            f"--ranks: must be among 0-{len(of_rank) - 1}, got {', '.join(map(str, unknown))}."
        )
    return tuple(sorted({of_rank[rank] for rank in ranks}))


def choose_ranks(evidence: ExplainedReplay, *, max_tasks: int) -> tuple[int, ...]:
    """The ranks to show: those that others wait for first, as many as *max_tasks* allows."""
    counts = evidence.job.task_counts()
    waited_ns = [int(evidence.waits_ns(rank).sum()) for rank in range(evidence.job.rank_count)]
    # Who waits least is waited for most. Ties: the lower rank.
    order = sorted(range(evidence.job.rank_count), key=lambda rank: (waited_ns[rank], rank))
    totals = np.cumsum(counts[order])
    chosen = max(int(np.searchsorted(totals, max_tasks, side="right")), 1)
    return tuple(sorted(order[:chosen]))


def iter_records(prediction: Prediction, ranks: tuple[int, ...]) -> Iterator[Record]:
    """All records of *ranks*: names and spans, arrows from launches and between ranks."""
    evidence = prediction.evidence
    origin_ns = min(int(evidence.starts_ns(rank).min()) for rank in ranks)
    on_path = {(step.at.rank, step.at.task) for step in find_path(evidence)}
    for rank in ranks:
        path = {task for of_rank, task in on_path if of_rank == rank}
        yield from _names(evidence, rank)
        yield from _spans(evidence, rank, origin_ns, path)
    lanes = {rank: evidence.job.program_of(rank).task_lanes().tolist() for rank in ranks}
    starts_ns = {rank: (evidence.starts_ns(rank) - origin_ns).tolist() for rank in ranks}

    def start_of(rank: int, task: int) -> Record:
        pid = evidence.class_ranks[rank][0]
        return {"pid": pid, "tid": lanes[rank][task], "ts": _us(starts_ns[rank][task])}

    numbers = count()
    for name, arrows in (("launch", _launches), ("wait", _waits)):
        for source, target in arrows(evidence, ranks):
            both = {"cat": name, "name": name, "id": next(numbers)}
            yield {**both, "ph": "s", **start_of(*source)}
            yield {**both, "ph": "f", "bp": "e", **start_of(*target)}


def _launches(evidence: ExplainedReplay, ranks: tuple[int, ...]) -> Iterator[tuple[Task, Task]]:
    """From every host task to the device tasks that wait for its end in the same iteration."""
    for rank in ranks:
        program = evidence.job.program_of(rank)
        is_device = program.is_on_device()
        targets = program.dep_owners()
        sources = program.dep_task.astype(np.int64)
        is_launch = ~is_device[sources] & is_device[targets] & (program.dep_distance == 0)
        is_launch &= program.dep_anchor == int(Anchor.END)
        for source, target in zip(sources[is_launch], targets[is_launch], strict=True):
            yield (rank, int(source)), (rank, int(target))


def _waits(evidence: ExplainedReplay, ranks: tuple[int, ...]) -> Iterator[tuple[Task, Task]]:
    """From the last member of every rendezvous to the members that waited for it."""
    for rank in ranks:
        for task in np.flatnonzero(evidence.waits_ns(rank) > 0).tolist():
            last = evidence.last_member(rank, task)
            if last.rank != rank and last.rank in ranks:
                yield (last.rank, last.task), (rank, task)


def _names(evidence: ExplainedReplay, rank: int) -> Iterator[Record]:
    ranks = evidence.class_ranks[rank]
    name = f"rank {ranks[0]}"
    if len(ranks) > 1:
        name += f" (represents {format_ranks(ranks)})"
    of_rank = {"ph": "M", "pid": ranks[0]}
    yield {**of_rank, "name": "process_name", "args": {"name": name}}
    yield {**of_rank, "name": "process_sort_index", "args": {"sort_index": ranks[0]}}
    for lane, described in enumerate(evidence.job.program_of(rank).lanes):
        of_lane = {**of_rank, "tid": lane}
        yield {**of_lane, "name": "thread_name", "args": {"name": described.name}}
        yield {**of_lane, "name": "thread_sort_index", "args": {"sort_index": lane}}


def describe_task(evidence: ExplainedReplay, rank: int, task: int, *, on_path: bool) -> Record:
    """What is known about a task: its op's shapes, bytes and dtype, its group, the path."""
    op: object = evidence.job.op_of(rank, task)
    args: Record = {}
    known = evidence.provenance_of(rank, task)
    if isinstance(op, Fixed):
        known, op = known or op.provenance, op.work
    if known is not None:
        args["provenance"] = known.word
    if isinstance(op, Communication):
        op = op.collective
    if op is not None and is_dataclass(op):
        args["op"] = type(op).__name__
        for one in fields(op):
            value = getattr(op, one.name)
            if isinstance(value, Enum):
                value = value.value
            if one.init and not one.name.startswith("_") and isinstance(value, _PLAIN):
                args[one.name] = value
    group = evidence.job.group_of(rank, task)
    if group is not None:
        args["group"] = group.name
    args["on_critical_path"] = on_path
    return args


def _spans(
    evidence: ExplainedReplay, rank: int, origin_ns: int, on_path: set[int]
) -> Iterator[Record]:
    program = evidence.job.program_of(rank)
    starts_ns = evidence.starts_ns(rank)
    columns = (
        starts_ns - origin_ns,
        evidence.ends_ns(rank) - starts_ns,
        evidence.waits_ns(rank),
        program.task_lanes(),
        program.label,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for task, (start_ns, length_ns, wait_ns, lane, number) in enumerate(rows):
        label = evidence.job.labels[number]
        span = {"ph": "X", "pid": evidence.class_ranks[rank][0], "tid": lane}
        if wait_ns > 0:
            last = evidence.last_member(rank, task).rank
            yield {**span, "cat": "wait", "name": f"wait: {label}", "ts": _us(start_ns - wait_ns),
                   "dur": _us(wait_ns),
                   "args": {"waits_for_rank": evidence.class_ranks[last][0]}}  # fmt: skip
        yield {**span, "cat": program.lanes[lane].kind.value, "name": label, "ts": _us(start_ns),
               "dur": _us(length_ns),
               "args": describe_task(evidence, rank, task, on_path=task in on_path)}  # fmt: skip


def _us(duration_ns: int) -> float:
    return duration_ns / NS_PER_US
