"""GEMM: batched matrix multiplies on tensor cores or vector units.

Physics first (tiles, waves, split k, cache, memory, clock under load), then a small fitted
correction for what the library really does. A device without measurements borrows constants,
which are ratios of its datasheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError, PerfModelError, TopologyError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.calibration_files import (
    Entry,
    Match,
    generations_between,
    match_entry,
    power_ratio,
)
from perfmodel.costs.corrections import CHUNK_ROWS, Correction, OrderedCorrection
from perfmodel.costs.estimates import (
    Bound,
    CalibratedModel,
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.gemm_features import (
    SIZE_FEATURES,
    gemm_features,
    gemm_shapes,
    gemm_step_features,
    has_fitted_sizes,
    machine_rates,
)
from perfmodel.costs.gemm_physics import (
    GemmConstants,
    GemmShapes,
    MachineRates,
    predict_gemm_times,
)
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.capabilities import Residency
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device, load_device

TENSOR = "tensor"
VECTOR = "vector"
_TENSOR_DTYPES = frozenset({DType.BF16, DType.FP16, DType.TF32, DType.INT8})
_FITTED_DTYPES = frozenset({DType.BF16, DType.FP16, DType.FP32})
_NEEDED = {
    DType.FP8: (DType.FP8,), DType.FP8_BLOCK: (DType.FP8,), DType.NVFP4: (DType.NVFP4,),
    DType.MXFP4: (DType.MXFP4, DType.NVFP4), DType.MXFP8: (DType.NVFP4, DType.MXFP4),
}  # fmt: skip
"""The rates of which a chip must state one to multiply a quantised format. Tensor cores got scales
of 32 values together with four bits, so a chip that states either rate multiplies both formats."""
_QUANTISED = frozenset(dtype.value for dtype in _NEEDED)
SINGLE_LOAD_CLOCKS = 40
"""Clocks per element of k of a tile of 128 x 128 whose 256 elements are loaded one at a time: 8
instructions of 32 threads each to load, address, check, store and read back from shared memory.
Assumed: no table has such GEMMs."""
ADDED_SHARE = 0.4
"""Of the traffic of a result that a product is added to, what arithmetic does not hide. From weight
gradients under load beside other products of their shapes: 0.37 on B200, 0.42 on A100."""
PROMPT_LOSS_NS = 1e6
"""A chip that loses clock so soon is at the limit of its board's power; later it is warm."""
SMALLEST_SIDE = 32
"""Side of the smallest GEMM in the tables."""
SMALLER_SIGMA = 0.12
"""Added uncertainty per halving of a side below the smallest fitted one: libraries have special
kernels for thin GEMMs. Recorded GEMMs of 16 rows were off by that much per halving."""
OTHER_DTYPE_SIGMA = 0.12
"""Added uncertainty of the step from half precision to a dtype without measurements."""


@dataclass(frozen=True, slots=True, eq=False)
class GemmCalibration:
    """Constants and corrections that price GEMMs of one variant on a device.

    Corrections see a shape as it is on *learned_on*, the chip that they were fitted on, where that
    has slower tensor cores: they describe its kernels and not its rates.
    """

    constants: GemmConstants
    ordered: OrderedCorrection | None
    steps: Correction | None
    relative_sigma: float
    borrowed_sigma: float
    stand_in_sigma: float = 0.0
    is_assumed: bool = False
    learned_on: tuple[MachineRates, GemmConstants] | None = None

    @property
    def provenance(self) -> Provenance:
        """How times inside the range of the fit are known.

        A format for which the chip states no rate is assumed to run as the next wider one.
        """
        if self.is_assumed:
            return Provenance.ASSUMED
        is_own = self.borrowed_sigma == self.stand_in_sigma == 0.0
        return Provenance.INTERPOLATED if is_own else Provenance.EXTRAPOLATED


class GemmModel(CalibratedModel):
    """Prices GEMMs."""

    family = kind = "gemm"

    def price(self, ops: Sequence[Gemm], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""

        def price(stored: DType, chosen: Sequence[Gemm]) -> Estimates:
            dtype = stack.matmul_dtypes.get(stored, stored)
            check_multiplies(device, dtype)
            priced = price_gemms(
                gemm_shapes(chosen),
                machine_rates(device, dtype),
                self.calibration(device, dtype),
                residency=stack.residency,
            )
            if any(op.loads_singly for op in chosen):
                least_ns = [_single_loads_ns(op, device) for op in chosen]
                priced = replace(priced, duration_ns=np.maximum(priced.duration_ns, least_ns))
            byte_ns = ADDED_SHARE * NS_PER_S / device.memory_bandwidth_bytes_per_s
            added_ns = byte_ns * np.array([op.added_bytes for op in chosen], dtype=np.float64)
            return replace(priced, duration_ns=priced.duration_ns + added_ns)

        return price_by_kind(ops, rows_of_kinds(op.dtype for op in ops), price)

    def calibration(self, device: Device, dtype: DType) -> GemmCalibration:
        """The constants of GEMMs of *dtype* on *device*."""
        entries = self.entries(device)

        def memory_apart(entry: Entry) -> float:
            """Log ratio of the memory bandwidths of an entry's chip and *device*."""
            own_bytes_per_s = _memory_bytes_per_s(entry.device)
            return abs(math.log(own_bytes_per_s / device.memory_bandwidth_bytes_per_s))

        found = [
            (match, sigma)
            for variant, sigma in stand_ins(dtype)
            if (match := match_entry(entries, device, variant, apart=memory_apart)) is not None
        ]
        if not found:
            raise CalibrationError(
                f"gemm: no constants for {variant_of(dtype)} arithmetic in the calibration. "
                "`experiments/fitting` makes them."
            )
        match, sigma = min(found, key=lambda pair: pair[0].borrowed_sigma + pair[1])
        is_assumed = sigma == 0.0 and not any(map(device.supports, _NEEDED.get(dtype, (dtype,))))
        return gemm_calibration(match, device, stand_in_sigma=sigma, is_assumed=is_assumed)


def _single_loads_ns(op: Gemm, device: Device) -> float:
    """How long *op* takes to load its elements, if one at a time."""
    if not op.loads_singly:
        return 0.0
    clocks = op.flops / (2 * 128 * 128) * SINGLE_LOAD_CLOCKS
    return clocks * NS_PER_S / (device.sm_count * device.clock_hz)


def stand_ins(dtype: DType) -> tuple[tuple[str, float], ...]:
    """Variants that may price GEMMs of *dtype*, and the uncertainty that each adds."""
    own = variant_of(dtype)
    if dtype.is_quantised:
        return (own, 0.0), (DType.FP8.value, OTHER_DTYPE_SIGMA), (TENSOR, 2 * OTHER_DTYPE_SIGMA)
    return ((own, 0.0 if dtype in _FITTED_DTYPES else OTHER_DTYPE_SIGMA),)


def check_multiplies(device: Device, dtype: DType) -> None:
    """Refuse a quantised *dtype* that *device* has no arithmetic for."""
    needed = _NEEDED.get(dtype)
    if needed is not None and not any(map(device.supports, needed)):
        known = ", ".join(one.value for one in device.peak_flops)
        raise TopologyError(
            f"device {device.name}: cannot multiply {dtype.value}; it states rates for {known}. "
            "Choose one of these precisions, or another GPU."
        )


def gemm_calibration(
    match: Match, device: Device, *, stand_in_sigma: float = 0.0, is_assumed: bool = False
) -> GemmCalibration:
    """The constants and corrections of *match* for *device*.

    Chips before Hopper, and graphics chips, assign tiles in whole waves; constants borrowed from
    a chip that does not are changed in that point. Corrections describe the kernels of one
    generation and are lent within it only.
    """
    entry, is_near = match.entry, match.is_family
    constants = GemmConstants(**entry.constants)
    if not is_near and entry.ordered is not None:
        constants = replace(constants, floor_ns=_carried_floor_ns(entry, device))
    if not match.is_own and not device.has_persistent_kernels:
        constants = replace(constants, tail_ratio=1.0)
    learned_on = None
    if not match.is_own and is_near and entry.variant in _QUANTISED:
        source, own = (
            machine_rates(chip, DType(entry.variant))
            for chip in (load_device(entry.device), device)
        )
        # Kernels that feed faster tensor cores of the same generation load as much faster.
        faster = own.flops_per_clock / source.flops_per_clock
        if faster > 1.0:
            learned_on = source, constants
            loaded = constants.load_bytes_per_clock * faster
            constants = replace(constants, load_bytes_per_clock=loaded)
    is_tensor = entry.variant == TENSOR and not match.is_own
    if is_tensor and _has_power_to_spare(constants, device, entry.device):
        # What the source reached above its datasheet came with the clock that it then lost.
        ratio = min(constants.compute_ratio, 1.0)
        constants = replace(constants, sustained_loss=0.0, compute_ratio=ratio)
    return GemmCalibration(
        constants=constants,
        ordered=entry.ordered if is_near else None,
        steps=entry.correction if is_near else None,
        relative_sigma=entry.relative_sigma,
        borrowed_sigma=match.borrowed_sigma,
        stand_in_sigma=stand_in_sigma,
        is_assumed=is_assumed,
        learned_on=learned_on,
    )


def _has_power_to_spare(constants: GemmConstants, device: Device, source: str) -> bool:
    """Whether *device* keeps the clock that *source* loses at the limit of its power.

    Cards of GeForce add up in FP32 at half the rate, on boards with as much power as others.
    """
    is_limited = constants.sustained_after_ns < PROMPT_LOSS_NS
    return is_limited and (1.0 + constants.sustained_loss) * power_ratio(device, source) < 1.0


@cache
def _memory_bytes_per_s(device: str) -> float:
    """The memory bandwidth of *device*; infinite if the catalog does not have it."""
    try:
        return load_device(device).memory_bandwidth_bytes_per_s
    except PerfModelError:
        return math.inf


def _carried_floor_ns(entry: Entry, device: Device) -> float:
    """The floor of *entry* for a chip of another generation.

    Floors shrink with every generation. Of the fitted floor and the corrected time of the
    smallest GEMM, a newer chip uses the lower and an older one the higher.
    """
    floor_ns = float(entry.constants["floor_ns"])
    steps = generations_between(entry, device)
    if steps == 0 or entry.ordered is None:
        return floor_ns
    source, constants = load_device(entry.device), GemmConstants(**entry.constants)
    smallest = gemm_shapes([Gemm(SMALLEST_SIDE, SMALLEST_SIDE, SMALLEST_SIDE, DType.BF16)])
    machine = machine_rates(source, DType.BF16)
    times = predict_gemm_times(smallest, machine, constants, Residency.ROTATING)
    log_ratio, _, _ = entry.ordered.apply(gemm_features(smallest, machine, times))
    learned_ns = float((times.kernel_ns * np.exp(log_ratio))[0])
    return min(floor_ns, learned_ns) if steps > 0 else max(floor_ns, learned_ns)


def price_gemms(
    shapes: GemmShapes,
    machine: MachineRates,
    calibration: GemmCalibration,
    *,
    residency: Residency,
) -> Estimates:
    """Predict *shapes*, all of one dtype."""
    times = predict_gemm_times(shapes, machine, calibration.constants, residency)
    kernel_ns = times.kernel_ns
    if calibration.learned_on is not None:
        machine, constants = calibration.learned_on
        learned = predict_gemm_times(shapes, machine, constants, residency)
        times = replace(times, kernel_ns=learned.kernel_ns, memory_ns=learned.memory_ns)
    sigma = np.full(len(shapes), calibration.relative_sigma)
    is_inside = np.full(len(shapes), True)
    if calibration.ordered is not None:
        features = gemm_features(shapes, machine, times)
        log_ratio, sigma = _apply(calibration.ordered, features)
        kernel_ns = kernel_ns * np.exp(log_ratio)
        is_inside &= has_fitted_sizes(features, calibration.ordered)
        # How often sizes would have to be doubled to be in the range of the fit.
        below = calibration.ordered.low[SIZE_FEATURES] - features[:, SIZE_FEATURES]
        sigma = np.hypot(sigma, SMALLER_SIGMA * np.maximum(below, 0.0).sum(axis=1))
    if calibration.steps is not None:
        steps = calibration.steps.log_ratio(gemm_step_features(shapes, machine, times))
        kernel_ns = kernel_ns * np.exp(steps)
    floor_ns, known = calibration.constants.floor_ns, calibration.provenance
    is_memory = times.memory_ns > 0.8 * (times.kernel_ns - floor_ns)
    bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE)
    spread = np.hypot(sigma, math.hypot(calibration.borrowed_sigma, calibration.stand_in_sigma))
    return build_estimates(
        times.timing_ns + kernel_ns,
        relative_sigma=spread,
        provenance=np.where(is_inside, known, max(known, Provenance.EXTRAPOLATED)),
        bound=np.where(times.kernel_ns < 2 * floor_ns, Bound.LATENCY, bound),
    )


def _apply(correction: OrderedCorrection, features: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """Logarithm of the correction and its sigma, some rows at a time to stay in the cache."""
    parts = [
        correction.apply(features[start : start + CHUNK_ROWS])
        for start in range(0, max(len(features), 1), CHUNK_ROWS)
    ]
    log_ratios, sigmas, _ = zip(*parts, strict=True)
    return np.concatenate(log_ratios), np.concatenate(sigmas)


def variant_of(dtype: DType) -> str:
    """Whether GEMMs of *dtype* run on tensor cores, vector units or in a quantised format."""
    if dtype.is_quantised:
        return dtype.value
    return TENSOR if dtype in _TENSOR_DTYPES else VECTOR
