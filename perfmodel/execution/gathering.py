"""Gathering: the results of blocks put together into one replay.

Rows stand in the order of ranks, as in a replay in one process. What tasks of
a block did stays where the block left it, in the object store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.engine.advance import NOT_DONE
from perfmodel.engine.layout import sequence_counts
from perfmodel.engine.replay import Replay, Timeline
from perfmodel.execution.rank_block import BlockResult
from perfmodel.graph.job import NO_GROUP, JobGraph


def gather_replay(job: JobGraph, results: Sequence[BlockResult]) -> Replay:
    """The replay of *job* from the *results* of its blocks, in the order of their ranks."""
    first = results[0]
    kept, iterations = len(first.timelines), len(first.lane_now_ns)
    vectors = first.lane_now_ns.shape[2]
    member_ready_ns = np.full((kept, _member_count(job), vectors), NOT_DONE, dtype=np.int64)
    for result in results:
        for index, timeline in enumerate(result.timelines):
            member_ready_ns[index, timeline.members] = timeline.member_ready_ns
    return Replay(
        timelines=tuple(
            Timeline(
                iterations - kept + index,
                tuple(result.timelines[index].end_ns for result in results),
                member_ready_ns[index],
            )
            for index in range(kept)
        ),
        lane_now_ns=np.concatenate([result.lane_now_ns for result in results], axis=1),
    )


def _member_count(job: JobGraph) -> int:
    sizes = np.bincount(job.rank_group[job.rank_group != NO_GROUP], minlength=len(job.groups))
    return int((sequence_counts(job) * sizes).sum())
