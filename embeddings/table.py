"""EmbeddingTable: rows of numbers that a model looks up by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import lru_cache

import numpy as np

from embeddings.distribution import UNIFORM, IndexDistribution, RowsByPopularity, popularity_of
from embeddings.popularity import Floats, Int64s, Popularity, RowRange, has_hot_row
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from perfmodel.base.reading import quote

OPTIMIZERS = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "adam": 2}
"""Updates that are fused into the backward pass, and the numbers of state per weight of each."""
KERNELS = ("fbgemm", "fbgemm_2022", "two_step", "table_batched")
"""Implementations of the fused kernel."""
NARROWEST = 32
"""Columns of the narrowest piece that tables are cut into."""
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
MOST_TABLES, MOST_ROWS, MOST_WIDTH, MOST_LOOKUPS = 2**16, 10**12, 2**24, 1e9
"""Far above any real model; beyond these limits products of sizes overflow."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """All *tables* of a rank, looked up for *batch_size* samples in one kernel.

    *optimizer* is the update fused into the backward pass. *kernel* is `fbgemm`,
    which sorts the indices for it and splits rows with many updates over
    blocks, `fbgemm_2022`, which gave every such row a block of its own, `two_step`,
    which sums the gradients of a row in one kernel and updates it in the next, or
    their predecessor `table_batched`, which sorts nothing. A lookup that
    *is_repeated* with the same indices, as benchmarks do, finds in the cache what fits.
    Gradients of pooled vectors arrive in *gradient_dtype*.
    """

    tables: tuple[EmbeddingTable, ...]
    batch_size: int
    optimizer: str = "sgd"
    kernel: str = "fbgemm"
    is_repeated: bool = False
    gradient_dtype: DType = DType.FP32

    def __post_init__(self) -> None:
        for what, word, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("kernel", self.kernel, KERNELS),
        ):
            if word not in known:
                raise PlanError(f"lookup: {what} must be one of {', '.join(known)}, got {word!r}.")

    def __hash__(self) -> int:
        """By what usually distinguishes lookups: a rank may have ten thousand tables."""
        return hash((len(self.tables), self.tables[:1], self.tables[-1:], self.batch_size))

    def lookup_count(self, table: EmbeddingTable) -> float:
        """Rows of *table* read for the batch, repeats counted."""
        return self.batch_size * table.pooling_factor

    def distinct_rows(self, table: EmbeddingTable) -> float:
        """Expected number of different rows of *table* in the batch."""
        return float(table.popularity.distinct_rows(self.lookup_count(table.whole)))


class TableMemory(Enum):
    """Where the rows are kept; the value is the word used in files.

    HOST_CACHED rows are in host memory, and the most recent ones on the device too.
    """

    DEVICE = "device"
    HOST_CACHED = "host_cached"


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """A table of *rows* x *width* numbers; a sample looks up *pooling_factor* rows on average.

    *pooling_deviation* is the standard deviation of that number over samples.
    A row-wise piece is *piece_of* the table that *distribution* describes, and begins at
    *first_row* (`key_rows`). A table that is not *is_pooled* returns every requested row; one
    that is returns a vector per sample for each of the *features* that share it, whose lookups
    together are the pooling factor.
    *cached_ratio* is the share of a HOST_CACHED table that the device has room for.
    *hottest_ratio* is where its hottest row is, from 0 for the first to 1 for the last
    (`spread_hot_rows`). Plans may cut it in the ways *sharding_types* names and put it on *ranks*;
    without any, in all ways and everywhere.
    """

    name: str
    rows: int
    width: int
    pooling_factor: float = 1.0
    dtype: DType = DType.FP32
    distribution: IndexDistribution = UNIFORM
    pooling_deviation: float = 0.0
    piece_of: EmbeddingTable | None = None
    first_row: int = 0
    is_weighted: bool = False
    is_pooled: bool = True
    memory: TableMemory = TableMemory.DEVICE
    cached_ratio: float = 0.2
    hottest_ratio: float = 0.0
    features: int = 1
    sharding_types: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for what, number, least, most in (
            ("rows", self.rows, 1, MOST_ROWS),
            ("width", self.width, 1, MOST_WIDTH),
            ("pooling factor", self.pooling_factor, 0, MOST_LOOKUPS),
            ("pooling deviation", self.pooling_deviation, 0, MOST_LOOKUPS),
            ("features", self.features, 1, MOST_TABLES),
        ):
            if not least <= number <= most:
                raise PlanError(
                    f"table {quote(self.name)}: {what} must be from {least} to {most}, "
                    f"got {quote(number)}."
                )
        if not 0 < self.cached_ratio <= 1:
            raise PlanError(
                f"table {self.name!r}: cached ratio must be above 0 and at most 1, "
                f"got {self.cached_ratio}."
            )

    @property
    def is_constrained(self) -> bool:
        """Whether it states how it may be cut, or on which ranks it may be."""
        return bool(self.sharding_types or self.ranks)

    @property
    def allowed_kinds(self) -> tuple[str, ...]:
        """What *sharding_types* names; column-wise, a table too narrow to cut is one piece."""
        is_whole = "column_wise" in self.sharding_types and self.width < 2 * NARROWEST
        return (*self.sharding_types, *(("table_wise",) if is_whole else ()))

    def __hash__(self) -> int:
        """By what usually distinguishes tables: plans ask for the terms of a million pieces."""
        return hash((self.name, self.rows, self.width, self.first_row))

    def vectors(self, samples: int) -> int:
        """Vectors that *samples* samples get."""
        return round(samples * self.sample_vectors)

    @property
    def sample_vectors(self) -> float:
        """Vectors that a sample gets on average."""
        return self.features if self.is_pooled else self.pooling_factor

    @property
    def sample_numbers(self) -> float:
        """Numbers in the vectors that a sample gets."""
        return self.width * self.sample_vectors

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights, without optimizer state."""
        return self.rows * self.width * self.dtype.size_bytes

    @property
    def device_bytes(self) -> int:
        """Bytes of weights that must have room on the device."""
        if self.memory is TableMemory.DEVICE:
            return self.size_bytes
        return math.ceil(self.size_bytes * self.cached_ratio)

    def state_bytes(self, optimizer: str) -> int:
        """Bytes of optimizer state on the device: fp32, a number per weight or one per row."""
        per_row = 1 if optimizer == "rowwise_adagrad" else OPTIMIZERS[optimizer] * self.width
        size_bytes = self.rows * per_row * DType.FP32.size_bytes
        if self.memory is TableMemory.DEVICE or not size_bytes:
            return size_bytes
        return round(size_bytes * (self.device_bytes / self.size_bytes))

    def held_bytes(self, optimizer: str) -> int:
        """Bytes that the table or piece takes on its rank, weights and state."""
        return self.device_bytes + self.state_bytes(optimizer)

    @property
    def whole(self) -> EmbeddingTable:
        """The table that this is a row-wise piece of, or is itself."""
        return self.piece_of or self

    @property
    def popularity(self) -> Popularity:
        """How often each row is hit by a draw of the whole table."""
        of_whole = popularity_of(self.distribution, self.whole.rows)
        return of_whole if self.piece_of is None else of_whole.piece(self.row_range)

    @property
    def row_range(self) -> RowRange:
        """The range of the rows in the whole table."""
        return self.whole.range_of(self.first_row, self.rows)

    def range_of(self, first_row: int | Int64s, rows: int | Int64s) -> RowRange:
        """The ranges of pieces, with the hottest row of the table."""
        return RowRange(first_row, rows, self.rows, int(self.hottest_ratio * self.rows))

    def split_by_popularity(self, count: int) -> tuple[EmbeddingTable, EmbeddingTable]:
        """The *count* most popular rows, to be copied to every rank, and the table without them."""
        of = self.distribution
        assert not isinstance(of, RowsByPopularity)
        frequent = RowsByPopularity(of, self.rows, count, is_frequent=True)
        share = min(frequent.lookup_share, 1.0)
        # A sample with one lookup reads only one of the two parts: no bag is empty.
        either = replace(self, is_pooled=self.is_pooled and self.pooling_factor > 1)
        return (
            replace(
                either,
                rows=count,
                pooling_factor=self.pooling_factor * share,
                pooling_deviation=self.pooling_deviation * share,
                distribution=frequent,
            ),
            replace(
                either,
                pooling_factor=self.pooling_factor * (1 - share),
                pooling_deviation=self.pooling_deviation * (1 - share),
                distribution=replace(frequent, is_frequent=False),
            ),
        )

    def key_rows(self, first_row: Int64s, rows: Int64s) -> Int64s:
        """First rows of row-wise pieces, the same for equal pieces.

        Pieces of a uniform table are equal, and in other tables those without any of the hottest
        rows; these get the row past the end.
        """
        is_whole = rows == self.rows
        if self.distribution == UNIFORM or is_whole.all():
            return np.zeros_like(first_row)
        is_hot = has_hot_row(self.range_of(first_row, rows))
        return np.where(is_whole, 0, np.where(is_hot, first_row, self.rows))

    def piece(self, *, first_row: int, rows: int, width: int) -> EmbeddingTable:
        """A piece as a table of its own, with the lookups of its rows."""
        (key_row,) = self.key_rows(np.array([first_row]), np.array([rows])).tolist()
        return self.pieces([(key_row, rows, width)])[0]

    def pieces(self, cuts: Sequence[tuple[int, int, int]]) -> list[EmbeddingTable]:
        """Tables of their own from key row, rows and width of each piece."""
        first_row, rows, _ = np.array(cuts, dtype=np.int64).reshape(-1, 3).T
        shares = self.shares_of(first_row, rows).tolist()
        # Read common fields once: a plan may have a million pieces.
        shared = {one.name: getattr(self, one.name) for one in fields(self)} | {"piece_of": self}
        return [
            self.of_width(width)
            if held == self.rows
            else EmbeddingTable(
                **shared
                | {
                    "rows": held,
                    "width": width,
                    "pooling_factor": self.pooling_factor * share,
                    "pooling_deviation": self.pooling_deviation * share,
                    "first_row": first,
                }
            )
            for (first, held, width), share in zip(cuts, shares, strict=True)
        ]

    def of_width(self, width: int) -> EmbeddingTable:
        """A column-wise piece; all columns are the table."""
        return self if width == self.width else replace(self, width=width)

    def shares_of(self, first_row: Int64s, rows: Int64s) -> Floats:
        """The shares of lookups that go to row-wise pieces."""
        if self.distribution == UNIFORM or (rows == self.rows).all():
            return rows / self.rows
        return _known_shares(self, first_row.tobytes(), rows.tobytes())


@lru_cache(maxsize=MOST_TABLES)
def _known_shares(table: EmbeddingTable, *columns: bytes) -> Floats:
    """Plans cut tables in the same ways again and again."""
    first_row, rows = (np.frombuffer(column, dtype=np.int64) for column in columns)
    return table.popularity.piece(table.range_of(first_row, rows)).share


def spread_hot_rows(tables: Sequence[EmbeddingTable]) -> tuple[EmbeddingTable, ...]:
    """The tables of one model, the hottest row of each at another place, as it is unknown.

    By size, any number of successive tables has its hottest rows spread evenly: multiples of the
    golden ratio. Names decide nothing, and the order matters only between equal tables.
    """
    spread = list(tables)
    skewed = [place for place, table in enumerate(tables) if table.distribution != UNIFORM]
    for number, place in enumerate(sorted(skewed, key=lambda place: _size_key(tables[place]))):
        spread[place] = replace(tables[place], hottest_ratio=number * _GOLDEN_RATIO % 1)
    return tuple(spread)


def _size_key(table: EmbeddingTable) -> tuple[float | str, ...]:
    sizes = table.rows, table.width, table.pooling_factor, table.pooling_deviation
    return *sizes, str(table.distribution)
