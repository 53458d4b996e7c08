"""A fit of wires must find the bandwidth that collectives were priced with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectives import Collective, CollectiveKind, price_collective
from perfmodel.base.dtypes import DType
from perfmodel.calibration.measure.clock import Timing
from perfmodel.calibration.measure.collectives import CollectiveMeasurement
from perfmodel.calibration.measure.command import device_document, device_path, write_document
from perfmodel.calibration.measure.machine import Wires, fit_wires, guess_devices, wires_document
from tests.calibration.test_measure_files import HEAD
from topologies import build_cluster, load_topology

SIZES = (2**16, 2**20, 2**22, 2**24)


@pytest.mark.parametrize("is_network", [True, False])
def test_the_bandwidth_behind_measurements_is_found_again(tmp_path, is_network):
    path = tmp_path / "here.yaml"
    device = guess_devices("cpu", name="here_device", source="test")[0]
    write_document(device_path(path), device_document(device, date="2026-11-16"))
    truth = Wires(5e8, 80_000.0, ranks=2, is_network=is_network)
    write_document(path, {**HEAD, **wires_document(truth)})
    cluster = build_cluster(load_topology(path), hosts=2 if is_network else 1)
    kind = CollectiveKind.ALL_REDUCE
    quiet = Timing(duration_ns=1.0, wall_ns=1.0, spread_ratio=0.0, lost_ratio=0.0)
    measured = [
        CollectiveMeasurement(
            kind,
            2,
            size,
            replace(
                quiet,
                duration_ns=price_collective(
                    Collective(kind, size, DType.FP32), cluster=cluster, ranks=range(2)
                ).duration_ns,
            ),
        )
        for size in SIZES
    ]

    found = fit_wires(measured, head=HEAD, path=path, is_network=is_network)

    assert found.wires.bandwidth_bytes_per_s == pytest.approx(5e8, rel=0.1)
    assert found.error.median_pct < 5
