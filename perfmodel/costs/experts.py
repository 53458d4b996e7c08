"""Experts: grouped GEMMs of training, and whole layers as benchmarks measure them.

Both use the constants of the same fits. A format that was not measured on a chip uses the
constants of the nearest format, which are ratios of the chip's own rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.calibration_files import Entry, Match, entries_for, match_entry
from perfmodel.costs.estimates import (
    Bound,
    CalibratedModel,
    CodeColumn,
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.expert_physics import (
    ExpertConstants,
    ExpertLayer,
    layer_features,
    layer_shapes,
    predict_grouped_times,
    predict_layer_times,
    smooth_log_ratio,
)
from perfmodel.costs.gemm import check_multiplies, machine_rates
from perfmodel.costs.sustained import arithmetic_slowdown
from perfmodel.graph.ops import GroupedGemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

STAND_IN_SIGMA = 0.1
_NEAREST = (DType.FP8_BLOCK, DType.FP8, DType.BF16)


class ExpertLayerModel(CalibratedModel):
    """Prices whole layers, as measured tables hold them."""

    family = "gemm"
    kind = "experts"

    def price(self, ops: Sequence[ExpertLayer], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device*; benchmarks have no *stack*."""
        del stack
        entries = self.entries(device)

        def price(variant: str, layers: Sequence[ExpertLayer]) -> Estimates:
            dtype, shapes = layers[0].dtype, layer_shapes(layers)
            match = _match_kernel(entries, device, variant, dtype)
            constants, curves = ExpertConstants(**match.entry.constants), match.entry.curves
            times = predict_layer_times(shapes, machine_rates(device, dtype), constants)
            duration_ns = times.duration_ns
            if curves:
                # Learned where enough models were measured.
                features = layer_features(shapes, times)
                span, weights = np.array(curves["span"]), np.array(curves["weights"])[0]
                duration_ns = duration_ns * np.exp(smooth_log_ratio(features, span, weights))
            return _estimates(duration_ns, match, Bound.COMPUTE)

        return price_by_kind(ops, rows_of_kinds(op.variant for op in ops), price)


def price_grouped_gemms(
    ops: Sequence[GroupedGemm], device: Device, stack: SoftwareStack
) -> Estimates:
    """Predict grouped GEMMs, which err and slow down together with plain ones."""

    def price(dtype: DType, chosen: Sequence[GroupedGemm]) -> Estimates:
        check_multiplies(device, dtype)
        match = _nearest(entries_for("experts", device), device, dtype)
        sizes = [(op.groups, op.m, op.n, op.k) for op in chosen]
        times = predict_grouped_times(
            np.array(sizes, dtype=np.float64).T,
            machine_rates(device, dtype),
            ExpertConstants(**match.entry.constants),
            width_bytes=dtype.size_bits / BITS_PER_BYTE,
            slowdown=arithmetic_slowdown(device, stack, dtype),
        )
        is_memory = times.memory_ns > times.arithmetic_ns
        bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE).astype(np.int8)
        return _estimates(times.duration_ns, match, bound)

    dtypes = (stack.matmul_dtypes.get(op.dtype, op.dtype) for op in ops)
    return price_by_kind(ops, rows_of_kinds(dtypes), price)


def _match_kernel(entries: Sequence[Entry], device: Device, variant: str, dtype: DType) -> Match:
    """The fit of this kernel on the chip or its family, else of another kernel there."""
    match = match_entry(entries, device, variant)
    if match is not None and match.is_family:
        return match
    nearest = _nearest(entries, device, dtype)
    return nearest if match is None or nearest.is_family else match


def _nearest(entries: Sequence[Entry], device: Device, dtype: DType) -> Match:
    """The best fit for GEMMs of *dtype*: of the nearest chip, the one with the least spread."""
    formats = (dtype, *_NEAREST) if dtype.is_quantised else (DType.BF16,)
    for distance, word in enumerate(dict.fromkeys(formats)):
        variants = {one.variant for one in entries if one.variant.endswith(f"/{word.value}")}
        found = [
            match
            for variant in sorted(variants)
            if (match := match_entry(entries, device, variant)) is not None
        ]
        if found:
            best = min(found, key=lambda one: (one.borrowed_sigma, one.entry.relative_sigma))
            sigma = best.borrowed_sigma + (STAND_IN_SIGMA if distance else 0.0)
            return Match(best.entry, sigma)
    raise CalibrationError(
        f"experts: no constants for {dtype.value} in the calibration. "
        "Make them with `perfmodel calibrate experts`."
    )


def _estimates(duration_ns: FloatColumn, match: Match, bound: CodeColumn | Bound) -> Estimates:
    return build_estimates(
        duration_ns,
        relative_sigma=float(np.hypot(match.entry.relative_sigma, match.borrowed_sigma)),
        provenance=Provenance.INTERPOLATED if match.is_own else Provenance.EXTRAPOLATED,
        bound=bound,
    )
