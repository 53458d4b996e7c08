"""A fit must find the rates that measurements were made with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectives import Collective, CollectiveKind, price_collective
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.costs.models import price_ops
from perfmodel.extensions.measurements.calibration.measure.clock import Timing
from perfmodel.extensions.measurements.calibration.measure.fit import (
    Wires,
    device_document,
    device_path,
    fit_device,
    fit_wires,
    wires_document,
    write_document,
)
from perfmodel.extensions.measurements.calibration.measure.kernels import KernelMeasurement
from perfmodel.extensions.measurements.calibration.measure.machine import guess_devices
from perfmodel.graph.ops import Gemm, MemoryBound
from perfmodel.stacks.profiles import load_stack
from tests.extensions.measurements.calibration.test_measure_machine import HEAD
from topologies import Device, build_cluster, load_topology

STACK = load_stack("pytorch_cpu")
OPS = [
    *(("gemm", Gemm(size, size, size, DType.FP32)) for size in (512, 1024, 2048)),
    *(("memory", MemoryBound("add", 2 * size, size, DType.FP32)) for size in (2**24, 2**26)),
]


def measured_on(device: Device) -> list[KernelMeasurement]:
    """What a machine that is exactly *device* would measure."""
    times = price_ops([op for _, op in OPS], device=device, stack=STACK).duration_ns
    ops = [op for _, op in OPS]
    return [KernelMeasurement(op, took(ns)) for op, ns in zip(ops, times.tolist(), strict=True)]


def took(duration_ns: float) -> Timing:
    return Timing(duration_ns=duration_ns, wall_ns=duration_ns, spread_ratio=0.0, lost_ratio=0.0)


GUESSES = guess_devices("cpu", name="core", source="test")
# A core twice as fast as the first guess in arithmetic, and three times in memory.
PEAK = 2 * GUESSES[0].peak_flops[DType.FP32]
TRUTH = replace(
    GUESSES[0],
    peak_flops={DType.FP32: PEAK},
    vector_flops=PEAK,
    memory_bandwidth_bytes_per_s=3 * GUESSES[0].memory_bandwidth_bytes_per_s,
)


def test_the_rates_behind_measurements_are_found_again():
    found, errors = fit_device(GUESSES[:1], measured_on(TRUTH), stack=STACK)
    bandwidth = TRUTH.memory_bandwidth_bytes_per_s
    assert found.peak_flops[DType.FP32] == pytest.approx(PEAK, rel=0.01)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.01)
    assert errors["gemm"].median_pct < 1


def test_the_guess_that_explains_most_is_taken():
    device, _ = fit_device(GUESSES, measured_on(GUESSES[-1]), stack=STACK)
    assert device.sm_count == GUESSES[-1].sm_count


def test_a_fit_without_products_is_refused():
    memory_only = [one for one in measured_on(TRUTH) if one.family == "memory"]
    with pytest.raises(MeasurementError, match="measured fp32 GEMMs"):
        fit_device([TRUTH], memory_only, stack=STACK)


SIZES = (2**16, 2**20, 2**22, 2**24)


@pytest.mark.parametrize("is_network", [True, False])
def test_the_bandwidth_behind_measurements_is_found_again(tmp_path, is_network):
    path = tmp_path / "here.yaml"
    device = guess_devices("cpu", name="here_device", source="test")[0]
    write_document(device_path(path), device_document(device, date="2026-11-16"))
    truth = Wires(5e8, 80_000.0, ranks=2, is_network=is_network)
    write_document(path, {**HEAD, **wires_document(truth)})
    cluster = build_cluster(load_topology(path), hosts=2 if is_network else 1)
    calls = [Collective(CollectiveKind.ALL_REDUCE, size, DType.FP32) for size in SIZES]
    costs = [price_collective(call, cluster=cluster, ranks=range(2)) for call in calls]
    measured = [
        CollectiveMeasurement(
            row="",
            topology="here",
            hosts=1,
            ranks=2,
            kind=call.kind,
            size_bytes=call.size_bytes,
            duration_ns=cost.duration_ns,
        )
        for call, cost in zip(calls, costs, strict=True)
    ]
    wires, error = fit_wires(measured, head=HEAD, path=path, is_network=is_network)

    assert wires.bandwidth_bytes_per_s == pytest.approx(5e8, rel=0.1)
    assert error.median_pct < 5
