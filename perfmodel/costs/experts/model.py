"""Experts: grouped products of training, and whole layers as benchmarks measure them.

Both take the constants of the same fits. A format that nobody measured on a
chip takes the constants of the nearest one, which are ratios of the chip's own rate.
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
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.experts.physics import (
    ExpertConstants,
    ExpertShapes,
    GroupedShapes,
    SmoothCorrection,
    layer_features,
    predict_grouped_times,
    predict_layer_times,
    stack_shapes,
)
from perfmodel.costs.experts.table import ExpertLayer
from perfmodel.costs.gemm.model import check_multiplies, machine_rates
from perfmodel.costs.gemm.physics import MachineRates
from perfmodel.costs.sustained import arithmetic_slowdown
from perfmodel.graph.ops import GroupedGemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

STAND_IN_SIGMA = 0.1
_GATED_MATRICES, _PLAIN_MATRICES = 3.0, 2.0
_NEAREST = (DType.FP8_BLOCK, DType.FP8, DType.BF16)


def variant_of(layer: ExpertLayer) -> str:
    """The variant that constants for *layer* are filed under."""
    return f"{layer.kernel}/{layer.dtype.value}"


def layer_shapes(layers: Sequence[ExpertLayer]) -> ExpertShapes:
    """*layers* as columns."""
    return ExpertShapes(
        *stack_shapes(
            [
                (
                    layer.tokens,
                    layer.rows,
                    layer.active,
                    layer.hidden,
                    layer.ffn,
                    _GATED_MATRICES if layer.is_gated else _PLAIN_MATRICES,
                    layer.dtype.size_bits / BITS_PER_BYTE,
                )
                for layer in layers
            ]
        )
    )


class ExpertLayerModel:
    """Prices whole layers, as the tables have them."""

    family = "gemm"

    def __init__(self, entries: Sequence[Entry] | None = None) -> None:
        self._entries = entries

    def price(self, ops: Sequence[ExpertLayer], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device*; *stack* does not matter, benchmarks have none."""
        del stack
        entries = entries_for("experts", device) if self._entries is None else tuple(self._entries)

        def price(variant: str, layers: Sequence[ExpertLayer]) -> Estimates:
            dtype = layers[0].dtype
            match = _match_kernel(entries, device, variant, dtype)
            machine = machine_rates(device, dtype)
            duration_ns = _predict_ns(match.entry, layer_shapes(layers), machine)
            return _estimates(duration_ns, match, np.full(len(layers), Bound.COMPUTE))

        return price_by_kind(ops, rows_of_kinds(variant_of(op) for op in ops), price)


def _predict_ns(entry: Entry, shapes: ExpertShapes, machine: MachineRates) -> FloatColumn:
    """What the physics says, times what was learned on top where enough models were measured."""
    times = predict_layer_times(shapes, machine, ExpertConstants(**entry.constants))
    if not entry.curves:
        return times.duration_ns
    span, weights = (np.array(entry.curves[name]) for name in ("span", "weights"))
    log_ratio = SmoothCorrection(span, weights[0]).log_ratio(layer_features(shapes, times))
    corrected: FloatColumn = times.duration_ns * np.exp(log_ratio)
    return corrected


class GroupedGemmModel:
    """Prices grouped products, which err and slow down together with plain ones."""

    family = "gemm"

    def price(self, ops: Sequence[GroupedGemm], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""

        def price(dtype: DType, chosen: Sequence[GroupedGemm]) -> Estimates:
            check_multiplies(device, dtype)
            match = _nearest(entries_for("experts", device), device, dtype)
            columns = stack_shapes([(op.groups, op.m, op.n, op.k) for op in chosen])
            times = predict_grouped_times(
                GroupedShapes(*columns),
                machine_rates(device, dtype),
                ExpertConstants(**match.entry.constants),
                width_bytes=dtype.size_bits / BITS_PER_BYTE,
                slowdown=arithmetic_slowdown(device, stack, dtype),
            )
            is_memory = times.memory_ns > times.arithmetic_ns
            bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE)
            return _estimates(times.duration_ns, match, bound)

        dtypes = (stack.matmul_dtypes.get(op.dtype, op.dtype) for op in ops)
        return price_by_kind(ops, rows_of_kinds(dtypes), price)


def _match_kernel(entries: Sequence[Entry], device: Device, variant: str, dtype: DType) -> Match:
    """The fit of the kernel on the chip or a close relative, else of another kernel there."""
    match = match_entry(entries, device, variant)
    if match is not None and match.is_family:
        return match
    nearest = _nearest(entries, device, dtype)
    return nearest if match is None or nearest.is_family else match


def _nearest(entries: Sequence[Entry], device: Device, dtype: DType) -> Match:
    """The best fit for products of *dtype*: of the nearest chip, the one with the least spread."""
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


def _estimates(duration_ns: object, match: Match, bound: object) -> Estimates:
    is_own = match.borrowed_sigma == 0.0
    return build_estimates(
        np.asarray(duration_ns, dtype=np.float64),
        relative_sigma=float(np.hypot(match.entry.relative_sigma, match.borrowed_sigma)),
        provenance=Provenance.INTERPOLATED if is_own else Provenance.EXTRAPOLATED,
        bound=np.asarray(bound, dtype=np.int8),
    )
