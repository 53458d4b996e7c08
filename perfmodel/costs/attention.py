"""Attention: fused kernels by name, or unfused as products and passes over the scores.

The kernel is an input: on one GPU kernels differ by 14 to 40 %. A name stands
for one implementation measured by one collector, or for a generation
(`flash2`, `flash3`), which takes the best-known member the device has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.attention_physics import (
    AttentionConstants,
    AttentionShapes,
    attention_features,
    predict_attention_times,
)
from perfmodel.costs.calibration_files import Entry, Match, load_entries, match_entry
from perfmodel.costs.estimates import Bound, Estimates, build_estimates, scatter_estimates
from perfmodel.costs.gemm import machine_rates
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.costs.unfused_attention import UNFUSED, price_unfused
from perfmodel.graph.ops import Attention, Pass
from topologies import Device

GENERATIONS: dict[str, tuple[str, ...]] = {
    "flash2": ("flash_attention", "vllm_flash_attn", "vllm_flash_attn_fa2",
               "vllm_vit_flash_attn_fa2"),
    "flash3": ("fa3", "vllm_flash_attn_fa3", "flash_attention_v3", "vllm_vit_flash_attn_fa3"),
    "flash4": ("vllm_flash_attn_fa4",),
    "trtllm": ("torch_flow",),
    "triton": ("triton",),
    "cudnn": ("cudnn",),
}  # fmt: skip
"""Which measured kernels a generation stands for, best measured first."""

OTHER_MASK_SIGMA = 0.08
OTHER_DTYPE_SIGMA = 0.12
OTHER_KERNEL_SIGMA = 0.10
BACKWARD_KERNEL = "cudnn"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Calls that one set of constants prices."""

    kernel: str
    is_causal: bool
    is_backward: bool
    dtype: DType


class AttentionModel:
    """Prices attention."""

    family = "attention"

    def __init__(self, entries: Sequence[Entry] | None = None) -> None:
        self._entries = entries

    def price(self, ops: Sequence[Attention], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""
        kinds = [_kind(op, device, stack) for op in ops]
        parts, places = [], []
        for kind in dict.fromkeys(kinds):
            rows = [row for row, other in enumerate(kinds) if other == kind]
            chosen = [ops[row] for row in rows]
            parts.append(self._price_kind(chosen, kind, device, stack))
            places.append(np.array(rows, dtype=np.intp))
        return parts[0] if len(parts) == 1 else scatter_estimates(parts, places)

    def _price_kind(
        self, ops: Sequence[Attention], kind: _Kind, device: Device, stack: SoftwareStack
    ) -> Estimates:
        if kind.kernel == UNFUSED:
            return price_unfused(ops, device, stack)
        entries = load_entries("attention") if self._entries is None else tuple(self._entries)
        match, extra = match_kernel(entries, device, kind)
        return price_attentions(
            attention_shapes(ops),
            machine_rates(device, kind.dtype),
            match,
            slowdown=stack.slowdown(device.architecture.value),
            extra_sigma=extra,
        )


def match_kernel(entries: Sequence[Entry], device: Device, kind: _Kind) -> tuple[Match, float]:
    """The nearest entry for a kind of call, and what standing in for another costs."""
    found = [
        (match, extra)
        for variant, extra in _variants(kind)
        if (match := match_entry(entries, device, variant)) is not None
    ]
    if not found and kind.is_backward and kind.kernel != BACKWARD_KERNEL:
        # Backward was measured for one kernel only; the others run the same five products.
        substitute = replace(kind, kernel=BACKWARD_KERNEL)
        match, extra = match_kernel(entries, device, substitute)
        return match, extra + OTHER_KERNEL_SIGMA
    if not found:
        known = sorted({entry.variant.split("/")[0] for entry in entries})
        raise CalibrationError(
            f"attention kernel {kind.kernel!r}: must be `unfused`, `auto` or one of "
            f"{', '.join([*GENERATIONS, *known])}."
        )
    return min(found, key=lambda pair: (pair[0].borrowed_sigma + pair[1], pair[0].entry.variant))


def _variants(kind: _Kind) -> list[tuple[str, float]]:
    """Variants that may price *kind*, and what standing in for it adds to the spread."""
    direction = "backward" if kind.is_backward else "forward"
    masks = ("causal", "full") if kind.is_causal else ("full", "causal")
    is_half = kind.dtype in (DType.BF16, DType.FP16)
    suffixes = [("", 0.0 if is_half else OTHER_DTYPE_SIGMA)]
    if not is_half:
        suffixes.insert(0, (f"/{kind.dtype.value}", 0.0))
    return [
        (f"{name}/{direction}/{mask}{suffix}", dtype_sigma + mask_sigma + 0.001 * place)
        for place, name in enumerate(GENERATIONS.get(kind.kernel, (kind.kernel,)))
        for mask, mask_sigma in zip(masks, (0.0, OTHER_MASK_SIGMA), strict=True)
        for suffix, dtype_sigma in suffixes
    ]


def price_attentions(
    shapes: AttentionShapes,
    machine: MachineRates,
    match: Match,
    *,
    slowdown: float = 1.0,
    extra_sigma: float = 0.0,
) -> Estimates:
    """Predict *shapes* with the constants of *match*."""
    constants = AttentionConstants(**match.entry.constants)
    times = predict_attention_times(shapes, machine, constants)
    duration_ns = times.duration_ns
    sigma = np.full(len(shapes), match.entry.relative_sigma)
    is_inside = np.full(len(shapes), match.is_own)
    if match.entry.correction is not None:
        corrected = match.entry.correction.apply(attention_features(shapes, machine, times))
        duration_ns = duration_ns * np.exp(corrected.log_ratio)
        sigma = corrected.relative_sigma
        is_inside &= corrected.is_inside
    is_memory = times.memory_ns > 0.5 * times.duration_ns
    bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE)
    return build_estimates(
        duration_ns * np.where(is_memory, 1.0, slowdown),
        relative_sigma=np.sqrt(sigma**2 + match.borrowed_sigma**2 + extra_sigma**2),
        provenance=np.where(
            is_inside & (extra_sigma < 0.01), Provenance.INTERPOLATED, Provenance.EXTRAPOLATED
        ),
        bound=np.where(times.duration_ns < 2 * constants.floor_ns, Bound.LATENCY, bound),
    )


def attention_shapes(ops: Sequence[Attention]) -> AttentionShapes:
    """*ops* as columns."""
    rows = [
        (op.batch, op.query_length, op.key_length, op.heads, op.kv_heads, op.head_dim,
         op.dtype.size_bytes, op.is_causal, op.direction is Pass.BACKWARD)
        for op in ops
    ]  # fmt: skip
    columns = np.array(rows, dtype=np.float64).reshape(-1, 9).T
    batch, queries, keys, heads, kv_heads, head_dim, width, is_causal, is_backward = columns
    return AttentionShapes(
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width_bytes=width,
        is_causal=is_causal > 0,
        is_backward=is_backward > 0,
    )


def _kind(op: Attention, device: Device, stack: SoftwareStack) -> _Kind:
    kernel = op.kernel
    if kernel == "auto":
        kernel = stack.attention_kernel(device.architecture.value)
    return _Kind(kernel, op.is_causal, op.direction is Pass.BACKWARD, op.dtype)
