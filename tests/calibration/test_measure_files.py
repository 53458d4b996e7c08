"""What is written must be read again as it was."""

from __future__ import annotations

import pytest

from perfmodel.calibration.measure.command import device_document, device_path, write_document
from perfmodel.calibration.measure.machine import Wires, guess_devices, wires_document
from topologies import build_cluster, load_device, load_topology

HEAD = {
    "name": "here",
    "description": "two ranks",
    "source": "test",
    "date": "2026-11-16",
    "licence": "ours",
    "device": "here_device.yaml",
}


def test_a_device_is_read_back_as_it_was_written(tmp_path):
    device = guess_devices("cpu", name="here_device", source="test")[0]
    path = device_path(tmp_path / "here.yaml")

    write_document(path, device_document(device, date="2026-11-16"))

    found = load_device(path)
    assert path.name == "here_device.yaml"
    assert found.peak_flops == pytest.approx(device.peak_flops)
    assert found.memory_bytes == device.memory_bytes
    assert found.architecture is device.architecture


@pytest.mark.parametrize("is_network", [True, False])
def test_wires_give_a_cluster_of_as_many_ranks(tmp_path, is_network):
    path = tmp_path / "here.yaml"
    device = guess_devices("cpu", name="here_device", source="test")[0]
    write_document(device_path(path), device_document(device, date="2026-11-16"))
    wires = Wires(2e9, 30_000.0, ranks=2, is_network=is_network)

    write_document(path, {**HEAD, **wires_document(wires)})

    # Over a network each rank is a host of its own; otherwise both share one.
    cluster = build_cluster(load_topology(path), hosts=2 if is_network else 1)
    assert cluster.rank_count == 2
    assert cluster.route(0, 1).bandwidth_bytes_per_s == pytest.approx(2e9)
