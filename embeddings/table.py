"""EmbeddingTable: rows of numbers that a model looks up by index."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """A table of *rows* x *width* numbers; a sample looks up *pooling_factor* rows on average."""

    name: str
    rows: int
    width: int
    pooling_factor: float = 1.0
    dtype: DType = DType.FP32

    def __post_init__(self) -> None:
        for what, value in (("rows", self.rows), ("width", self.width)):
            if value < 1:
                raise PlanError(f"table {self.name!r}: {what} must be at least 1, got {value}.")
        if not self.pooling_factor >= 0:
            raise PlanError(
                f"table {self.name!r}: pooling factor must not be negative, "
                f"got {self.pooling_factor}."
            )

    @property
    def size_bytes(self) -> int:
        """Bytes the weights take, optimizer state aside."""
        return self.rows * self.width * self.dtype.size_bytes
