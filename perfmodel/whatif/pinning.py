"""Pinning: every task of a job gets a stated duration and remembers its work.

What-ifs change durations, so a job made of shapes is priced first. Ranks with different prices
for the same program get programs of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import Bound, CodeColumn
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.graph.durations import DurationTable, OpDurations, build_shared_durations
from perfmodel.graph.job import JobGraph, Origin
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import NO_ORIGIN, Program
from perfmodel.graph.stored_programs import StoredPrograms
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.whatif.drafts import JobDraft
from perfmodel.whatif.selection import duration_of, durations_of, names_of
from topologies import Cluster, build_cluster, load_topology

DEFAULT_STACK = "pytorch_eager"


@dataclass(frozen=True, slots=True)
class PricingMachine:
    """A topology by name or file, with as many hosts as the ranks of a job need.

    *hosts* spreads the ranks over that many hosts instead.
    """

    topology: str
    hosts: int | None = None
    stack: str = DEFAULT_STACK
    calibration: tuple[str, ...] = ()

    def cluster(self, rank_count: int) -> Cluster:
        """The machine with room for *rank_count* ranks."""
        return _build(self.topology, self.hosts, rank_count, self.calibration)

    def load_stack(self) -> SoftwareStack:
        """The software that runs on it."""
        return load_stack(self.stack)


@lru_cache(maxsize=16)
def _build(
    topology: str, hosts: int | None, rank_count: int, calibration: tuple[str, ...]
) -> Cluster:
    loaded = load_topology(topology, calibrations=calibration)
    needed = -(-rank_count // loaded.gpus_per_host) if hosts is None else hosts
    return build_cluster(loaded, hosts=needed, ranks_per_host=-(-rank_count // needed))


def is_pinned(job: JobGraph) -> bool:
    """Whether every task of *job* states its duration."""
    if all(isinstance(op, Fixed) for op in job.ops):
        return True
    used = {int(op) for program in job.programs for op in np.unique(program.op)}
    return all(isinstance(job.ops[op], Fixed) for op in used)


def pin_job(job: JobGraph, machine: PricingMachine) -> JobGraph:
    """*job* with the durations that its tasks have on *machine*; stated ones stay."""
    priced = price_job(job, cluster=machine.cluster(job.rank_count), stack=machine.load_stack())
    return pin_durations(job, priced.durations, provenance=priced.provenance)


def pin_durations(
    job: JobGraph, durations: DurationTable, *, provenance: CodeColumn | None = None
) -> JobGraph:
    """*job* with *durations* as stated ones, of the given *provenance* or recorded."""
    draft = JobDraft(job)
    if provenance is None:
        provenance = np.full(len(durations.values_ns), Provenance.RECORDED, dtype=np.int8)
    programs: list[Program] = []
    number: dict[tuple[int, int], int] = {}
    rank_program = np.empty_like(job.rank_program)
    for rank in range(job.rank_count):
        program, offset = job.program_of(rank), int(durations.rank_offset[rank])
        key = (int(job.rank_program[rank]), offset)
        if key not in number:
            number[key] = len(programs)
            rows = slice(offset, offset + program.task_count)
            values = durations.values_ns[rows, 0].tolist()
            programs.append(_pin_program(draft, program, values, provenance[rows].tolist()))
        rank_program[rank] = number[key]
    return replace(draft.build(), programs=tuple(programs), rank_program=rank_program)


def pin_prices(priced: PricedJob) -> PricedJob:
    """*priced* with its durations stated in its job, and its prices by the origin of the tasks."""
    pinned = pin_durations(priced.job, priced.durations, provenance=priced.provenance)
    _, first_rank = np.unique(pinned.rank_program, return_index=True)
    rows = [priced.rows_of_rank(int(rank)) for rank in first_rank]
    starts = np.concatenate([[0], np.cumsum([row.stop - row.start for row in rows])])
    chosen = np.concatenate([np.arange(row.start, row.stop) for row in rows])
    job = with_own_origins(pinned)
    return priced.take(chosen, starts[pinned.rank_program], job=job)


def with_own_origins(job: JobGraph) -> JobGraph:
    """*job* with an origin of its own for every task, numbered program after program.

    A task is then recognised by that number, however the job is changed.
    """
    starts = np.concatenate([[0], np.cumsum([program.task_count for program in job.programs])])
    column = np.concatenate([program.origin for program in job.programs]).tolist()
    return replace(
        job,
        origins=tuple(
            Origin("") if origin == NO_ORIGIN else job.origins[origin] for origin in column
        ),
        programs=tuple(
            replace(program, origin=np.arange(start, start + program.task_count, dtype=np.int32))
            for program, start in zip(job.programs, starts.tolist(), strict=False)
        ),
    )


def stated_prices(job: JobGraph, known: PricedJob | None = None) -> PricedJob:
    """The stated durations of *job* as prices without uncertainty.

    Tasks that *known* has by their origin keep their family and its uncertainty, and those that
    still state the known duration keep the price before it was rounded.
    """
    provenance = np.array(
        [op.provenance if isinstance(op, Fixed) else 0 for op in job.ops], dtype=np.int8
    )
    if known is None and isinstance(job.programs, StoredPrograms):
        # Their tasks are not read here: prices by op.
        values_ns = np.array([duration_of(op) for op in job.ops], dtype=np.int64)[:, np.newaxis]
        durations: DurationTable = OpDurations(values_ns, job.rank_program.astype(np.int64))
        return _certain_prices(job, durations, provenance)
    # One row per program, in the order in which ranks first run them.
    programs = [job.programs[place] for place in dict.fromkeys(job.rank_program.tolist())]
    ops = np.concatenate([program.op for program in programs])
    certain = _certain_prices(job, stated_durations(job), provenance[ops])
    if known is None:
        return certain
    return _recall(certain, known, np.concatenate([program.origin for program in programs]))


def _certain_prices(job: JobGraph, durations: DurationTable, provenance: CodeColumn) -> PricedJob:
    count = len(durations.values_ns)
    return PricedJob(
        job=job,
        durations=durations,
        float_ns=durations.values_ns[:, 0].astype(np.float64),
        relative_sigma=np.zeros(count),
        provenance=provenance,
        family=np.full(count, FAMILIES.index("fixed"), dtype=np.int8),
        bound=np.full(count, Bound.UNKNOWN, dtype=np.int8),
        link_use=np.zeros((count, 2)),
    )


def _recall(certain: PricedJob, known: PricedJob, origins: NDArray[np.int32]) -> PricedJob:
    is_known = origins != NO_ORIGIN
    was = known.take(np.where(is_known, origins, 0), certain.durations.rank_offset, job=certain.job)
    is_same = is_known & (was.durations.values_ns[:, 0] == certain.durations.values_ns[:, 0])
    return replace(
        certain,
        float_ns=np.where(is_same, was.float_ns, certain.float_ns),
        relative_sigma=np.where(is_known, was.relative_sigma, 0.0),
        family=np.where(is_known, was.family, certain.family).astype(np.int8),
        bound=np.where(is_known, was.bound, certain.bound).astype(np.int8),
        link_use=np.where(is_known[:, np.newaxis], was.link_use, 0.0),
        slowdowns=known.slowdowns,
        spread=known.spread,
    )


def stated_durations(job: JobGraph) -> DurationTable:
    """The durations that the tasks of a pinned *job* state."""
    return build_shared_durations(job, [durations_of(job, program) for program in job.programs])


def _pin_program(
    draft: JobDraft, program: Program, values_ns: list[int], known: list[int]
) -> Program:
    # Ops are compared by value, which takes long for big ones: once for each price is enough.
    pinned: dict[tuple[int, int, int], int] = {}
    keys = list(zip(program.op.tolist(), values_ns, known, strict=True))
    for key in keys:
        if key not in pinned:
            op, (_, duration_ns, provenance) = draft.ops[key[0]], key
            if not isinstance(op, Fixed):
                op = Fixed(names_of(op)[0], duration_ns, work=op)
            new = replace(op, duration_ns=duration_ns, provenance=Provenance(provenance))
            pinned[key] = draft.op(new)
    return replace(program, op=np.array([pinned[key] for key in keys], dtype=np.int32))
