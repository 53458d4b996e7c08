"""Convolutions: priced by their implicit product, which is never written to memory.

Arithmetic is that of the product at the tiles and waves a product has; traffic is the
operands and the output once, not the unrolled input. A convolution with fewer than
eight output channels in a group (depthwise) has no use for tensor cores: it runs at
the vector rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import Bound, Estimates, FloatColumn, build_estimates
from perfmodel.costs.gemm.model import (
    GemmModel,
    gemm_shapes,
    machine_rates,
    rows_by_dtype,
)
from perfmodel.costs.gemm.physics import predict_arithmetic_ns
from perfmodel.costs.memory.curves import FLOOR_NS, soft_maximum
from perfmodel.costs.sustained import arithmetic_slowdown
from perfmodel.graph.ops import Convolution
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

LEAST_TENSOR_COLUMNS = 8
"""Output channels of a group below which a kernel without tensor cores runs."""
MEMORY_RATIO = 0.85
"""What kernels that stream their operands reach of the memory's rate."""
CONVOLUTION_SIGMA = 0.25
"""No table of convolutions was measured: the constants are those of products."""


class ConvolutionModel:
    """Prices convolutions and their gradients."""

    family = "gemm"

    def __init__(self, products: GemmModel | None = None) -> None:
        self._products = GemmModel() if products is None else products

    def price(self, ops: Sequence[Convolution], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""
        arithmetic_ns = self._arithmetic_ns(ops, device, stack)
        moved_bytes = np.array([op.read_bytes + op.write_bytes for op in ops], dtype=np.float64)
        rate = MEMORY_RATIO * device.memory_bandwidth_bytes_per_s
        memory_ns = moved_bytes * NS_PER_S / rate
        return build_estimates(
            soft_maximum(arithmetic_ns, FLOOR_NS + memory_ns),
            relative_sigma=CONVOLUTION_SIGMA,
            provenance=Provenance.EXTRAPOLATED,
            bound=np.where(memory_ns > arithmetic_ns, Bound.MEMORY, Bound.COMPUTE),
        )

    def _arithmetic_ns(
        self, ops: Sequence[Convolution], device: Device, stack: SoftwareStack
    ) -> FloatColumn:
        products = [op.product for op in ops]
        times_ns = np.empty(len(ops), dtype=np.float64)
        for stored, rows in rows_by_dtype(products).items():
            dtype = stack.matmul_dtypes.get(stored, stored)
            constants = self._products.calibration(device, dtype).constants
            shapes = gemm_shapes([products[row] for row in rows])
            machine = machine_rates(device, dtype)
            slowdown = arithmetic_slowdown(device, stack, dtype)
            times_ns[list(rows)] = predict_arithmetic_ns(shapes, machine, constants) * slowdown
        vector_ns = FLOOR_NS + np.array([op.flops for op in ops]) * NS_PER_S / device.vector_flops
        is_thin = np.array([op.n < LEAST_TENSOR_COLUMNS for op in ops])
        return np.where(is_thin, vector_ns, times_ns)
