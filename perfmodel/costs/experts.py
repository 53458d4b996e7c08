"""Experts: grouped GEMMs of training.

Their constants are fitted to whole layers. A format that was not measured on a chip uses the
constants of the nearest format, which are ratios of the chip's own rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.calibration_files import Entry, Match, entries_for, match_entry
from perfmodel.costs.estimates import (
    Bound,
    CodeColumn,
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.expert_physics import (
    ExpertConstants,
    predict_grouped_times,
)
from perfmodel.costs.gemm import check_multiplies
from perfmodel.costs.gemm_features import machine_rates
from perfmodel.graph.ops import GroupedGemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

STAND_IN_SIGMA = 0.1
ADDED_SHARE = 0.6
"""Of the traffic of results that products of experts are added to, what arithmetic does not hide:
median of 14 shapes under load on B200, 0.5 to 0.8."""
_NEAREST = (DType.FP8, DType.FP8_BLOCK, DType.BF16)
_TRAINING_SHAPE = (8, 4096, 4096, 4096)
"""Experts of a rank, rows of each, outputs and inputs: what kernels are compared on."""


def price_grouped_gemms(
    ops: Sequence[GroupedGemm], device: Device, stack: SoftwareStack
) -> Estimates:
    """Predict grouped GEMMs, which err together with plain ones."""

    def price(dtype: DType, chosen: Sequence[GroupedGemm]) -> Estimates:
        check_multiplies(device, dtype)
        match = _training_kernel(entries_for("experts", device), device, dtype)
        sizes = [(op.groups, op.m, op.n, op.k) for op in chosen]
        times = predict_grouped_times(
            np.array(sizes, dtype=np.float64).T,
            machine_rates(device, dtype),
            ExpertConstants(**match.entry.constants),
            width_bytes=dtype.size_bits / BITS_PER_BYTE,
        )
        is_memory = times.memory_ns > times.arithmetic_ns
        bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE).astype(np.int8)
        byte_ns = ADDED_SHARE * NS_PER_S / device.memory_bandwidth_bytes_per_s
        added_ns = byte_ns * np.array([op.added_bytes for op in chosen], dtype=np.float64)
        return estimates_of(times.duration_ns + added_ns, match, bound)

    dtypes = (stack.matmul_dtypes.get(op.dtype, op.dtype) for op in ops)
    return price_by_kind(ops, rows_of_kinds(dtypes), price)


def _training_kernel(entries: Sequence[Entry], device: Device, dtype: DType) -> Match:
    """The kernel that training takes for GEMMs of *dtype*.

    Fits are of serving kernels, some of which are made for few tokens and reach a fifth of what
    others do. Training multiplies thousands of rows an expert and takes the fastest for those. If
    all of a format with scales by block are slower than bf16, they only serve, and those of fp8
    stand in. If these are slower, too, that is a fault of the fits.
    """
    found, plain = (nearest_kernel(entries, device, one) for one in (dtype, DType.BF16))
    narrow_ns, plain_ns = (
        _reference_ns(match, device, one) for match, one in ((found, dtype), (plain, DType.BF16))
    )
    if dtype.is_quantised and dtype is not DType.FP8 and narrow_ns > plain_ns:
        stand_in = nearest_kernel(entries, device, DType.FP8)
        found = Match(stand_in.entry, stand_in.borrowed_sigma + STAND_IN_SIGMA)
        narrow_ns = _reference_ns(found, device, dtype)
    if dtype.is_quantised and narrow_ns > plain_ns:
        raise CalibrationError(
            f"experts on {device.name}: the fastest kernel for {dtype.value} "
            f"({found.entry.variant}) takes {narrow_ns / plain_ns:.1f} times as long as that for "
            f"bf16 ({plain.entry.variant}) on a training shape. Fit {dtype.value} again "
            "on tables with thousands of tokens (experiments/fitting)."
        )
    return found


def _reference_ns(match: Match, device: Device, dtype: DType) -> float:
    """What the kernel of *match* takes for a grouped GEMM as training has them."""
    times = predict_grouped_times(
        np.array([_TRAINING_SHAPE], dtype=np.float64).T,
        machine_rates(device, dtype),
        ExpertConstants(**match.entry.constants),
        width_bytes=dtype.size_bits / BITS_PER_BYTE,
    )
    return float(times.duration_ns[0])


def nearest_kernel(entries: Sequence[Entry], device: Device, dtype: DType) -> Match:
    """The fastest kernel for GEMMs of *dtype* on a training shape, of the nearest chip."""
    formats = (dtype, *_NEAREST) if dtype.is_quantised else (DType.BF16,)
    for distance, word in enumerate(dict.fromkeys(formats)):
        variants = {one.variant for one in entries if one.variant.endswith(f"/{word.value}")}
        found = [
            match
            for variant in sorted(variants)
            if (match := match_entry(entries, device, variant)) is not None
        ]
        if found:
            best = min(
                found, key=lambda one: (one.borrowed_sigma, _reference_ns(one, device, dtype))
            )
            sigma = best.borrowed_sigma + (STAND_IN_SIGMA if distance else 0.0)
            return Match(best.entry, sigma)
    raise CalibrationError(
        f"experts: no constants for {dtype.value} in the calibration. "
        "`experiments/fitting` makes them."
    )


def estimates_of(duration_ns: FloatColumn, match: Match, bound: CodeColumn | Bound) -> Estimates:
    """Estimates by the constants of *match*."""
    return build_estimates(
        duration_ns,
        relative_sigma=float(np.hypot(match.entry.relative_sigma, match.borrowed_sigma)),
        provenance=Provenance.INTERPOLATED if match.is_own else Provenance.EXTRAPOLATED,
        bound=bound,
    )
