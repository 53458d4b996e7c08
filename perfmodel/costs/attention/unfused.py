"""Unfused attention: batched products and passes over the matrix of scores.

Nothing is saved by a causal mask: the whole matrix is made, masked and read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import Bound, Estimates, build_estimates
from perfmodel.costs.gemm.model import GemmModel
from perfmodel.costs.memory.model import MemoryModel
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.stacks.stack import Fusion, SoftwareStack
from topologies import Device

UNFUSED = "unfused"
SEPARATE_PASSES = 3
"""Passes over the scores without fusion: scale and mask, softmax, dropout."""


def price_unfused(ops: Sequence[Attention], device: Device, stack: SoftwareStack) -> Estimates:
    """Predict *ops* as products plus passes over the scores."""
    gemms = [gemm for op in ops for gemm in _products(op)]
    passes = [_passes(op, stack) for op in ops]
    products = GemmModel().price(gemms, device, stack)
    memory = MemoryModel().price(passes, device, stack)
    starts = np.cumsum([0] + [len(_products(op)) for op in ops])[:-1]
    product_ns = np.add.reduceat(products.duration_ns, starts)
    total_ns = product_ns + memory.duration_ns
    return build_estimates(
        total_ns,
        relative_sigma=0.15,
        provenance=Provenance.ANALYTIC,
        bound=np.where(memory.duration_ns > product_ns, Bound.MEMORY, Bound.COMPUTE),
    )


def _products(op: Attention) -> tuple[Gemm, ...]:
    count = op.batch * op.heads
    scores = Gemm(op.query_length, op.key_length, op.head_dim, op.dtype, batch=count)
    mixed = Gemm(op.query_length, op.head_dim, op.key_length, op.dtype, batch=count)
    transposed = Gemm(op.key_length, op.head_dim, op.query_length, op.dtype, batch=count)
    if op.direction is Pass.FORWARD:
        return scores, mixed
    # Gradients of values and probabilities, then of queries and keys.
    return transposed, scores, mixed, transposed


def _passes(op: Attention, stack: SoftwareStack) -> MemoryBound:
    scores_bytes = op.batch * op.heads * op.query_length * op.key_length * op.dtype.size_bytes
    count = 1 if stack.fuses(Fusion.SOFTMAX_MASK) else SEPARATE_PASSES
    reads = 2 if op.direction is Pass.BACKWARD else 1
    return MemoryBound(
        operator="softmax" if op.direction is Pass.FORWARD else "softmax_backward",
        read_bytes=count * reads * scores_bytes,
        write_bytes=count * scores_bytes,
        dtype=op.dtype,
        row_length=op.key_length,
    )
