"""Benchmarks: pricing the rows of measured tables the way they were measured.

Half-precision products were timed in replays of a CUDA graph over rotating
weights; fp32 operators from the host, again and again on the same operands.
Rows of recordings say that they ran in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.costs.estimates import Estimates, concatenate_estimates, scatter_estimates
from perfmodel.costs.gemm_physics import Residency
from perfmodel.costs.kernel_model import KernelModel
from perfmodel.costs.stack_files import load_stack
from perfmodel.costs.tables.kernel_table import MeasuredKernel
from topologies import load_device

BENCHMARK_STACK = "kernel_benchmark"


def benchmark_residency(dtype: DType) -> Residency:
    """Where operands of *dtype* were when the public tables were measured."""
    return Residency.REPEATED if dtype is DType.FP32 else Residency.ROTATING


def residency_of(kernel: MeasuredKernel) -> Residency:
    """Where the operands of *kernel* were: as its table says, or as in the public tables."""
    return kernel.residency or benchmark_residency(kernel.op.dtype)


def price_measured(kernels: Sequence[MeasuredKernel], model: KernelModel) -> Estimates:
    """Predict *kernels*, in order, each on its own device."""
    stack = load_stack(BENCHMARK_STACK)
    rows_of: dict[tuple[str, Residency], list[int]] = {}
    for row, kernel in enumerate(kernels):
        key = (kernel.device, residency_of(kernel))
        rows_of.setdefault(key, []).append(row)
    parts, places = [], []
    for (device, residency), rows in rows_of.items():
        ops = [kernels[row].op for row in rows]
        parts.append(model.price(ops, load_device(device), replace(stack, residency=residency)))
        places.append(np.array(rows, dtype=np.intp))
    return scatter_estimates(parts, places) if parts else concatenate_estimates(())
