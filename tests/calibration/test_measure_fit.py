"""A fit must find the rates that measurements were made with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.calibration.measure.clock import Timing
from perfmodel.calibration.measure.fit import fit_device
from perfmodel.calibration.measure.kernels import KernelMeasurement
from perfmodel.calibration.measure.machine import guess_devices
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Gemm, MemoryBound
from perfmodel.stacks.profiles import load_stack
from topologies import Device

STACK = load_stack("pytorch_cpu")
OPS = [
    *(("gemm", Gemm(size, size, size, DType.FP32)) for size in (512, 1024, 2048)),
    *(("memory", MemoryBound("add", 2 * size, size, DType.FP32)) for size in (2**24, 2**26)),
]


def measured_on(device: Device) -> list[KernelMeasurement]:
    """What a machine that is exactly *device* would measure."""
    times = price_ops([op for _, op in OPS], device=device, stack=STACK).duration_ns
    return [
        KernelMeasurement(
            family, op, Timing(duration_ns=time, wall_ns=time, spread_ratio=0.0, lost_ratio=0.0)
        )
        for (family, op), time in zip(OPS, times.tolist(), strict=True)
    ]


def truth() -> Device:
    """A core twice as fast as the first guess in arithmetic, and three times in memory."""
    guess = guess_devices("cpu", name="core", source="test")[0]
    peak = 2 * guess.peak_flops[DType.FP32]
    return replace(
        guess,
        peak_flops={DType.FP32: peak},
        vector_flops=peak,
        memory_bandwidth_bytes_per_s=3 * guess.memory_bandwidth_bytes_per_s,
    )


def test_the_rates_behind_measurements_are_found_again():
    wanted = truth()
    guess = guess_devices("cpu", name="core", source="test")[0]

    fitted = fit_device([guess], measured_on(wanted), stack=STACK)

    found = fitted.device
    assert found.peak_flops[DType.FP32] == pytest.approx(wanted.peak_flops[DType.FP32], rel=0.01)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(
        wanted.memory_bandwidth_bytes_per_s, rel=0.01
    )
    assert fitted.errors["gemm"].median_pct < 1


def test_the_guess_that_explains_most_is_taken():
    guesses = guess_devices("cpu", name="core", source="test")

    fitted = fit_device(guesses, measured_on(guesses[-1]), stack=STACK)

    assert fitted.device.sm_count == guesses[-1].sm_count


def test_a_fit_without_products_is_refused():
    memory_only = [one for one in measured_on(truth()) if one.family == "memory"]

    with pytest.raises(MeasurementError, match="products in fp32"):
        fit_device([truth()], memory_only, stack=STACK)
