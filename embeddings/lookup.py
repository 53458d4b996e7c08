"""Lookup: what one fused embedding kernel of a rank reads, pools and updates."""

from __future__ import annotations

from dataclasses import dataclass

from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
"""Updates that are fused into the backward pass."""
KERNELS = ("fbgemm", "table_batched")
"""Implementations of the fused kernel."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """All *tables* of a rank, looked up for *batch_size* samples in one kernel.

    *optimizer* is the update fused into the backward pass. *kernel* is `fbgemm`,
    which sorts the indices for it, or its predecessor `table_batched`.
    """

    tables: tuple[EmbeddingTable, ...]
    batch_size: int
    optimizer: str = "sgd"
    kernel: str = "fbgemm"

    def __post_init__(self) -> None:
        for what, word, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("kernel", self.kernel, KERNELS),
        ):
            if word not in known:
                raise PlanError(f"lookup: {what} must be one of {', '.join(known)}, got {word!r}.")

    def lookup_count(self, table: EmbeddingTable) -> float:
        """Rows of *table* read for the batch, repeats counted."""
        return self.batch_size * table.pooling_factor

    def distinct_rows(self, table: EmbeddingTable) -> float:
        """Expected number of different rows of *table* in the batch."""
        return table.popularity.distinct_rows(self.lookup_count(table))
