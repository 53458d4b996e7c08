"""Lookups: operators that read rows of a table, recorded with the script's real indices."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from embeddings.distribution import observe
from perfmodel.emulation.device.gpu import VirtualGpu
from perfmodel.emulation.device.operators import OperatorKernel

LOOKUPS = frozenset(
    {
        "embedding",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "embedding_dense_backward",
        "_embedding_bag_dense_backward",
    }
)
"""Operators of aten that read, or add up gradients for, rows of a table."""


class LookupKernel(OperatorKernel):
    """The kernel of a lookup or of its backward pass."""

    def __init__(self, gpu: VirtualGpu, op: Any) -> None:
        super().__init__(gpu, op)
        self._lookup_gpu = gpu
        names = [argument.name for argument in op._schema.arguments]
        self._place = names.index("indices")

    def kind_of_call(self, kind: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The planned kind with the rows that are asked for and how often."""
        recorder = self._lookup_gpu.recorder
        if not recorder.is_on:
            return kind
        indices: Tensor = args[self._place] if self._place < len(args) else kwargs["indices"]
        known = self._lookup_gpu.values.known(indices)
        if known is None or known.numel() == 0:
            recorder.stand_in("indices of a lookup")
            return kind
        seen = observe(known.numpy())
        rows = {"times": list(seen.times), "rows_seen": list(seen.rows_seen)}
        return recorder.intern_kind(recorder.kinds[kind] | {"observed": rows})
