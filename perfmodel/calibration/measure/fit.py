"""Fitting a device to measurements: the rates at which our cost models reproduce what was timed.

Two rates are fitted, arithmetic and memory, everything else is asked of the system. They are
*effective*: with them, the shapes of the curves borrowed from the nearest calibrated GPU come out
right on average here, so they need not be what a datasheet would say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.calibration.measure.kernels import KernelMeasurement
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

FITTED_FAMILIES = ("gemm", "bmm", "memory")
"""Families that decide the rates; attention and lookups only show how well they carry over."""


@dataclass(frozen=True, slots=True)
class FamilyError:
    """How far the fitted device is from the measurements of one family."""

    count: int
    median_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class FittedDevice:
    """A device, and what is left of the measurements after the fit."""

    device: Device
    errors: Mapping[str, FamilyError]


def fit_device(
    guesses: Sequence[Device], measurements: Sequence[KernelMeasurement], *, stack: SoftwareStack
) -> FittedDevice:
    """The one of *guesses* whose rates, fitted, explain *measurements* best under *stack*."""
    used = [one for one in measurements if one.family in FITTED_FAMILIES]
    dtypes = tuple(dict.fromkeys(one.op.dtype for one in used if isinstance(one.op, Gemm)))
    if DType.FP32 not in dtypes or not any(one.family == "memory" for one in used):
        raise MeasurementError(
            "fit of a device: must have products in fp32 and memory-bound kernels measured, "
            f"got families {', '.join(sorted({one.family for one in used})) or 'none'}."
        )
    fits = [_fit_rates(guess, dtypes, used, stack) for guess in guesses]
    _, device = min(fits, key=lambda fit: fit[0])
    return FittedDevice(device, family_errors(device, measurements, stack=stack))


def _fit_rates(
    guess: Device,
    dtypes: Sequence[DType],
    used: Sequence[KernelMeasurement],
    stack: SoftwareStack,
) -> tuple[float, Device]:
    """What is left unexplained, and the device."""
    measured_ns = np.array([one.timing.duration_ns for one in used])
    ops = [one.op for one in used]
    weights = _weights(used)

    def log_ratios(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        priced = price_ops(ops, device=_with_rates(guess, dtypes, logs), stack=stack)
        ratios: NDArray[np.float64] = weights * np.log(priced.duration_ns / measured_ns)
        return ratios

    rates = [*(guess.peak_flops[dtype] for dtype in dtypes), guess.memory_bandwidth_bytes_per_s]
    # Soft, so that a single odd size (a page that had to be zeroed) does not move the rates.
    found = least_squares(log_ratios, np.log(rates), loss="soft_l1", f_scale=0.2, diff_step=[1e-3])
    return float(found.cost), _with_rates(guess, dtypes, found.x)


def _weights(used: Sequence[KernelMeasurement]) -> NDArray[np.float64]:
    """Long kernels count more, as in an iteration, family by family."""
    times: dict[str, list[float]] = defaultdict(list)
    for one in used:
        times[one.family].append(one.timing.duration_ns)
    means = {family: sum(values) / len(values) for family, values in times.items()}
    return np.sqrt([one.timing.duration_ns / means[one.family] for one in used])


def _with_rates(guess: Device, dtypes: Sequence[DType], logs: NDArray[np.float64]) -> Device:
    *peaks, bandwidth = np.exp(logs).tolist()
    of_dtype = {**guess.peak_flops, **dict(zip(dtypes, peaks, strict=True))}
    scale = bandwidth / guess.memory_bandwidth_bytes_per_s
    cache = guess.l2_bandwidth_bytes_per_s
    return replace(
        guess,
        peak_flops=of_dtype,
        vector_flops=of_dtype[DType.FP32],
        memory_bandwidth_bytes_per_s=bandwidth,
        l2_bandwidth_bytes_per_s=None if cache is None else cache * scale,
    )


def family_errors(
    device: Device, measurements: Sequence[KernelMeasurement], *, stack: SoftwareStack
) -> dict[str, FamilyError]:
    """Relative errors of *device* by family, in percent of the measured time."""
    priced = price_ops([one.op for one in measurements], device=device, stack=stack)
    errors: dict[str, list[float]] = defaultdict(list)
    for one, predicted_ns in zip(measurements, priced.duration_ns.tolist(), strict=True):
        errors[one.family].append(100 * (predicted_ns / one.timing.duration_ns - 1))
    return {
        family: FamilyError(
            count=len(values),
            median_pct=float(np.median(np.abs(values))),
            bias_pct=float(np.median(values)),
        )
        for family, values in errors.items()
    }
