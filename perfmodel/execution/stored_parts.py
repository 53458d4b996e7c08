"""Stored parts: ranks of a saved job that a worker reads from its folder itself.

The driver knows only the outline of such a job. So the worker checks that its ranks can be replayed
and reports their rendezvous members; the driver compares these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from perfmodel.base.errors import ExecutionError, GraphError
from perfmodel.engine.layout import FlatJob, Int64s
from perfmodel.engine.sieve import find_members, number_signatures
from perfmodel.execution.parts import WALKED, Division, JobPart, take_part
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Program
from perfmodel.graph.storage import checksum_of
from perfmodel.graph.stored_programs import StoredPrograms, loaded

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
