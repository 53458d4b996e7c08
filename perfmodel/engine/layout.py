"""FlatJob: the structure of a job as flat arrays for the compiled pass.

Programs stay shared: a thousand ranks with one program read the same few kilobytes, so a large job
is limited by writing results. Each column of all programs is one array, and only columns that the
pass reads are laid out. Members of a rendezvous have a short table of their own, because most tasks
are not members.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.audit import check_job
from perfmodel.graph.job import NO_GROUP, JobGraph
from perfmodel.graph.program import COLUMN_TYPES, PLAIN, Lane, Program, Programs, offsets

Number = TypeVar("Number", bound=np.generic)
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes8 = NDArray[np.uint8]


class FlatJob(NamedTuple):
    """Flat arrays. Prefix `p` is by program, `r` by rank, `g` by group, `m` by member of a program.

    A program has one more row of *dep_start* than tasks. Its dependencies are counted from `p_dep`,
    and *member* from `p_member`.
    """

    # program -> first row of its tasks, lanes, members and dependencies
    p_task: Int64s
    p_lane: Int64s
    p_member: Int64s
    p_dep: Int64s
    # lane of a program -> its tasks
    lane_first: Int32s
    lane_stop: Int32s
    # task of a program: its number among the members, or PLAIN
    member: Int32s
    dep_start: Int32s
    dep_task: Int32s
    dep_anchor: Bytes8
    dep_distance: Bytes8
    dep_lag_ns: Int64s
    m_slot: Int32s
    m_sequence: Int32s
    m_role: Bytes8
    # rank
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


class Places(NamedTuple):
    """Rows of ranks, groups and their members in the columns of a replay."""

    r_task: Int64s
    r_position: Int32s
    g_size: Int64s
    g_member: Int64s


def build_places(job: JobGraph) -> Places:
    """The rows of *job*, without laying out its programs."""
    g_size = endpoint_counts(job.rank_group, len(job.groups))
    return Places(
        r_task=offsets(job.task_counts()),
        r_position=_positions(job.rank_group, len(job.groups)),
        g_size=g_size,
        g_member=offsets(sequence_counts(job) * g_size),
    )


class LaidOutPrograms(Programs):
    """The programs of a layout. It has no *lanes*, so they are given, and no labels or ops."""

    def __init__(self, layout: FlatJob, lanes: Sequence[tuple[Lane, ...]]) -> None:
        self._layout = layout
        self._lanes = lanes
        self._last: tuple[int, Program] | None = None

    def __len__(self) -> int:
        return len(self._lanes)

    def make(self, index: int) -> Program:
        """Program number *index*; the last one is cached."""
        if self._last is None or self._last[0] != index:
            self._last = index, self._build(index)
        return self._last[1]

    def _build(self, index: int) -> Program:
        s = self._layout
        first, stop = int(s.p_task[index]), int(s.p_task[index + 1])
        deps = slice(int(s.p_dep[index]), int(s.p_dep[index + 1]))
        lanes = slice(int(s.p_lane[index]), int(s.p_lane[index + 1]))
        place = s.member[first:stop]
        is_member = place != PLAIN
        members = s.p_member[index] + place[is_member]
        slot, sequence = (np.full(stop - first, PLAIN, dtype=np.int32) for _ in range(2))
        role = np.zeros(stop - first, dtype=np.uint8)
        slot[is_member], sequence[is_member] = s.m_slot[members], s.m_sequence[members]
        role[is_member] = s.m_role[members]
        nothing = np.empty(0, dtype=np.int32)
        return Program(
            lanes=self._lanes[index],
            lane_start=np.append(s.lane_first[lanes], np.int32(stop - first)),
            # The number of ops is the number of tasks.
            op=slot,
            label=nothing,
            origin=nothing,
            slot=slot,
            sequence=sequence,
            role=role,
            dep_start=s.dep_start[first + index : stop + index + 1],
            dep_task=s.dep_task[deps],
            dep_anchor=s.dep_anchor[deps],
            dep_distance=s.dep_distance[deps],
            dep_lag_ns=s.dep_lag_ns[deps],
        )


def sequence_counts(job: JobGraph) -> Int64s:
    """Number of rendezvous of each group of *job* in one iteration."""
    by_slot = np.zeros((len(job.programs), max(job.rank_group.shape[1], 1)), dtype=np.int64)
    for index, program in enumerate(job.programs):
        members = np.flatnonzero(program.slot != PLAIN)
        np.maximum.at(by_slot[index], program.slot[members], program.sequence[members] + 1)
    return _group_maxima(job.rank_group, job.rank_program, by_slot, len(job.groups))


def max_distance(job: JobGraph) -> int:
    """The largest distance of a dependency into earlier iterations."""
    return max((int(program.dep_distance.max(initial=0)) for program in job.programs), default=0)


def lay_out_sound(job: JobGraph) -> FlatJob:
    """The layout of *job*; an error if it cannot run."""
    check_job(job)
    return build_layout(job)


def build_layout(job: JobGraph, external: NDArray[np.bool_] | None = None) -> FlatJob:
    """The layout of *job*. Groups that are *external* also have members in other blocks.

    Rendezvous of an external group are resolved outside.
    """
    used, r_program = np.unique(job.rank_program, return_inverse=True)
    programs = [job.programs[int(index)] for index in used]
    columns = _lay_out(programs)
    task_counts = np.array([program.task_count for program in programs], dtype=np.int64)
    lane_counts = np.array([len(program.lanes) for program in programs], dtype=np.int64)
    p_task = offsets(task_counts)
    slot = columns["slot"]
    members = np.flatnonzero(slot != PLAIN)
    p_member = np.searchsorted(members, p_task)
    m_slot = slot[members]
    counts = np.diff(p_member)
    local = members - np.repeat(p_task[:-1], counts)
    # The column of slots becomes that of members: PLAIN has the same value in both.
    slot[members] = np.arange(len(members)) - np.repeat(p_member[:-1], counts)
    rows = [local[first:stop] for first, stop in pairwise(p_member)]
    m_sequence = _pick([program.sequence for program in programs], rows, np.int32)
    by_slot = np.zeros((len(programs), max(job.rank_group.shape[1], 1)), dtype=np.int64)
    flat = np.repeat(np.arange(len(programs)) * by_slot.shape[1], counts) + m_slot
    # One flat index, because numpy is a hundred times slower with two.
    np.maximum.at(by_slot.ravel(), flat, m_sequence.astype(np.int64) + 1)
    g_size = endpoint_counts(job.rank_group, len(job.groups))
    sequences = _group_maxima(job.rank_group, r_program, by_slot, len(job.groups))
    return FlatJob(
        p_task=p_task,
        p_lane=offsets(lane_counts),
        p_member=p_member,
        p_dep=offsets([len(program.dep_task) for program in programs]),
        lane_first=_join([program.lane_start[:-1] for program in programs], np.int32),
        lane_stop=_join([program.lane_start[1:] for program in programs], np.int32),
        member=slot,
        dep_start=columns["dep_start"],
        dep_task=columns["dep_task"],
        dep_anchor=columns["dep_anchor"],
        dep_distance=columns["dep_distance"],
        dep_lag_ns=columns["dep_lag_ns"],
        m_slot=m_slot,
        m_sequence=m_sequence,
        m_role=_pick([program.role for program in programs], rows, np.uint8),
        r_program=r_program.astype(np.int32),
        r_task=offsets(task_counts[r_program]),
        r_lane=offsets(lane_counts[r_program]),
        r_group=np.ascontiguousarray(job.rank_group, dtype=np.int32),
        r_position=_positions(job.rank_group, len(job.groups)),
        lane_rank=np.repeat(np.arange(job.rank_count, dtype=np.int32), lane_counts[r_program]),
        g_size=g_size,
        g_rendezvous=offsets(sequences),
        g_member=offsets(sequences * g_size),
        g_is_external=np.zeros(len(job.groups), dtype=np.uint8)
        if external is None
        else external.astype(np.uint8),
    )


LAID_OUT = ("slot", "dep_start", "dep_task", "dep_lag_ns", "dep_anchor", "dep_distance")
ALIGNMENT_BYTES = 64
SMALL_BYTES = 2**18
BIG_BYTES = 2**22
"""From this size on numpy requests huge pages."""


def _lay_out(programs: Sequence[Program]) -> dict[str, NDArray[Any]]:
    """The columns that the pass reads, of all *programs*, in one block of memory."""
    parts = {name: [getattr(program, name) for program in programs] for name in LAID_OUT}
    lengths = {name: sum(map(len, of_column)) for name, of_column in parts.items()}
    sizes = [lengths[name] * np.dtype(COLUMN_TYPES[name]).itemsize for name in LAID_OUT]
    padded = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes]
    memory = in_big_pages(sum(padded), np.uint8)
    columns, place = {}, 0
    for name, size, step in zip(LAID_OUT, sizes, padded, strict=True):
        column = memory[place : place + size].view(COLUMN_TYPES[name])
        if parts[name]:
            np.concatenate(parts[name], out=column, casting="unsafe")
        columns[name] = column
        place += step
    return columns


def in_big_pages(count: int, dtype: type[Number]) -> NDArray[Number]:
    """An uninitialised array of *count* numbers.

    numpy requests huge pages for large arrays. Medium arrays are cut from a large one, because
    allocating small pages takes longer than filling them; untouched memory costs nothing.
    """
    size_bytes = count * np.dtype(dtype).itemsize
    room_bytes = 2 * BIG_BYTES if SMALL_BYTES < size_bytes < 2 * BIG_BYTES else size_bytes
    return np.empty(room_bytes, dtype=np.uint8)[:size_bytes].view(dtype)


def _pick(
    columns: Sequence[NDArray[Any]], rows: Sequence[Int64s], dtype: type[Number]
) -> NDArray[Number]:
    """Some rows of a column of every program."""
    return _join([column[of] for column, of in zip(columns, rows, strict=True)], dtype)


def _group_maxima(
    rank_group: Int32s, rank_program: NDArray[Any], by_slot: Int64s, group_count: int
) -> Int64s:
    """The largest of *by_slot* (programs x slots) among the endpoints of every group."""
    counts = np.zeros(group_count, dtype=np.int64)
    ranks, slots = np.nonzero(rank_group != NO_GROUP)
    np.maximum.at(counts, rank_group[ranks, slots], by_slot[rank_program[ranks], slots])
    return counts


def _join(parts: Sequence[NDArray[Any]], dtype: type[Number]) -> NDArray[Number]:
    """Always a new, writable array: numba would compile again for any other."""
    if not parts:
        return np.empty(0, dtype=dtype)
    return np.concatenate(parts, dtype=dtype, casting="unsafe")


def endpoint_counts(rank_group: Int32s, group_count: int) -> Int64s:
    """Number of endpoints of each group among the ranks of *rank_group*."""
    return np.bincount(rank_group[rank_group != NO_GROUP], minlength=group_count).astype(np.int64)


def _positions(rank_group: Int32s, group_count: int) -> Int32s:
    """The number of every endpoint among those of its group, in order of rank and slot."""
    flat = rank_group.ravel()
    places = np.flatnonzero(flat != NO_GROUP)
    order = places[np.argsort(flat[places], kind="stable")]
    starts = offsets(endpoint_counts(rank_group, group_count))
    positions = np.full(len(flat), NO_GROUP, dtype=np.int32)
    positions[order] = np.arange(len(order)) - starts[flat[order]]
    return positions.reshape(rank_group.shape)
