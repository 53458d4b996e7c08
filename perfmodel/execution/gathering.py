"""Gathering: the results of blocks put together into one replay.

Rows stand in the order of ranks, as in a replay in one process. Copying lets
go of the interpreter, so blocks are copied side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from perfmodel.engine.advance import NOT_DONE
from perfmodel.engine.layout import Int64s, sequence_counts
from perfmodel.engine.replay import Replay, Timeline
from perfmodel.execution.rank_block import BlockResult
from perfmodel.graph.job import NO_GROUP, JobGraph

COPIERS = 4
"""More threads than that no longer copy faster; memory is the limit."""


def gather_replay(job: JobGraph, results: Sequence[BlockResult]) -> Replay:
    """The replay of *job* from the *results* of its blocks, in the order of their ranks."""
    first = results[0]
    kept, iterations = len(first.timelines), len(first.lane_now_ns)
    vectors = first.lane_now_ns.shape[2]
    end_ns = np.empty((kept, job.task_count, vectors), dtype=np.int64)
    member_ready_ns = np.full((kept, _member_count(job), vectors), NOT_DONE, dtype=np.int64)
    copies: list[Callable[[], None]] = []
    place = 0
    for result in results:
        stop = place + len(result.timelines[0].end_ns)
        for index, timeline in enumerate(result.timelines):
            copies.append(_copy_into(end_ns[index, place:stop], timeline.end_ns))
            member_ready_ns[index, timeline.members] = timeline.member_ready_ns
        place = stop
    with ThreadPoolExecutor(COPIERS) as threads:
        for done in [threads.submit(copy) for copy in copies]:
            done.result()
    return Replay(
        timelines=tuple(
            Timeline(iterations - kept + index, end_ns[index], member_ready_ns[index])
            for index in range(kept)
        ),
        lane_now_ns=np.concatenate([result.lane_now_ns for result in results], axis=1),
    )


def _copy_into(target: Int64s, source: Int64s) -> Callable[[], None]:
    return lambda: np.copyto(target, source)


def _member_count(job: JobGraph) -> int:
    sizes = np.bincount(job.rank_group[job.rank_group != NO_GROUP], minlength=len(job.groups))
    return int((sequence_counts(job) * sizes).sum())
