"""FlatJob: a job's structure as flat arrays that the compiled pass can walk.

Programs stay shared: a thousand ranks with one program read the same few
kilobytes, so that a big job is limited by writing results, not by reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.job import NO_GROUP, JobGraph
from perfmodel.graph.program import PLAIN, Program

Number = TypeVar("Number", bound=np.generic)
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes8 = NDArray[np.uint8]


class FlatJob(NamedTuple):
    """Flat arrays. Prefix `p` is by program, `r` by rank, `g` by group, none by task or dep."""

    # program -> where its tasks, lanes and rendezvous tasks begin
    p_task: Int64s
    p_lane: Int64s
    p_member: Int64s
    # lane of a program -> its tasks
    lane_first: Int32s
    lane_stop: Int32s
    # task of a program
    task_lane: Int32s
    slot: Int32s
    sequence: Int32s
    role: Bytes8
    dep_start: Int64s
    dep_task: Int32s
    dep_anchor: Bytes8
    dep_distance: Bytes8
    dep_lag_ns: Int64s
    member_task: Int32s
    # rank
    r_id: Int32s
    r_program: Int32s
    r_task: Int64s
    r_lane: Int64s
    r_group: Int32s
    r_position: Int32s
    # lane of a rank -> its rank
    lane_rank: Int32s
    # group
    g_size: Int64s
    g_rendezvous: Int64s
    g_member: Int64s
    g_is_external: Bytes8


def sequence_counts(job: JobGraph) -> Int64s:
    """How many rendezvous each group of *job* holds in one iteration."""
    by_slot = np.zeros((len(job.programs), max(job.rank_group.shape[1], 1)), dtype=np.int64)
    for index, program in enumerate(job.programs):
        members = program.slot != PLAIN
        np.maximum.at(by_slot[index], program.slot[members], program.sequence[members] + 1)
    counts = np.zeros(len(job.groups), dtype=np.int64)
    ranks, slots = np.nonzero(job.rank_group != NO_GROUP)
    np.maximum.at(counts, job.rank_group[ranks, slots], by_slot[job.rank_program[ranks], slots])
    return counts


def max_distance(job: JobGraph) -> int:
    """The longest reach of any dependency into earlier iterations."""
    return max((int(program.dep_distance.max(initial=0)) for program in job.programs), default=0)


def build_layout(job: JobGraph, ranks: Int32s | None = None) -> FlatJob:
    """The layout of the given *ranks* of *job*, or of all.

    Groups and their members keep their numbers whatever the ranks, so that
    blocks of one job agree on every rendezvous and every member. A group that also has members
    elsewhere is external: its rendezvous are resolved outside.
    """
    chosen = np.arange(job.rank_count, dtype=np.int32) if ranks is None else ranks
    used, r_program = np.unique(job.rank_program[chosen], return_inverse=True)
    programs = [job.programs[int(index)] for index in used]
    task_counts = np.array([program.task_count for program in programs], dtype=np.int64)
    lane_counts = np.array([len(program.lanes) for program in programs], dtype=np.int64)
    members = [np.flatnonzero(program.slot != PLAIN).astype(np.int32) for program in programs]
    r_group = np.ascontiguousarray(job.rank_group[chosen])
    g_size = _endpoint_counts(job.rank_group, len(job.groups))
    sequences = sequence_counts(job)
    return FlatJob(
        p_task=_starts(task_counts),
        p_lane=_starts(lane_counts),
        p_member=_starts(np.array([len(of_program) for of_program in members], dtype=np.int64)),
        lane_first=_join([program.lane_start[:-1] for program in programs], np.int32),
        lane_stop=_join([program.lane_start[1:] for program in programs], np.int32),
        task_lane=_join([program.task_lanes() for program in programs], np.int32),
        slot=_join([program.slot for program in programs], np.int32),
        sequence=_join([program.sequence for program in programs], np.int32),
        role=_join([program.role for program in programs], np.uint8),
        dep_start=_dep_starts(programs),
        dep_task=_join([program.dep_task for program in programs], np.int32),
        dep_anchor=_join([program.dep_anchor for program in programs], np.uint8),
        dep_distance=_join([program.dep_distance for program in programs], np.uint8),
        dep_lag_ns=_join([program.dep_lag_ns for program in programs], np.int64),
        member_task=_join(members, np.int32),
        r_id=chosen,
        r_program=r_program.astype(np.int32),
        r_task=_starts(task_counts[r_program]),
        r_lane=_starts(lane_counts[r_program]),
        r_group=r_group,
        r_position=np.ascontiguousarray(_positions(job.rank_group, len(job.groups))[chosen]),
        lane_rank=np.repeat(np.arange(len(chosen), dtype=np.int32), lane_counts[r_program]),
        g_size=g_size,
        g_rendezvous=_starts(sequences),
        g_member=_starts(sequences * g_size),
        g_is_external=(_endpoint_counts(r_group, len(job.groups)) < g_size).astype(np.uint8),
    )


def _starts(counts: Int64s) -> Int64s:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _join(parts: Sequence[NDArray[Any]], dtype: type[Number]) -> NDArray[Number]:
    joined = np.concatenate(parts) if parts else np.empty(0)
    return joined.astype(dtype)


def _dep_starts(programs: list[Program]) -> Int64s:
    counts = [np.diff(program.dep_start) for program in programs]
    return _starts(_join(counts, np.int64))


def _endpoint_counts(rank_group: Int32s, group_count: int) -> Int64s:
    return np.bincount(rank_group[rank_group != NO_GROUP], minlength=group_count).astype(np.int64)


def _positions(rank_group: Int32s, group_count: int) -> Int32s:
    """The number of every endpoint among those of its group, in order of rank and slot."""
    flat = rank_group.ravel()
    places = np.flatnonzero(flat != NO_GROUP)
    order = places[np.argsort(flat[places], kind="stable")]
    starts = _starts(_endpoint_counts(rank_group, group_count))
    positions = np.full(len(flat), NO_GROUP, dtype=np.int32)
    positions[order] = np.arange(len(order)) - starts[flat[order]]
    return positions.reshape(rank_group.shape)
