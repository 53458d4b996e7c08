"""Attention: fused kernels by name, or unfused as GEMMs and passes over the scores.

The kernel is an input: on one GPU kernels differ by 14 to 40 %, generations by a factor of two.
`attention_kernels` chooses the constants of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.provenance import Provenance
from perfmodel.costs.attention_kernels import FLASH1, AttentionKind, KernelRecipe, find_recipe
from perfmodel.costs.attention_physics import (
    AttentionConstants,
    AttentionShapes,
    AttentionTimes,
    BackwardConstants,
    attention_features,
    predict_backward_ns,
    predict_forward_times,
)
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.estimates import (
    Bound,
    CalibratedModel,
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.gemm_features import machine_rates
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.costs.memory import MemoryModel
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.stacks.capabilities import Fusion
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

BEYOND_FEW_ROWS_SIGMA = 0.15
"""A handful of rows of one head size says little about others: published rates of cuDNN with
heads of 64 are a quarter below those extrapolated from rows with 128."""


class AttentionModel(CalibratedModel):
    """Prices attention."""

    family = kind = "attention"

    def price(self, ops: Sequence[Attention], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""

        def price(kind: AttentionKind, chosen: Sequence[Attention]) -> Estimates:
            if kind.kernel == UNFUSED:
                return price_unfused(chosen, device, stack)
            recipe = find_recipe(self.entries(device), device, kind)
            alike = [replace(op, dtype=recipe.dtype) for op in chosen]
            rates = machine_rates(device, recipe.dtype)
            return price_attentions(attention_shapes(alike), rates, recipe)

        return price_by_kind(ops, rows_of_kinds(_kind(op, device, stack) for op in ops), price)

    def describe(self, op: Attention, device: Device, stack: SoftwareStack) -> str:
        """The kernel that runs *op* and the constants that price it."""
        kind = _kind(op, device, stack)
        if kind.kernel == UNFUSED:
            return f"{UNFUSED}: GEMMs and passes over the scores"
        return f"{kind.kernel}: {find_recipe(self.entries(device), device, kind).describe(device)}"


def is_sustained(op: Attention, device: Device, stack: SoftwareStack) -> bool:
    """Whether the kernel of *op* keeps tensor cores busy enough to slow down under long load.

    Not GEMMs with passes over the scores between, and not flash-attention 1: runs of llm-foundry
    take 1.8 and 1.9 times the burst of flash-attention 2 on A100 and H100 alike, of which the
    kernel is taken to explain 2.
    """
    return _kind(op, device, stack).kernel not in (UNFUSED, FLASH1)


def price_attentions(
    shapes: AttentionShapes, rates: MachineRates, recipe: KernelRecipe
) -> Estimates:
    """Predict *shapes* by *recipe* on a device with *rates*."""
    entry, machine = recipe.match.entry, recipe.machine(rates)
    constants = forward_constants(entry)
    if recipe.leaves_cache_out:
        # With a single key head almost nothing is written: the kernel that training runs.
        shapes = replace(shapes, kv_heads=np.ones(len(shapes)))
    times = predict_forward_times(shapes, machine, constants)
    log_ratio, sigma, is_inside = _learned(shapes, machine, times, recipe)
    duration_ns = recipe.time_ratio * (times.duration_ns * np.exp(log_ratio))
    if recipe.backward is not None:
        duration_ns = predict_backward_ns(shapes, machine, recipe.backward, forward_ns=duration_ns)
    is_memory = times.memory_ns > 0.5 * times.duration_ns
    bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE)
    return build_estimates(
        duration_ns,
        relative_sigma=np.hypot(sigma, recipe.relative_sigma),
        provenance=np.where(
            is_inside, recipe.provenance, max(recipe.provenance, Provenance.EXTRAPOLATED)
        ),
        bound=np.where(times.duration_ns < 2 * constants.floor_ns, Bound.LATENCY, bound),
    )


def _learned(
    shapes: AttentionShapes, machine: MachineRates, times: AttentionTimes, recipe: KernelRecipe
) -> tuple[FloatColumn, FloatColumn, NDArray[np.bool_]]:
    """The correction of *times* (see `apply`); without one, only its uncertainty."""
    entry = recipe.match.entry
    if entry.ordered is not None and recipe.takes_correction:
        return entry.ordered.apply(attention_features(shapes, machine, times))
    is_inside = np.full(len(shapes), True)
    for name, column in (("head_dim", shapes.head_dim), ("length", shapes.queries)):
        for low, high in entry.curves.get(name, ()):
            is_inside &= (column >= low) & (column <= high)
    sigma = np.where(is_inside, 0.0, BEYOND_FEW_ROWS_SIGMA)
    return np.zeros(len(shapes)), np.hypot(sigma, entry.relative_sigma), is_inside


def forward_constants(entry: Entry) -> AttentionConstants:
    """The constants of the forward pass in *entry*."""
    backward = BackwardConstants.__slots__
    return AttentionConstants(
        **{name: value for name, value in entry.constants.items() if name not in backward}
    )


def attention_shapes(ops: Sequence[Attention]) -> AttentionShapes:
    """*ops* as columns."""
    rows = [
        (op.batch, op.query_length, op.key_length, op.heads, op.kv_heads, op.head_dim,
         op.dtype.size_bytes, op.is_causal, op.direction is Pass.BACKWARD)
        for op in ops
    ]  # fmt: skip
    columns: Any = np.array(rows, dtype=np.float64).reshape(-1, 9).T
    return AttentionShapes(*columns[:7], *(columns[7:] > 0))


def _kind(op: Attention, device: Device, stack: SoftwareStack) -> AttentionKind:
    kernel = op.kernel
    if kernel == "auto":
        kernel = stack.attention_kernel(device.generation)
    return AttentionKind(kernel, op.is_causal, op.direction is Pass.BACKWARD, op.dtype)


UNFUSED = "unfused"
SEPARATE_PASSES = 3
"""Passes over the scores without fusion: scale and mask, softmax, dropout."""


def price_unfused(ops: Sequence[Attention], device: Device, stack: SoftwareStack) -> Estimates:
    """Predict *ops* as batched GEMMs plus passes over the matrix of scores.

    A causal mask saves nothing: the whole matrix is made, masked and read.
    """
    gemms_of = [_unfused_gemms(op) for op in ops]
    gemms = GemmModel().price([gemm for one in gemms_of for gemm in one], device, stack)
    passes = MemoryModel().price([_passes(op, stack) for op in ops], device, stack)
    starts = np.cumsum([0] + [len(one) for one in gemms_of])[:-1]
    gemm_ns = np.add.reduceat(gemms.duration_ns, starts)
    return build_estimates(
        gemm_ns + passes.duration_ns,
        relative_sigma=0.15,
        provenance=Provenance.ANALYTIC,
        bound=np.where(passes.duration_ns > gemm_ns, Bound.MEMORY, Bound.COMPUTE),
    )


def _unfused_gemms(op: Attention) -> tuple[Gemm, ...]:
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
