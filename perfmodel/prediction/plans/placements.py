"""Placements: plans as columns, and the distinct pieces they consist of.

Table, rows and width identify a piece; so does its first row, if it holds some of the most popular
rows. The load that a piece adds to its rank is computed once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import PieceKey, PlanPieces, Shard, ShardingPlan, find_pieces
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.compiling import compiled
from perfmodel.costs.embedding_terms import (
    FIRST_LARGEST,
    Term,
    TermsSetting,
    most_tables_at_once,
    tables_terms,
)
from perfmodel.graph.program import offsets
from perfmodel.stacks.capabilities import RowSums
from perfmodel.workloads.dlrm.exchange import is_by_rows, most_row_pieces, reduced_places
from perfmodel.workloads.dlrm.memory import piece_memory_bytes
from perfmodel.workloads.dlrm.run import DlrmRun
from topologies import Device

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Places = Collection[int]
NONE: Places = ()


FrameKey = tuple[tuple[int, ...], bool, bool, bool]
"""Tables copied to every rank; whether partial sums are sent, others reduced, and vectors sent."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanColumns:
    """One plan: piece and rank of every shard, the tables *copied* to every rank.

    Partial sums of *partial_width* numbers per sample are sent like vectors, and *reduced_width*
    numbers are summed by a collective. *has_direct* says whether any vectors are sent.
    """

    piece: Int32s
    rank: Int32s
    copied: tuple[int, ...] = ()
    partial_width: int = 0
    reduced_width: int = 0
    has_direct: bool = True

    @property
    def frame_key(self) -> FrameKey:
        """Plans with equal keys have the same frame."""
        return self.copied, self.partial_width > 0, self.reduced_width > 0, self.has_direct


class PieceColumns(NamedTuple):
    """The load that every piece adds to its rank, the same for all plans or one per plan.

    *terms* are plans x levels x pieces x terms, level k for k + 1 tables at once; *index_counts*
    are plans x pieces. *made_numbers* are those of all vectors of the batch,
    *sent_numbers* those to one other rank, without pieces that a collective sums.
    """

    terms: Int64s
    index_counts: Int64s
    made_numbers: Int64s
    sent_numbers: Int64s
    memory_bytes: Int64s

    def followed_by(self, other: PieceColumns) -> PieceColumns:
        """The pieces of both."""
        pairs = zip(self, other, (2, 1, 0, 0, 0), strict=True)
        return PieceColumns(*(np.concatenate([own, more], axis=axis) for own, more, axis in pairs))


class RankLoads(NamedTuple):
    """Load of every rank of every plan: plans x ranks, and plans x ranks x terms."""

    terms: Int64s
    index_counts: Int64s
    made_numbers: Int64s
    sent_numbers: Int64s
    memory_bytes: Int64s
    piece_counts: Int64s


class PieceCatalog:
    """Pieces of the tables of one run on one device, numbered in order of appearance.

    A piece of a table that a collective sums, as the stack does, has a number of its own.
    """

    def __init__(self, run: DlrmRun, device: Device) -> None:
        self._run = run
        self._device = device
        self._levels = most_tables_at_once(device, run.spec.batch)
        self._number_of: dict[tuple[PieceKey, bool, float], int] = {}
        self._row_sums = run.stack.tables.row_sums
        self._columns: PieceColumns | None = None
        self.rank_count = run.rank_count
        self.tables: list[EmbeddingTable] = []
        """Every piece as a table of its own."""
        self._is_sent: list[bool] = []

    def reduces(self, table: EmbeddingTable, row_pieces: int) -> bool:
        """Whether a collective sums *table* when its columns are cut into *row_pieces* by rows."""
        is_everywhere = 1 < row_pieces == most_row_pieces(table, self.rank_count)
        return table.is_pooled and is_everywhere and self._row_sums is RowSums.REDUCE_SCATTER

    def pieces(
        self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard], reduced: Places = NONE
    ) -> Int32s:
        """The piece numbers of *shards* of *tables*, those at *reduced* summed by a collective."""
        return self._numbers(find_pieces(tables, shards), reduced)

    def _numbers(self, pieces: PlanPieces, reduced: Places) -> Int32s:
        """By shard; new pieces get the next numbers."""
        number_of, numbers = self._number_of, []
        for key, table in zip(pieces.keys, pieces.tables, strict=True):
            own = key, key[0] in reduced, _cached_ratio(table)
            if own not in number_of:
                number_of[own] = len(number_of)
                self.tables.append(table)
                self._is_sent.append(not own[1])
            numbers.append(number_of[own])
        return np.array(numbers, dtype=np.int32)[pieces.number]

    def columns_of(self, plan: ShardingPlan) -> PlanColumns:
        """*plan* as columns, its shards sorted."""
        shards = sorted(plan.shards)
        reduced = reduced_places(plan, self._row_sums)
        # A piece's key has its first row or none, so a shard that is found directly is right.
        ratios = [_cached_ratio(table) for table in plan.tables]
        known = [
            self._number_of.get(((s[0], s[2], s[3], s[5]), s[0] in reduced, ratios[s[0]]))
            for s in shards
        ]
        pieces = (
            self._numbers(plan.pieces, reduced)
            if None in known
            else np.array(known, dtype=np.int32)
        )
        ranks = np.array([shard.rank for shard in shards], dtype=np.int32)
        sent = [shard for shard in shards if shard.table not in reduced] if reduced else shards
        return PlanColumns(
            pieces,
            ranks,
            plan.data_parallel,
            partial_width=sum(
                shard.width * plan.tables[shard.table].features
                for shard in sent
                if is_by_rows(plan, shard)
            ),
            reduced_width=sum(
                plan.tables[place].width * plan.tables[place].features for place in reduced
            ),
            has_direct=bool(sent),
        )

    @property
    def columns(self) -> PieceColumns:
        """The load that every piece adds to its rank."""
        known = 0 if self._columns is None else len(self._columns.made_numbers)
        if self._columns is None or known < len(self.tables):
            fresh = self._build_columns(known)
            self._columns = fresh if self._columns is None else self._columns.followed_by(fresh)
        return self._columns

    def load(self, plans: Sequence[PlanColumns], columns: PieceColumns | None = None) -> RankLoads:
        """Sum up *plans* by rank; *columns* are those of the catalog's pieces or of their own."""
        shape = (len(plans), self.rank_count)
        found = RankLoads(
            np.zeros((*shape, len(Term)), dtype=np.int64), *np.zeros((5, *shape), dtype=np.int64)
        )
        _sum_loads(
            np.concatenate([plan.piece for plan in plans]),
            np.concatenate([plan.rank for plan in plans]),
            offsets([len(plan.piece) for plan in plans]),
            columns or self.columns,
            found,
        )
        return found

    def _build_columns(self, first: int) -> PieceColumns:
        """The columns of pieces from number *first* on."""
        tables = self.tables[first:]
        spec, cache_bytes = self._run.spec, self._device.l2_bytes
        terms = [
            tables_terms(
                tables, TermsSetting(spec.batch, spec.embedding.optimizer, cache_bytes, level + 1)
            )
            for level in range(self._levels)
        ]
        counts = [round(self._run.samples * table.pooling_factor) for table in tables]
        memory = [piece_memory_bytes(spec, table) for table in tables]
        is_sent = np.array(self._is_sent[first:], dtype=np.int64)
        made, sent = (
            np.array([table.vectors(samples) * table.width for table in tables], dtype=np.int64)
            for samples in (spec.batch, self._run.samples)
        )
        return PieceColumns(
            terms=np.array([terms], dtype=np.int64).reshape(1, self._levels, -1, len(Term)),
            index_counts=np.array([counts], dtype=np.int64),
            made_numbers=made,
            sent_numbers=sent * is_sent,
            memory_bytes=np.array(memory, dtype=np.int64),
        )


def _cached_ratio(table: EmbeddingTable) -> float:
    """The part of a table in host memory that the device has, and 0 for one on the device."""
    return table.cached_ratio if table.memory is TableMemory.HOST_CACHED else 0.0


@compiled
def _sum_loads(
    piece: Int32s, rank: Int32s, plan_start: Int64s, of_piece: PieceColumns, found: RankLoads
) -> None:
    """Add the loads of pieces to those of their ranks."""
    terms = of_piece.terms
    for plan in range(len(plan_start) - 1):
        batch = plan if terms.shape[0] > 1 else 0
        for row in range(plan_start[plan], plan_start[plan + 1]):
            found.piece_counts[plan, rank[row]] += 1
        for row in range(plan_start[plan], plan_start[plan + 1]):
            held, where = piece[row], rank[row]
            level = min(found.piece_counts[plan, where], terms.shape[1]) - 1
            found.index_counts[plan, where] += of_piece.index_counts[batch, held]
            found.made_numbers[plan, where] += of_piece.made_numbers[held]
            found.sent_numbers[plan, where] += of_piece.sent_numbers[held]
            found.memory_bytes[plan, where] += of_piece.memory_bytes[held]
            total = found.terms[plan, where]
            for term in range(terms.shape[3]):
                value = terms[batch, level, held, term]
                is_sum = term < FIRST_LARGEST
                total[term] = total[term] + value if is_sum else max(total[term], value)
