"""Stored parts: ranks of a saved job that a worker reads from its folder itself.

The driver knows only the outline of such a job. So the worker checks that its ranks can be replayed
and reports their rendezvous members; the driver compares these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from perfmodel.base.compiling import compiled
from perfmodel.base.errors import ExecutionError, GraphError
from perfmodel.engine.layout import Bytes8, FlatJob, Int64s
from perfmodel.execution.parts import WALKED, Division, JobPart, take_part
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Op, signature_of
from perfmodel.graph.program import PLAIN, Program
from perfmodel.graph.storage import checksum_of
from perfmodel.graph.stored_programs import StoredPrograms, loaded

SIGNALS = 1
AGAIN = "`perfmodel predict --executor serial` reads all of it and says where."


@dataclass(frozen=True, slots=True, eq=False)
class StoredJob:
    """What workers receive about a job in a *folder*: its outline, and how they identify it.

    *op_signature* has for every op a number for what partners in a rendezvous must agree on.
    """

    folder: Path
    checksum: str
    outline: JobGraph
    op_signature: Int64s
    word_counts: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPart:
    """A part as a worker has read it; *signature* is by member of its programs."""

    part: JobPart
    durations: DurationTable
    signature: Int64s


def find_members(layout: FlatJob, signature: Int64s) -> Int64s | None:
    """Check every rendezvous of *layout*; None if it cannot be replayed.

    *signature* numbers, for each member of every program, the collective that partners must agree
    on. Rows of the result are by rendezvous: that number plus one, and how many members signal.
    """
    # Wrong sequence numbers could request unbounded memory.
    if layout.g_member[-1] != np.diff(layout.p_member)[layout.r_program].sum():
        return None
    seen = np.zeros(int(layout.g_member[-1]), dtype=np.uint8)
    found = np.zeros((int(layout.g_rendezvous[-1]), 2), dtype=np.int64)
    if _is_walkable(layout) and _meets_alike(layout, signature, seen, found):
        return found
    return None


def number_signatures(ops: Iterable[Op]) -> Int64s:
    """Number the collectives of *ops* that partners in a rendezvous must agree on."""
    numbers: dict[object, int] = {}
    numbered = [numbers.setdefault(signature_of(op), len(numbers)) for op in ops]
    return np.array(numbered, dtype=np.int64)


@compiled
def _is_walkable(s: FlatJob) -> bool:
    """Whether dependencies are inside their program, in order, and none is on its own task."""
    for program in range(len(s.p_task) - 1):
        tasks = s.p_task[program + 1] - s.p_task[program]
        first = s.p_task[program] + program
        deps = s.p_dep[program + 1] - s.p_dep[program]
        stop = s.dep_start[first]
        if stop != 0 or s.dep_start[first + tasks] != deps:
            return False
        for task in range(tasks):
            start, stop = stop, s.dep_start[first + task + 1]
            if start > stop:
                return False
            for row in range(s.p_dep[program] + start, s.p_dep[program] + stop):
                source = s.dep_task[row]
                if source < 0 or source >= tasks or s.dep_lag_ns[row] < 0:
                    return False
                if source == task and s.dep_distance[row] == 0:
                    return False
    return True


@compiled
def _meets_alike(s: FlatJob, signature: Int64s, seen: Bytes8, found: Int64s) -> bool:
    """Whether every endpoint joins every rendezvous once, all with one signature.

    *found* is by rendezvous: its signature plus one, and how many members signal.
    """
    for rank in range(len(s.r_program)):
        program = s.r_program[rank]
        for i in range(s.p_member[program], s.p_member[program + 1]):
            group, sequence = s.r_group[rank, s.m_slot[i]], s.m_sequence[i]
            if group < 0 or sequence < 0:
                return False
            rendezvous = s.g_rendezvous[group] + sequence
            if rendezvous >= s.g_rendezvous[group + 1]:
                return False
            member = (
                s.g_member[group] + sequence * s.g_size[group] + s.r_position[rank, s.m_slot[i]]
            )
            if seen[member]:
                return False
            seen[member] = 1
            if found[rendezvous, 0] == 0:
                found[rendezvous, 0] = signature[i] + 1
            if found[rendezvous, 0] != signature[i] + 1:
                return False
            found[rendezvous, 1] += s.m_role[i] & SIGNALS
    return True


def store_job(job: JobGraph) -> StoredJob | None:
    """What workers receive about *job*; None if its programs are here."""
    programs = job.programs
    if not isinstance(programs, StoredPrograms):
        return None
    folder = programs.folder.resolve()
    outline = replace(
        job, ops=(), labels=(), origins=(), programs=StoredPrograms(folder, programs.outlines)
    )
    return StoredJob(
        folder,
        checksum_of(folder),
        outline,
        number_signatures(job.ops),
        (len(job.labels), len(job.origins)),
    )


def load_part(stored: StoredJob, op_ns: DurationTable, ranks: range, host: str) -> LoadedPart:
    """The part of *stored* that *ranks* make, read on *host*; *op_ns* is by op."""
    try:
        found = checksum_of(stored.folder)
    except (GraphError, OSError) as error:
        raise _not_here(stored, host, str(error)) from None
    if found != stored.checksum:
        raise _not_here(stored, host, "another job is there")
    used, place = np.unique(
        stored.outline.rank_program[ranks.start : ranks.stop], return_inverse=True
    )
    try:
        programs = [_read(stored, int(index)) for index in used]
    except (KeyError, TypeError, ValueError, pa.ArrowException) as fault:
        raise GraphError(
            f"{stored.folder}: not a readable job ({type(fault).__name__}: {fault})."
        ) from None
    rows = [op_ns.values_ns[program.op] for program in programs]
    starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
    signatures = [stored.op_signature[one.op[one.slot != PLAIN]] for one in programs]
    # Ranks of other blocks keep no program; take_part does not look at them.
    rank_program = np.zeros_like(stored.outline.rank_program)
    rank_program[ranks.start : ranks.stop] = place
    whole = replace(stored.outline, programs=programs, rank_program=rank_program)
    return LoadedPart(
        part=take_part(whole, ranks),
        durations=DurationTable(np.concatenate(rows), starts[place].astype(np.int64)),
        signature=np.concatenate(signatures),
    )


def find_own_members(loaded_part: LoadedPart, layout: FlatJob, ranks: range) -> Int64s:
    """What *ranks* bring to rendezvous with others: rows of group, sequence, what, whether signal.

    Raises if they cannot be replayed.
    """
    met = find_members(layout, loaded_part.signature)
    group = np.repeat(np.arange(len(layout.g_size)), np.diff(layout.g_rendezvous))
    is_external = layout.g_is_external[group] > 0
    if met is None or not (met[~is_external, 1] > 0).all():
        raise GraphError(
            f"ranks {ranks.start}-{ranks.stop - 1}: not a valid job, so it cannot be replayed. "
            f"{AGAIN}"
        )
    sequence = np.arange(len(group)) - layout.g_rendezvous[group]
    rows = np.column_stack([loaded_part.part.groups[group], sequence, met[:, 0], met[:, 1] > 0])
    return rows[is_external].astype(np.int64)


def check_members(said: Sequence[Int64s | None], division: Division, job: JobGraph) -> None:
    """Raise unless the blocks of *job* bring the same to all rendezvous that cross them."""
    reported = [rows for rows in said if rows is not None]
    if not any(len(rows) for rows in reported):
        return
    rows = np.concatenate(reported)
    keys, place, counts = np.unique(rows[:, :2], axis=0, return_inverse=True, return_counts=True)
    place, what = place.reshape(-1), rows[:, 2]
    least, most = np.full(len(keys), what.max()), np.zeros(len(keys), dtype=np.int64)
    np.minimum.at(least, place, what)
    np.maximum.at(most, place, what)
    signals = np.bincount(place, weights=rows[:, 3], minlength=len(keys))
    expected = division.has_part.sum(axis=0)[keys[:, 0]]
    wrong = np.flatnonzero((counts != expected) | (least != most) | (signals == 0))
    if len(wrong):
        group, sequence = keys[wrong[0]].tolist()
        raise GraphError(
            f"group {job.groups[group].name!r}: its members do not make the same collectives in "
            f"the same order, with one that signals; the first that differs is #{sequence}. {AGAIN}"
        )


def _read(stored: StoredJob, index: int) -> Program:
    """A program with what is walked and what it costs, every number of it one of something."""
    program = stored.outline.programs[index]
    label_count, origin_count = stored.word_counts
    limits = {
        "op": (0, len(stored.op_signature)),
        "label": (0, label_count),
        "origin": (-1, origin_count),
        "slot": (PLAIN, stored.outline.rank_group.shape[1]),
    }
    for name, (least, stop) in limits.items():
        column = getattr(program, name)
        if not least <= column.min() <= column.max() < stop:
            raise ValueError(f"column {name} of program {index} must be {least} to {stop - 1}")
    return loaded(program, (*WALKED, "op"))


def _not_here(stored: StoredJob, host: str, why: str) -> ExecutionError:
    return ExecutionError(
        f"ray: the worker on {host} cannot read {stored.folder} as this process does ({why}). Put "
        "the job where all machines see it under this name, or use --executor serial."
    )
