"""Placements: many plans as columns, and the distinct pieces they consist of.

Table, rows and width identify a piece; so does its first row, if it holds some of the most popular
rows. The load that a piece adds to its rank is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from embeddings.plan import PieceKey, PlanPieces, Shard, ShardingPlan, find_pieces
from embeddings.table import EmbeddingTable
from perfmodel.costs.embedding_terms import (
    FIRST_LARGEST,
    Term,
    TermsSetting,
    most_tables_at_once,
    tables_terms,
)
from perfmodel.graph.program import offsets
from perfmodel.workloads.dlrm.memory import piece_memory_bytes
from perfmodel.workloads.dlrm.spec import DlrmSpec, local_batch
from topologies import Device

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """Concatenated plans: piece and rank of every shard, and the first shard of each plan."""

    piece: Int32s
    rank: Int32s
    plan_start: Int64s

    @property
    def plan_count(self) -> int:
        """Number of plans."""
        return len(self.plan_start) - 1

    def take(self, places: Sequence[int]) -> Placements:
        """The plans at *places*."""
        bounds = [(self.plan_start[place], self.plan_start[place + 1]) for place in places]
        return join_placements(
            [self.piece[first:after] for first, after in bounds],
            [self.rank[first:after] for first, after in bounds],
        )


def join_placements(pieces: Sequence[Int32s], ranks: Sequence[Int32s]) -> Placements:
    """Concatenate plans, given piece and rank of the shards of each."""
    starts = offsets([len(of_plan) for of_plan in pieces])
    return Placements(np.concatenate(pieces), np.concatenate(ranks), starts)


@dataclass(frozen=True, slots=True, eq=False)
class RankLoads:
    """Load of every rank of every plan: plans x ranks, and plans x ranks x terms."""

    terms: Int64s
    widths: Int64s
    index_counts: Int64s
    piece_counts: Int64s
    memory_bytes: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class DrawnShards:
    """Load that the shards of one plan add to their ranks in each of several batches.

    *terms* are batches x levels x shards x terms, *index_counts* batches x shards.
    """

    terms: Int64s
    index_counts: Int64s
    widths: Int64s
    rank: Int32s


class PieceCatalog:
    """Pieces of the tables of one workload on one device, numbered in order of appearance."""

    def __init__(self, spec: DlrmSpec, device: Device, *, rank_count: int) -> None:
        self._spec = spec
        self._device = device
        self._local_batch = local_batch(spec, rank_count=rank_count)
        self._levels = most_tables_at_once(device, spec.batch)
        self._number_of: dict[PieceKey, int] = {}
        self._tables: list[EmbeddingTable] = []
        self._columns: _PieceColumns | None = None
        self.rank_count = rank_count

    def pieces(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> Int32s:
        """The piece numbers of *shards* of *tables*."""
        return self._numbers(find_pieces(tables, shards))

    def _numbers(self, pieces: PlanPieces) -> Int32s:
        """By shard; new pieces get the next numbers."""
        number_of = self._number_of
        for key, table in zip(pieces.keys, pieces.tables, strict=True):
            if key not in number_of:
                number_of[key] = len(number_of)
                self._tables.append(table)
        return np.array([number_of[key] for key in pieces.keys], dtype=np.int32)[pieces.number]

    def table(self, piece: int) -> EmbeddingTable:
        """The piece as a table of its own."""
        return self._tables[piece]

    def placements(self, plans: Sequence[ShardingPlan]) -> Placements:
        """*plans* as columns, the shards of each sorted."""
        shards = [sorted(plan.shards) for plan in plans]
        return join_placements(
            [self._known_numbers(*of_plan) for of_plan in zip(plans, shards, strict=True)],
            [np.array([shard.rank for shard in of_plan], dtype=np.int32) for of_plan in shards],
        )

    def _known_numbers(self, plan: ShardingPlan, shards: Sequence[Shard]) -> Int32s:
        # A piece's key has its first row or none, so a shard that is found directly is right.
        known = [self._number_of.get((s[0], s[2], s[3], s[5])) for s in shards]
        if None in known:
            return self._numbers(plan.pieces)
        return np.array(known, dtype=np.int32)

    @property
    def columns(self) -> _PieceColumns:
        """The load that every piece adds to its rank."""
        known = 0 if self._columns is None else len(self._columns.widths)
        if self._columns is None or known < len(self._tables):
            fresh = self._build_columns(self._tables[known:])
            self._columns = fresh if self._columns is None else self._columns.followed_by(fresh)
        return self._columns

    def load(self, placements: Placements) -> RankLoads:
        """Sum up *placements* by rank."""
        columns, used_bytes = self.columns, self._used_bytes(placements)
        terms, counts = columns.terms[np.newaxis], columns.index_counts[np.newaxis]
        return _sum_loads(placements, terms, columns.widths, counts, used_bytes)

    def load_batches(self, drawn: DrawnShards) -> RankLoads:
        """Sum up one plan by rank, once per *drawn* batch; memory stays zero."""
        batches, shards = drawn.index_counts.shape
        placements = Placements(
            np.tile(np.arange(shards, dtype=np.int32), batches),
            np.tile(drawn.rank, batches),
            np.arange(batches + 1, dtype=np.int64) * shards,
        )
        no_bytes = np.zeros((batches, self.rank_count), dtype=np.int64)
        return _sum_loads(placements, drawn.terms, drawn.widths, drawn.index_counts, no_bytes)

    def _used_bytes(self, placements: Placements) -> Int64s:
        """Memory of the pieces of every rank, plans x ranks."""
        plan = np.repeat(np.arange(placements.plan_count), np.diff(placements.plan_start))
        sums = np.bincount(
            plan * self.rank_count + placements.rank,
            weights=self.columns.memory_bytes[placements.piece],
            minlength=placements.plan_count * self.rank_count,
        )
        # Whole numbers below 2 ** 53 add up exactly in floating point.
        return sums.astype(np.int64).reshape(placements.plan_count, self.rank_count)

    def _build_columns(self, tables: Sequence[EmbeddingTable]) -> _PieceColumns:
        spec, device = self._spec, self._device
        terms = [
            tables_terms(
                tables,
                TermsSetting(spec.batch, spec.embedding.optimizer, device.l2_bytes, level + 1),
            )
            for level in range(self._levels)
        ]
        return _PieceColumns(
            terms=np.array(terms, dtype=np.int64).reshape(self._levels, -1, len(Term)),
            widths=np.array([table.width for table in tables], dtype=np.int64),
            index_counts=np.array(
                [round(self._local_batch * table.pooling_factor) for table in tables],
                dtype=np.int64,
            ),
            memory_bytes=np.array(
                [piece_memory_bytes(spec, table) for table in tables], dtype=np.int64
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _PieceColumns:
    """By piece; *terms* are levels x pieces x terms, level k for k + 1 tables at once."""

    terms: Int64s
    widths: Int64s
    index_counts: Int64s
    memory_bytes: Int64s

    def followed_by(self, other: _PieceColumns) -> _PieceColumns:
        """The pieces of both."""
        return _PieceColumns(
            np.ascontiguousarray(np.concatenate([self.terms, other.terms], axis=1)),
            np.concatenate([self.widths, other.widths]),
            np.concatenate([self.index_counts, other.index_counts]),
            np.concatenate([self.memory_bytes, other.memory_bytes]),
        )


def _sum_loads(
    placements: Placements,
    terms: Int64s,
    widths: Int64s,
    index_counts: Int64s,
    memory_bytes: Int64s,
) -> RankLoads:
    """Loads of all ranks (plans x ranks, the shape of *memory_bytes*)."""
    loads = RankLoads(
        np.zeros((*memory_bytes.shape, len(Term)), dtype=np.int64),
        np.zeros_like(memory_bytes),
        np.zeros_like(memory_bytes),
        np.zeros_like(memory_bytes),
        memory_bytes,
    )
    _add_up(
        placements.piece,
        placements.rank,
        placements.plan_start,
        terms,
        widths,
        index_counts,
        loads.terms,
        loads.widths,
        loads.index_counts,
        loads.piece_counts,
    )
    return loads


@numba.njit(cache=True, nogil=True)
def _add_up(
    piece: Int32s,
    rank: Int32s,
    plan_start: Int64s,
    terms: Int64s,
    widths: Int64s,
    index_counts: Int64s,
    out_terms: Int64s,
    out_widths: Int64s,
    out_index_counts: Int64s,
    out_counts: Int64s,
) -> None:
    levels = terms.shape[1]
    columns = terms.shape[3]
    for plan in range(len(plan_start) - 1):
        batch = plan if terms.shape[0] > 1 else 0
        for row in range(plan_start[plan], plan_start[plan + 1]):
            out_counts[plan, rank[row]] += 1
        for row in range(plan_start[plan], plan_start[plan + 1]):
            held, where = piece[row], rank[row]
            level = min(out_counts[plan, where], levels) - 1
            out_widths[plan, where] += widths[held]
            out_index_counts[plan, where] += index_counts[batch, held]
            for column in range(columns):
                value = terms[batch, level, held, column]
                if column < FIRST_LARGEST:
                    out_terms[plan, where, column] += value
                else:
                    out_terms[plan, where, column] = max(out_terms[plan, where, column], value)
