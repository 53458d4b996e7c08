"""Layers of experts as benchmarks measure them: routing, permutation, products, weighted sum.

Two grouped GEMMs by the physics that prices training. Rows are copied to their experts and back,
and tokens are read and written once more.

Leaves out: how unevenly the experts of one rank are loaded, except for how many are active.
Source: fitted to the public tables that `experiments/fitting` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.calibration_files import Entry, Match, match_entry
from perfmodel.costs.estimates import (
    Bound,
    CalibratedModel,
    Estimates,
    FloatColumn,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.expert_physics import (
    ACTIVATION_BYTES,
    ExpertConstants,
    ExpertTimes,
    tiles_ns,
)
from perfmodel.costs.experts import estimates_of, nearest_kernel
from perfmodel.costs.gemm_features import machine_rates
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.costs.memory import soft_maximum
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

LARGEST_CORRECTION = 0.4
"""Limit of the logarithm of the learned correction."""
_GATED_MATRICES, _PLAIN_MATRICES = 3.0, 2.0


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The experts of one layer on the most loaded rank, as a benchmark runs them."""

    kernel: str
    tokens: int
    rows: float
    active: float
    hidden: int
    ffn: int
    is_gated: bool
    dtype: DType

    @property
    def variant(self) -> str:
        """The variant that its constants are filed under."""
        return f"{self.kernel}/{self.dtype.value}"

    @property
    def flops(self) -> float:
        """Operations of its grouped GEMMs."""
        matrices = _GATED_MATRICES if self.is_gated else _PLAIN_MATRICES
        return 2 * self.rows * self.hidden * self.ffn * matrices


@dataclass(frozen=True, slots=True, eq=False)
class ExpertShapes:
    """Layers of experts as columns: what the measured rank works on.

    *matrices* is how many weights of hidden x ffn an expert has.
    """

    tokens: FloatColumn
    rows: FloatColumn
    active: FloatColumn
    hidden: FloatColumn
    ffn: FloatColumn
    matrices: FloatColumn
    width_bytes: FloatColumn


def layer_shapes(layers: Sequence[ExpertLayer]) -> ExpertShapes:
    """*layers* as columns."""
    rows = [
        (layer.tokens, layer.rows, layer.active, layer.hidden, layer.ffn,
         _GATED_MATRICES if layer.is_gated else _PLAIN_MATRICES,
         layer.dtype.size_bits / BITS_PER_BYTE)
        for layer in layers
    ]  # fmt: skip
    return ExpertShapes(*np.array(rows, dtype=np.float64).T)


def predict_layer_times(
    shapes: ExpertShapes, machine: MachineRates, constants: ExpertConstants
) -> ExpertTimes:
    """Predict the forward pass of whole layers."""

    def gemm(n: FloatColumn, k: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Both limits of one GEMM of a layer: its tiles, and the weights it reads."""
        rate = machine.memory_bytes_per_s * constants.memory_ratio
        weights_ns = shapes.active * n * k * shapes.width_bytes * NS_PER_S / rate
        return tiles_ns(shapes.rows, shapes.active, n, k, machine, constants), weights_ns

    up = gemm((shapes.matrices - 1) * shapes.ffn, shapes.hidden)
    down = gemm(shapes.hidden, shapes.ffn)
    moved = constants.row_traffic * shapes.rows * (2 * shapes.hidden + shapes.matrices * shapes.ffn)
    moved = moved + constants.token_traffic * shapes.tokens * shapes.hidden
    traffic = moved * ACTIVATION_BYTES * NS_PER_S / machine.memory_bytes_per_s
    floor_ns = constants.floor_ns + constants.expert_ns * shapes.active
    gemms = soft_maximum(*up) + soft_maximum(*down)
    return ExpertTimes(up[0] + down[0], up[1] + down[1], traffic, floor_ns + gemms + traffic)


def layer_features(shapes: ExpertShapes, times: ExpertTimes) -> FloatColumn:
    """Layers x features: sizes, and which part of the time is which."""
    rows_of_expert = shapes.rows / shapes.active
    gemms_ns = times.arithmetic_ns + times.memory_ns
    return np.stack(
        [
            np.log(times.duration_ns),
            np.log(rows_of_expert),
            np.log1p(rows_of_expert / 64),
            np.log(shapes.active),
            np.log(shapes.rows),
            np.log(shapes.tokens),
            np.log(shapes.hidden),
            np.log(shapes.ffn),
            (times.arithmetic_ns - times.memory_ns) / gemms_ns,
            times.arithmetic_ns / times.duration_ns,
            times.memory_ns / times.duration_ns,
            times.traffic_ns / times.duration_ns,
        ],
        axis=1,
    )


def smooth_log_ratio(features: FloatColumn, span: FloatColumn, weights: FloatColumn) -> FloatColumn:
    """Logs of measured over predicted times: a quadratic polynomial, clipped to the fitted range.

    *span* has one line per feature: mean, scale, lowest and highest value.
    """
    mean, scale, low, high = span.T
    inputs = (np.clip(features, low, high) - mean) / scale
    return np.clip(square_terms(inputs) @ weights, -LARGEST_CORRECTION, LARGEST_CORRECTION)


def square_terms(inputs: FloatColumn) -> FloatColumn:
    """One, each of *inputs*, and their products with each other."""
    count = inputs.shape[1]
    first, second = np.triu_indices(count)
    return np.column_stack([np.ones(len(inputs)), inputs, inputs[:, first] * inputs[:, second]])


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
            return estimates_of(duration_ns, match, Bound.COMPUTE)

        return price_by_kind(ops, rows_of_kinds(op.variant for op in ops), price)


def _match_kernel(entries: Sequence[Entry], device: Device, variant: str, dtype: DType) -> Match:
    """The fit of this kernel on the chip or its family, else of another kernel there."""
    match = match_entry(entries, device, variant)
    if match is not None and match.is_family:
        return match
    nearest = nearest_kernel(entries, device, dtype)
    return nearest if match is None or nearest.is_family else match
