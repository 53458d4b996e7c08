"""Fusion: one kernel out of several.

Kernels are joined where they follow each other on a stream and none but the first waits for
another stream; the launch of the first one is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from perfmodel.extensions.whatif.drafts import ProgramDraft
from perfmodel.extensions.whatif.editing import Found
from perfmodel.extensions.whatif.recosting import retime
from perfmodel.graph.ops import Fixed, MemoryBound, duration_of
from perfmodel.graph.program import NO_ORIGIN, PLAIN


class BytesWord(Enum):
    """Which bytes a merged kernel moves: of the first, read first and written last, or all.

    Those of an update are each gradient, parameter and state once, where that is known.
    """

    FIRST = "first"
    OUTER = "outer"
    SUM = "sum"
    UPDATE = "update"


def merge(
    program: ProgramDraft,
    found: Found,
    *,
    name: str,
    traffic: float = 1.0,
    moves: BytesWord = BytesWord.FIRST,
    alike: bool = False,
    between: bool = False,
) -> None:
    """Runs of the kernels are one each, which takes *traffic* times the sum of their times.

    Their names begin with *name*. With *alike* only kernels of one name are merged; with
    *between* host work between their launches is removed. A kernel that moves `outer` bytes
    takes time in proportion to them.
    """
    runs = find_runs(program, found)
    if alike:
        runs = [part for run in runs for part in _by_name(program, run)]
    runs = [run for run in runs if len(run) > 1]
    waiters = program.waiters() if between else {}
    gone = dict.fromkeys(
        one for run in runs if between for one in _host_between(program, run, waiters)
    )
    for run in runs:
        parts = stated_parts(program, run)
        if moves is BytesWord.UPDATE:
            traffic = _update_traffic(program, run, parts)
        program.set_op(run[0], _join(parts, name, traffic, moves))
    keep_first(program, runs, unneeded=gone)


def _join(parts: Sequence[Fixed], name: str, traffic: float, moves: BytesWord) -> Fixed:
    total_ns = sum(part.duration_ns for part in parts)
    works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
    named = replace(parts[0], name=f"{name} {parts[0].name}")
    if moves is BytesWord.FIRST or len(works) < len(parts):
        return retime(named, total_ns * traffic)
    read, written = (sum(getattr(work, key) for work in works) for key in _SIZES)
    if moves in (BytesWord.SUM, BytesWord.UPDATE):
        sizes = {"read_bytes": round(read * traffic), "write_bytes": round(written * traffic)}
        return retime(named, total_ns * traffic, work=replace(works[0], **sizes))
    work = replace(works[0], write_bytes=works[-1].write_bytes)
    left = work.read_bytes + work.write_bytes
    return retime(named, total_ns * left / max(read + written, 1), work=work)


_SIZES = ("read_bytes", "write_bytes")
_ADAM_WORDS = 7
"""Gradient, parameter and two moments are read, all but the gradient written."""


def _update_traffic(program: ProgramDraft, run: Sequence[int], parts: Sequence[Fixed]) -> float:
    """The share of the bytes of separate kernels that one kernel of an update moves.

    Adam ends with `addcdiv` of every parameter, which shows their bytes; other updates keep all.
    """
    works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
    if len(works) < len(parts):
        return 1.0
    ending = [
        work.write_bytes
        for number, work in zip(run, works, strict=True)
        if "addcdiv" in _words_of(program, number)
    ]
    moved = sum(work.read_bytes + work.write_bytes for work in works)
    return min(_ADAM_WORDS * sum(ending) / moved, 1.0) if ending and moved else 1.0


def _words_of(program: ProgramDraft, number: int) -> str:
    """The label of a task and its operator."""
    task, job = program.tasks[number], program.draft.job
    operator = job.origins[task.origin].operator if task.origin != NO_ORIGIN else ""
    return f"{program.draft.labels[task.label]} {operator}"


def find_runs(program: ProgramDraft, found: Iterable[int]) -> list[list[int]]:
    """Neighbours on a lane; one that waits for another stream starts a new run."""
    lanes = program.program.task_lanes()
    runs: list[list[int]] = []
    for number in found:
        is_next = bool(runs) and runs[-1][-1] == number - 1 and lanes[number] == lanes[number - 1]
        if is_next and not _waits_for_stream(program, number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def keep_first(
    program: ProgramDraft, runs: Sequence[Sequence[int]], *, unneeded: Iterable[int] = ()
) -> None:
    """Remove all kernels of *runs* but the first of each, their launches and all *unneeded*."""
    targets = {number: run[0] for run in runs for number in run[1:]}
    program.merge(targets, unneeded=unneeded)


def _waits_for_stream(program: ProgramDraft, number: int) -> bool:
    """Whether a task waits for anything but its launch and its own lane."""
    launch, lane = program.launch_of(number), program.tasks[number].lane
    return any(
        dep.task != launch and (program.tasks[dep.task].lane != lane or dep.distance > 0)
        for dep in program.tasks[number].after
    )


def _host_between(
    program: ProgramDraft, run: Sequence[int], waiters: Mapping[int, Sequence[int]]
) -> list[int]:
    """Host work from the launch of the first kernel of *run* to that of the last.

    Tasks that wait for the device, or that others wait for, serve more than these kernels.
    """
    launches = [one for number in run if (one := program.launch_of(number)) is not None]
    if not launches:
        return []
    lane, own = program.lane_tasks[program.tasks[launches[0]].lane], set(launches)
    first = lane.index(launches[0])
    last = max(place for place, number in enumerate(lane) if number in own)
    return [
        number
        for number in lane[first + 1 : last]
        if not waiters[number]
        and program.tasks[number].slot == PLAIN
        and not program.tasks[number].after
    ]


def stated_parts(program: ProgramDraft, run: Sequence[int]) -> list[Fixed]:
    """The ops of *run*, which must state their durations."""
    ops = [program.op(number) for number in run]
    return [op for op in ops if duration_of(op) >= 0 and isinstance(op, Fixed)]


def _by_name(program: ProgramDraft, run: Sequence[int]) -> list[list[int]]:
    named: dict[str, list[int]] = {}
    for number, op in zip(run, stated_parts(program, run), strict=True):
        named.setdefault(op.name, []).append(number)
    return list(named.values())
