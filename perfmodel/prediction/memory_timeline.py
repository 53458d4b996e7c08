"""Memory over time: what passes keep, as they begin and end in a replay.

A part of the model is allocated when its forward pass starts and freed when its backward pass
ends. Everything else is counted at its peak throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfmodel.engine.layout import Int64s
from perfmodel.graph.job import JobGraph, KeptBytes, RankMemory
from perfmodel.graph.program import LaneKind, Program
from perfmodel.prediction.explain import Evidence


class MemoryCurve(NamedTuple):
    """Bytes from each of several moments on; the first is the start of the window."""

    moments_ns: Int64s
    size_bytes: Int64s


def memory_over_time(evidence: Evidence, rank: int, memory: RankMemory) -> MemoryCurve | None:
    """What *rank* of the folded job holds during the window; None where that is not known."""
    changes = _find_changes(evidence.job, evidence.job.program_of(rank), memory)
    if changes is None:
        return None
    history, window = evidence.history, evidence.window
    task, is_end, change = changes
    moments = [
        np.where(is_end, history.end_ns(one, rank)[task], history.start_ns(one, rank)[task])
        for one in history.iterations
    ]
    moments_ns = np.concatenate(moments).clip(window.from_ns)
    # Of equal moments, what is freed comes first.
    order = np.lexsort((np.tile(change, len(moments)), moments_ns))
    steady = sum(part.size_bytes for part in memory.parts if not part.is_kept)
    levels = steady + np.cumsum(np.tile(change, len(moments))[order])
    moments_ns = moments_ns[order]
    is_last = np.append(moments_ns[1:] != moments_ns[:-1], True) & (moments_ns < window.to_ns)
    at_ns, levels = moments_ns[is_last] - window.from_ns, levels[is_last]
    if not len(at_ns) or at_ns[0]:
        at_ns, levels = np.insert(at_ns, 0, 0), np.insert(levels, 0, steady)
    return MemoryCurve(at_ns, levels)


def _find_changes(
    job: JobGraph, program: Program, memory: RankMemory
) -> tuple[Int64s, Int64s, Int64s] | None:
    """Tasks, whether the change is at their end, and bytes; None if passes cannot be paired."""
    kinds = [lane.kind for lane in program.lanes]
    if not memory.kept or LaneKind.COMPUTE not in kinds:
        return None
    lane = kinds.index(LaneKind.COMPUTE)
    tasks = np.arange(program.lane_start[lane], program.lane_start[lane + 1])
    origins = program.origin[tasks].astype(np.int64)
    found = [*_iter_passes(job, tasks, origins, memory.kept)]
    forward = {part: spans for part, is_forward, spans in found if is_forward}
    backward = {part: spans for part, is_forward, spans in found if not is_forward}
    if not forward or any(len(forward[one]) != len(backward.get(one, ())) for one in forward):
        return None
    rows: list[tuple[int, int, int]] = []
    for part, spans in forward.items():
        rows += [(first, 0, part.size_bytes) for first, _ in spans]
        for first, last in backward[part]:
            if part.recomputed_bytes:
                rows.append((first, 0, part.recomputed_bytes))
            rows.append((last, 1, -part.size_bytes - part.recomputed_bytes))
    task, is_end, change = np.array(rows, dtype=np.int64).T
    return task, is_end, change


def _iter_passes(
    job: JobGraph, tasks: Int64s, origins: Int64s, kept: tuple[KeptBytes, ...]
) -> Iterator[tuple[KeptBytes, bool, list[tuple[int, int]]]]:
    """The first and the last task of every pass of each part, forward and backward.

    A pass ends where the kernels of the operator that ends all of them do.
    """
    of_part = {part.part: part for part in kept}
    members: dict[tuple[KeptBytes, bool], list[int]] = {}
    for number in np.unique(origins[origins >= 0]).tolist():
        name, _, way = job.origins[number].operator.rpartition(" ")
        first, _, rest = name.partition("/")
        part = of_part.get(name) or of_part.get(first)
        if part is not None and way in ("forward", "backward"):
            is_forward = way == "forward" and not rest.startswith("recompute/")
            members.setdefault((part, is_forward), []).append(number)
    for (part, is_forward), numbers in members.items():
        places = np.flatnonzero(np.isin(origins, numbers))
        is_closing = origins[places] == origins[places[-1]]
        goes_on = np.append(is_closing[1:] & (np.diff(places) == 1), False)
        ends = np.flatnonzero(is_closing & ~goes_on)
        firsts = np.insert(ends[:-1] + 1, 0, 0)
        spans = zip(tasks[places[firsts]].tolist(), tasks[places[ends]].tolist(), strict=True)
        yield part, is_forward, [*spans]
