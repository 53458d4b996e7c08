"""Parts: which ranks form a block, and what a block needs of a job and its durations.

A part is a small job of its own: the programs of its ranks, the groups that
these are in, and which of the groups also have members in other parts. Ops, labels
and names are left out: a block neither prices nor shows anything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.layout import Int64s, endpoint_counts, sequence_counts
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import NO_GROUP, Group, JobFacts, JobGraph
from perfmodel.graph.program import COLUMN_TYPES, Program, offsets

MOST_IMBALANCE_RATIO = 0.05
"""How far a cut may move, as a share of one block's tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class JobPart:
    """Some neighbouring ranks of a job, as a job.

    *groups* are the numbers that its groups have in the whole, ascending;
    *external* says which of them have members in other parts.
    """

    job: JobGraph
    groups: Int64s
    external: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """A job divided into *blocks* of ranks.

    *task_bounds* are the first tasks of the blocks, and the number of all tasks. *rendezvous* is
    how many a group has in an iteration. *endpoints* counts those of each group that each block
    has, blocks x groups; neighbouring ranks have neighbouring places in a group.
    """

    blocks: tuple[range, ...]
    task_bounds: Int64s
    rendezvous: Int64s
    endpoints: Int64s

    @property
    def has_part(self) -> NDArray[np.bool_]:
        """Which groups each block has members of, blocks x groups."""
        return self.endpoints > 0

    @property
    def member_count(self) -> int:
        """Number of members of all rendezvous."""
        return int((self.rendezvous * self.endpoints.sum(axis=0)).sum())

    def members_of(self, block: int) -> Int64s:
        """The numbers that the members of *block* have in the whole, in the block's own order."""
        sizes = self.endpoints.sum(axis=0)
        first = offsets(self.rendezvous * sizes)[:-1] + self.endpoints[:block].sum(axis=0)
        here = self.endpoints[block]
        counts = self.rendezvous * here
        group = np.repeat(np.arange(len(here)), counts)
        within = np.arange(len(group)) - np.repeat(offsets(counts)[:-1], counts)
        sequence, position = np.divmod(within, here[group])
        members: Int64s = first[group] + sequence * sizes[group] + position
        return members


def divide_job(job: JobGraph, *, block_count: int) -> Division:
    """*job* divided into at most *block_count* blocks."""
    blocks = deal_ranks(job, block_count=block_count)
    starts = [ranks.start for ranks in blocks]
    of_blocks = np.split(job.rank_group, starts[1:])
    endpoints = np.array([endpoint_counts(of_block, len(job.groups)) for of_block in of_blocks])
    bounds = job.rank_rows()[[*starts, job.rank_count]]
    return Division(blocks, bounds, sequence_counts(job), endpoints)


def deal_ranks(job: JobGraph, *, block_count: int) -> tuple[range, ...]:
    """The ranks of *job* in at most *block_count* blocks, none of them empty.

    Blocks are neighbouring ranks with about the same number of tasks. A cut
    may move a little from the even place to cross fewer rendezvous, since
    each that is crossed must be talked about.
    """
    block_count = min(block_count, job.rank_count)
    if block_count == 1:
        return (range(job.rank_count),)
    before = job.rank_rows()
    crossed = crossed_rendezvous(job)
    cuts = [0]
    for block in range(1, block_count):
        # Every block, those that follow too, gets a rank at least.
        first, last = cuts[-1] + 1, job.rank_count - (block_count - block)
        cuts.append(_best_cut(before, crossed, (first, last), block / block_count, block_count))
    cuts.append(job.rank_count)
    return tuple(range(start, stop) for start, stop in pairwise(cuts))


def crossed_rendezvous(job: JobGraph) -> Int64s:
    """How many rendezvous a cut before each rank, and one after the last, would cross."""
    ranks, slots = np.nonzero(job.rank_group != NO_GROUP)
    group = job.rank_group[ranks, slots]
    first = np.full(len(job.groups), job.rank_count, dtype=np.int64)
    last = np.full(len(job.groups), -1, dtype=np.int64)
    np.minimum.at(first, group, ranks)
    np.maximum.at(last, group, ranks)
    counts = np.where(first < last, sequence_counts(job), 0)
    change = np.zeros(job.rank_count + 2, dtype=np.int64)
    np.add.at(change, np.minimum(first + 1, job.rank_count), counts)
    np.add.at(change, last + 1, -counts)
    return np.cumsum(change)[: job.rank_count + 1]


def take_part(job: JobGraph, ranks: range) -> JobPart:
    """The part of *job* that *ranks* make."""
    used, rank_program = np.unique(job.rank_program[ranks.start : ranks.stop], return_inverse=True)
    rank_group = job.rank_group[ranks.start : ranks.stop]
    groups, local = np.unique(np.append(rank_group.ravel(), NO_GROUP), return_inverse=True)
    # NO_GROUP comes first of all numbers, so that the others count from one.
    here = np.bincount(local[:-1], minlength=len(groups))[1:]
    everywhere = endpoint_counts(job.rank_group, len(job.groups))
    part = replace(
        job,
        **{column.name: () for column in fields(job) if column.name in NAMES},
        programs=tuple(_strip(job.programs[int(index)]) for index in used),
        rank_program=rank_program.astype(np.int32),
        groups=(NAMELESS,) * (len(groups) - 1),
        rank_group=(local[:-1] - 1).reshape(rank_group.shape).astype(np.int32),
        facts=JobFacts(job.facts.name),
    )
    return JobPart(part, groups[1:].astype(np.int64), here < everywhere[groups[1:]])


NAMELESS = Group("", ())
NAMES = ("ops", "labels", "origins")
WALKED = (
    "lane_start",
    "slot",
    "sequence",
    "role",
    *(name for name in COLUMN_TYPES if name.startswith("dep_")),
)


def _strip(program: Program) -> Program:
    """*program* with nothing but its structure."""
    nothing: Any = np.empty(0, dtype=np.int32)
    unread = {name: nothing for name in COLUMN_TYPES if name not in WALKED}
    # How many ops there are says how many tasks; the same array travels once.
    return replace(program, **{**unread, "op": program.slot})


def take_durations(job: JobGraph, durations: DurationTable, ranks: range) -> DurationTable:
    """The rows of *durations* that *ranks* of *job* read."""
    first_rows = durations.rank_offset[ranks.start : ranks.stop]
    counts = job.task_counts()[ranks.start : ranks.stop]
    firsts, place = np.unique(first_rows, return_inverse=True)
    lengths = np.zeros(len(firsts), dtype=np.int64)
    np.maximum.at(lengths, place, counts)
    stops = firsts + lengths
    if (firsts[1:] <= stops[:-1]).all():
        # Without gaps: a piece of the table as it stands.
        piece = durations.values_ns[firsts[0] : stops.max()]
        return DurationTable(piece, first_rows - firsts[0])
    rows = [durations.values_ns[first:stop] for first, stop in zip(firsts, stops, strict=True)]
    return DurationTable(np.concatenate(rows), offsets(lengths)[place])


def _best_cut(
    before: Int64s, crossed: Int64s, limits: tuple[int, int], share: float, block_count: int
) -> int:
    """The cut within *limits* that crosses least among those close to *share* of the tasks."""
    total = int(before[-1])
    places = np.arange(limits[0], limits[1] + 1)
    off: NDArray[np.float64] = np.abs(before[places] - share * total)
    near = off <= max(float(off.min()), MOST_IMBALANCE_RATIO * total / block_count)
    # Fewest crossed, then closest, then first.
    order = np.lexsort((places, off, crossed[places], ~near))
    return int(places[order[0]])
