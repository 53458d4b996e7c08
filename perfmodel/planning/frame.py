"""Frame: everything of a DLRM iteration that a sharding plan does not change.

Plans differ in how long lookups, exchanges and a few small kernels take, and
in which ranks hold no piece at all. Both kinds of rank are condensed to the
tasks that matter; their slots are the same, some of them empty.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import GraphError
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Anchor, Program, Role
from perfmodel.planning.condense import (
    ORIGIN,
    Bools,
    CondensedProgram,
    Int64s,
    choose_kept,
    condense,
)

HOLDER, EMPTY = 0, 1
"""The two kinds of rank: one that holds pieces, and one that holds none."""

CHANGING = (
    "embedding/lookup forward",
    "embedding/update backward",
    "embedding/pooled all_to_all forward",
    "embedding/gradients all_to_all backward",
    "embedding/indices all_to_all",
    "embedding/cast forward",
    "embedding/cast backward",
    "embedding/partial sums forward",
)
"""Operators whose durations follow from the plan; column d of a plan's durations."""

FIXED = -1

Int32s = NDArray[np.int32]
SlotKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Slots of both kinds of rank, as columns for the compiled evaluation.

    Waits of slot s on a rank of kind v are rows `wait_start[v, s]` to
    `wait_start[v, s + 1]`. *changing* is the column of a plan's durations that
    a slot takes, or FIXED; then `fixed_ns[v, s]` holds, by duration vector.
    """

    is_present: Bools
    is_rendezvous: Bools
    changing: Int32s
    fixed_ns: Int64s
    wait_start: Int32s
    wait_slot: Int32s
    wait_is_start: Bools
    wait_distance: Int32s
    wait_lag_ns: Int64s
    lane_slots: Int32s

    @property
    def vector_count(self) -> int:
        """Number of duration vectors of what is fixed; the first is the nominal one."""
        return int(self.fixed_ns.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class _RankProgram:
    """One kind of rank, condensed."""

    program: Program
    durations_ns: Int64s
    changing: Int32s
    condensed: CondensedProgram


def build_frame(priced: PricedJob, durations_ns: Int64s) -> Frame:
    """Condense the two programs of a variant job; *durations_ns* are rows x vectors."""
    job = priced.job
    _check_groups(job)
    found = []
    for rank in (0, job.rank_count - 1):
        program, rows = job.program_of(rank), durations_ns[priced.rows_of_rank(rank)]
        marks = _changing(job, program)
        condensed = condense(program, rows, choose_kept(program, marks != FIXED))
        found.append(_RankProgram(program, rows, marks, condensed))
    keys = [_slot_keys(of_kind.program, of_kind.condensed) for of_kind in found]
    return _fill(_merge(keys, [of_kind.condensed for of_kind in found]), keys, found)


def _check_groups(job: JobGraph) -> None:
    for group in job.groups:
        if len(group.ranks) != job.rank_count:
            raise GraphError(f"group {group.name!r}: plans are compared on groups of all ranks.")
    for program in job.programs:
        if (program.role[program.slot != PLAIN] != Role.BOTH).any():
            raise GraphError("plans are compared on collectives in which all ranks wait.")


def _changing(job: JobGraph, program: Program) -> Int32s:
    """The column of a plan's durations for every task on a device lane, or FIXED."""
    column = {operator: place for place, operator in enumerate(CHANGING)}
    of_origin = np.array(
        [column.get(origin.operator, FIXED) for origin in job.origins], dtype=np.int32
    )
    lanes = program.task_lanes()
    is_device = np.array([lane.kind.is_device for lane in program.lanes], dtype=bool)
    marks: Int32s = np.where(is_device[lanes], of_origin[program.origin], FIXED).astype(np.int32)
    return marks


def _slot_keys(program: Program, found: CondensedProgram) -> dict[SlotKey, int]:
    """Kept tasks by lane, origin and how many of that origin stood before on the lane."""
    lanes = program.task_lanes()
    kept = set(found.tasks)
    counts: Counter[tuple[int, int]] = Counter()
    key_of: dict[int, SlotKey] = {}
    for task in range(program.task_count):
        lane, origin = int(lanes[task]), int(program.origin[task])
        number = counts[lane, origin]
        counts[lane, origin] += 1
        if task in kept:
            key_of[task] = (lane, origin, number)
    return {key_of[task]: task for task in found.tasks}


def _merge(keys: list[dict[SlotKey, int]], condensed: list[CondensedProgram]) -> list[SlotKey]:
    """All slots in an order in which both kinds of rank can be worked off."""
    sources: dict[SlotKey, set[SlotKey]] = {key: set() for of_kind in keys for key in of_kind}
    for of_kind, found in zip(keys, condensed, strict=True):
        key_of = {task: key for key, task in of_kind.items()}
        for key, task in of_kind.items():
            sources[key] |= {
                key_of[moment.task]
                for moment in found.waits[task]
                if moment.task != ORIGIN and moment.distance == 0
            }
    order: list[SlotKey] = []
    done: set[SlotKey] = set()
    while len(order) < len(sources):
        ready = [key for key in sources if key not in done and sources[key] <= done]
        assert ready, "both kinds of rank issue their collectives in one order"
        order += ready
        done |= set(ready)
    return order


def _fill(
    slots: list[SlotKey], keys: list[dict[SlotKey, int]], rank_programs: list[_RankProgram]
) -> Frame:
    place_of = {key: place for place, key in enumerate(slots)}
    vectors = rank_programs[0].durations_ns.shape[1]
    kinds = len(rank_programs)
    is_present = np.zeros((kinds, len(slots)), dtype=bool)
    is_rendezvous = np.zeros(len(slots), dtype=bool)
    changing = np.full(len(slots), FIXED, dtype=np.int32)
    fixed_ns = np.zeros((kinds, len(slots), vectors), dtype=np.int64)
    wait_start = np.zeros((kinds, len(slots) + 1), dtype=np.int32)
    rows: list[tuple[int, bool, int]] = []
    lags: list[Int64s] = []
    for kind, (of_kind, found) in enumerate(zip(keys, rank_programs, strict=True)):
        place_of_task = {task: place_of[key] for key, task in of_kind.items()}
        for place, key in enumerate(slots):
            wait_start[kind, place] = len(rows)
            task = of_kind.get(key)
            if task is None:
                continue
            is_present[kind, place] = True
            is_rendezvous[place] |= bool(found.program.slot[task] != PLAIN)
            changing[place] = max(changing[place], found.changing[task])
            fixed_ns[kind, place] = found.durations_ns[task]
            for moment, lag in sorted(found.condensed.waits[task].items()):
                source = ORIGIN if moment.task == ORIGIN else place_of_task[moment.task]
                rows.append((source, moment.anchor is Anchor.START, moment.distance))
                lags.append(lag)
        wait_start[kind, len(slots)] = len(rows)
    lane_slots = sorted(
        {
            place_of[key]
            for of_kind, found in zip(keys, rank_programs, strict=True)
            for key, task in of_kind.items()
            if task in found.condensed.lane_ends
        }
    )
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Frame(
        is_present=is_present,
        is_rendezvous=is_rendezvous,
        changing=changing,
        fixed_ns=fixed_ns,
        wait_start=wait_start,
        wait_slot=columns[:, 0].astype(np.int32),
        wait_is_start=columns[:, 1].astype(bool),
        wait_distance=columns[:, 2].astype(np.int32),
        wait_lag_ns=np.stack(lags).astype(np.int64),
        lane_slots=np.array(lane_slots, dtype=np.int32),
    )
