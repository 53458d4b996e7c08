"""Lookup: what one fused embedding kernel of a rank reads, pools and updates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embeddings.table import EmbeddingTable


@dataclass(frozen=True, slots=True)
class Lookup:
    """All *tables* of a rank, looked up for *batch_size* samples in one kernel.

    *optimizer* is the update fused into the backward pass.
    """

    tables: tuple[EmbeddingTable, ...]
    batch_size: int
    optimizer: str = "sgd"

    def lookup_count(self, table: EmbeddingTable) -> float:
        """Rows of *table* read for the batch, repeats counted."""
        return self.batch_size * table.pooling_factor

    def distinct_rows(self, table: EmbeddingTable) -> float:
        """Expected number of different rows of *table* in the batch, for uniform indices.

        A row is missed by every draw with probability (1 - 1/rows) ** draws.
        """
        if table.rows == 1:
            return min(1.0, self.lookup_count(table))
        draws = self.lookup_count(table)
        return -table.rows * math.expm1(draws * math.log1p(-1 / table.rows))
