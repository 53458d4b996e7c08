"""DlrmSpec: a recommendation model: dense features, embedding tables, interaction, top layers.

`batch` counts samples over all ranks.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from embeddings.distribution import UNIFORM, IndexDistribution, Zipf
from embeddings.plan import ShardingKind
from embeddings.sharders import DEFAULT_SHARDER, HYBRID_SHARDERS, SHARDERS
from embeddings.table import (
    MOST_ROWS,
    MOST_TABLES,
    EmbeddingTable,
    TableMemory,
    spread_hot_rows,
)
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.base.fields import LayerCount, Number, NumberFormat, Size, Switch, Width, Words
from perfmodel.workloads.fields import SpecSection, Workload

Widths = Annotated[tuple[Width, ...], Field(min_length=1, max_length=MOST_TABLES)]
Row = Annotated[int, Field(strict=True, ge=1, le=MOST_ROWS)]
Rows = Annotated[tuple[Row, ...], Field(min_length=1, max_length=MOST_TABLES)]
CachedRatio = Annotated[float, Field(gt=0, le=1)]


class Interaction(Enum):
    """How dense and sparse features meet.

    WIDE_DEEP and DEEP_FM feed the concatenation to the top layers and add sums to their output:
    both the rows of tables of width 1, DEEP_FM also a factorization machine over the other tables.
    SEQUENCE runs layers of attention over the vectors of a sample's history, and feeds its targets.
    """

    DOT = "dot"
    CROSS = "cross"
    CONCAT = "concat"
    WIDE_DEEP = "wide_deep"
    DEEP_FM = "deep_fm"
    SEQUENCE = "sequence"


_SKIPPING = (Interaction.WIDE_DEEP, Interaction.DEEP_FM)


class CrossSection(SpecSection):
    """Low-rank cross layers: x <- x0 * (V (U x) + b) + x, with U of *rank* rows."""

    layers: LayerCount = 3
    rank: Width = 512


_PER_TABLE = (
    "width", "pooling_factors", "pooling_deviations", "pooled", "features", "zipf_exponents",
    "dtype", "cached_ratios", "sharding_types",
)  # fmt: skip
"""Keys that are one value for all tables, or one per table."""


class SequenceSection(SpecSection):
    """HSTU layers over *length* tokens of *width* numbers per sample, on average.

    Looked-up vectors become tokens through two layers with *encoder_width* numbers between them; 0
    leaves those out. Each layer has *heads* with *query_width* numbers of queries and keys and
    *value_width* of values and gates. *targets* tokens per sample reach the top layers.
    """

    length: Annotated[float, Field(gt=0, le=1e7)] = 1024.0
    length_deviation: Number = 0.0
    width: Width = 512
    layers: LayerCount = 5
    heads: Width = 4
    query_width: Width = 128
    value_width: Width = 128
    encoder_width: Annotated[int, Field(ge=0, le=2**20)] = 0
    targets: Width = 1


class EmbeddingSection(SpecSection):
    """The tables. A single *width* or *pooling_factors* applies to all of them.

    *zipf_exponents* say how skewed the indices of each table are; 0 is uniform,
    and only *zipf_rows* of its rows occur; all if left out. With *fixed_bags*
    both refer to identifiers that each represent a whole bag of rows.
    *exchange_dtype* is what pooled rows and their gradients travel in. Tables that are not
    *pooled* return every row that a sample looks up, and *pooling_deviations* say how much the
    number of those differs between samples. A pooled table returns a vector for each of the
    *features* that share it; its pooling factor is that of all of them. Of a table with a ratio
    in *cached_ratios* below 1 only that share is on the device, the whole in host memory.
    *sharding_types* are how a table may be cut, words joined by `+`; any way without them.
    """

    rows: Rows
    width: Width | Widths
    pooling_factors: Number | tuple[Number, ...] = 1.0
    pooling_deviations: Number | tuple[Number, ...] = 0.0
    pooled: Switch | tuple[Switch, ...] = True
    features: Width | tuple[Width, ...] = 1
    zipf_exponents: Number | tuple[Number, ...] = 0.0
    zipf_rows: Rows | None = None
    fixed_bags: Switch = False
    dtype: NumberFormat | tuple[NumberFormat, ...] = DType.FP32
    cached_ratios: CachedRatio | tuple[CachedRatio, ...] = 1.0
    sharding_types: str | tuple[str, ...] = ""
    exchange_dtype: NumberFormat = DType.FP32
    index_dtype: NumberFormat = DType.INT64
    optimizer: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "sgd"

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        for name in (*_PER_TABLE, "zipf_rows"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != len(self.rows):
                raise ValueError(
                    f"{name} must be one number or one per table, got {len(value)} for "
                    f"{len(self.rows)} tables"
                )
        stated = self.sharding_types
        words = {word for ways in (stated if isinstance(stated, tuple) else (stated,))
                 for word in ways.split("+") if ways}  # fmt: skip
        if unknown := words - {kind.value for kind in ShardingKind}:
            known = ", ".join(kind.value for kind in ShardingKind)
            raise ValueError(f"sharding_types must be of {known}, got {', '.join(sorted(unknown))}")
        return self

    def tables(self) -> tuple[EmbeddingTable, ...]:
        """The tables, named by their place."""
        return _build_tables(self)

    @property
    def widths(self) -> Counter[int]:
        """How many vectors of each width a sample gets from pooled tables."""
        return _count_widths(self)

    @property
    def received_numbers(self) -> float:
        """Numbers that a sample receives: every vector of tables that are not pooled."""
        return _count_numbers(self)

    @property
    def total_width(self) -> int:
        """Numbers that a sample gets from all tables."""
        return sum(width * count for width, count in self.widths.items())

    def __hash__(self) -> int:
        """By a little of it: what is found of ten thousand tables is asked for all the time."""
        return hash((len(self.rows), self.rows[0], self.dtype))


@lru_cache(maxsize=64)
def _count_widths(section: EmbeddingSection) -> Counter[int]:
    return Counter(table.width for table in section.tables() for _ in range(table.features))


@lru_cache(maxsize=64)
def _count_numbers(section: EmbeddingSection) -> float:
    return sum(table.sample_numbers for table in section.tables())


@lru_cache(maxsize=64)
def _build_tables(section: EmbeddingSection) -> tuple[EmbeddingTable, ...]:
    count = len(section.rows)
    values = [getattr(section, name) for name in _PER_TABLE]
    columns = [value if isinstance(value, tuple) else (value,) * count for value in values]
    return spread_hot_rows(
        [
            EmbeddingTable(
                f"table_{place}",
                rows,
                int(width),
                pooling,
                dtype,
                _distribution(section, exponent, place, pooling),
                deviation,
                is_pooled=is_pooled,
                memory=TableMemory.DEVICE if cached == 1 else TableMemory.HOST_CACHED,
                cached_ratio=cached,
                features=features,
                sharding_types=tuple(ways.split("+")) if ways else (),
            )
            for place, (
                rows,
                width,
                pooling,
                deviation,
                is_pooled,
                features,
                exponent,
                dtype,
                cached,
                ways,
            ) in enumerate(zip(section.rows, *columns, strict=True))
        ]
    )


def _distribution(
    section: EmbeddingSection, exponent: float, place: int, pooling: float
) -> IndexDistribution:
    if not exponent:
        return UNIFORM
    occurring = None if section.zipf_rows is None else section.zipf_rows[place]
    return Zipf(exponent, max(1, round(pooling)) if section.fixed_bags else 1, occurring)


class ShardingSection(SpecSection):
    """How tables are placed when no plan is given.

    *sharder* is one of those that `rank` knows, by name. The balanced one copies
    tables below *data_parallel_below* to every rank, larger ones where that pays, and
    cuts tables into pieces of at least *min_width* columns and at most *max_shard*. With
    *host_memory* it puts tables that the GPUs have no room for into host memory, behind caches.
    """

    sharder: Words = DEFAULT_SHARDER
    data_parallel_below: Size = 0
    min_width: Width = 32
    max_shard: Size = 24 * 2**30
    host_memory: Switch = True

    @model_validator(mode="after")
    def _check_sharder(self) -> Self:
        known = (*SHARDERS, *HYBRID_SHARDERS)
        if self.sharder not in known:
            raise ValueError(f"sharder must be one of {', '.join(known)}, got {self.sharder!r}")
        return self


class DenseSection(SpecSection):
    """The dense part: two stacks of fully connected layers and what stands between them.

    *bottom_mlp* may be empty; the features then go to the interaction as they are.
    """

    features: Width
    bottom_mlp: tuple[Width, ...]
    top_mlp: Widths
    interaction: Interaction = Interaction.DOT
    cross: CrossSection = CrossSection()
    sequence: SequenceSection = SequenceSection()


class DlrmTraining(SpecSection):
    """How the model is trained. *optimizer* is that of the dense part.

    With *distribute_ahead* the indices of the next batch travel while this one is worked on. What
    is *forward_only* computes no gradients.
    """

    precision: NumberFormat = DType.FP32
    optimizer: Literal["sgd", "adagrad", "adam"] = "sgd"
    bucket_size: Size = 25 * 2**20
    distribute_ahead: Switch = True
    forward_only: Switch = False


class DlrmSpec(Workload):
    """A recommendation workload."""

    family: Literal["dlrm"]
    dense: DenseSection
    embedding: EmbeddingSection
    sharding: ShardingSection = ShardingSection()
    training: DlrmTraining = DlrmTraining()

    def check_interaction(self) -> Self:
        """Refuse tables that the interaction cannot join."""
        kind, widths = self.dense.interaction, set(self.embedding.widths)
        deep, is_sequence = widths - {1}, any(not one.is_pooled for one in self.embedding.tables())
        for of, is_met, need in (
            (
                Interaction.DOT,
                widths <= {self.dense_width},
                f"of width {self.dense_width}, that of the last bottom layer (concat takes any)",
            ),
            (Interaction.WIDE_DEEP, deep, "wider than 1"),
            (Interaction.WIDE_DEEP, 1 in widths, "of width 1"),
            (Interaction.DEEP_FM, len(deep) == 1, "of one width in addition to those of width 1"),
            (Interaction.SEQUENCE, is_sequence, "that are not pooled"),
        ):
            if kind is of and not is_met:
                shown = ", ".join(map(str, sorted(widths)))
                raise ValueError(f"{of.value} interaction needs tables {need}, got widths {shown}")
        return self

    _check_interaction = model_validator(mode="after")(check_interaction)

    @property
    def dense_width(self) -> int:
        """Numbers a sample brings from the dense features to the interaction."""
        return self.dense.bottom_mlp[-1] if self.dense.bottom_mlp else self.dense.features

    @property
    def wide_tables(self) -> int:
        """Tables whose rows are summed up past the top layers."""
        if self.dense.interaction not in _SKIPPING:
            return 0
        return self.embedding.widths[1]

    @property
    def deep_inputs(self) -> int:
        """Numbers a sample brings from the tables to the interaction."""
        return self.embedding.total_width - self.wide_tables

    @property
    def deep_width(self) -> int:
        """The width of the widest table."""
        return max(self.embedding.widths)

    @property
    def interaction_inputs(self) -> int:
        """Numbers a sample brings to the interaction."""
        return self.dense_width + self.deep_inputs

    @property
    def top_inputs(self) -> int:
        """Numbers a sample, or each of its targets, brings to the top layers."""
        if self.sequence is not None:
            return self.sequence.width
        if self.dense.interaction is not Interaction.DOT:
            return self.interaction_inputs
        vectors = self.embedding.widths.total() + 1
        return self.dense_width + vectors * (vectors - 1) // 2

    @property
    def outputs(self) -> int:
        """Outputs per sample: one for each target of a sequence."""
        return 1 if self.sequence is None else self.sequence.targets

    @property
    def sequence(self) -> SequenceSection | None:
        """The layers over a sample's history, if the model has any."""
        is_sequence = self.dense.interaction is Interaction.SEQUENCE
        return self.dense.sequence if is_sequence else None

    @property
    def has_skipping_sums(self) -> bool:
        """Whether something is added to the output of the top layers."""
        return self.dense.interaction in _SKIPPING


def local_batch(spec: DlrmSpec, *, rank_count: int) -> int:
    """Samples of one rank; the batch must be divisible by the ranks."""
    if spec.batch % rank_count:
        below = spec.batch // rank_count * rank_count
        raise WorkloadError(
            f"{spec.name}: batch must be divisible by the number of ranks, got {spec.batch} on "
            f"{rank_count} ranks. Use batch={below or rank_count} or batch={below + rank_count}."
        )
    return spec.batch // rank_count
