"""The whole way here: measure this CPU, write it down, predict on it."""

from __future__ import annotations

import pytest
import torch

from perfmodel import api
from perfmodel.base.errors import MeasurementError
from perfmodel.cli import main
from perfmodel.extensions.measurements.calibration.measure.fit import (
    Wires,
    device_document,
    device_path,
    wires_document,
    write_document,
)
from perfmodel.extensions.measurements.calibration.measure.machine import (
    check_device,
    guess_devices,
    measure_machine,
)
from topologies import build_cluster, load_device, load_topology


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """This machine, measured with as few samples as allowed."""
    out = tmp_path_factory.mktemp("measured") / "here.yaml"
    return measure_machine("cpu", out, ranks=2, samples=3)


def test_measuring_this_cpu_gives_a_topology_that_predict_accepts(machine):
    question = api.Scenario(
        topology=str(machine.topology), workload="mlp_data_parallel", hosts=2, samples=2
    )

    prediction = api.predict(question, executor="serial")

    # 6 x 3.2 M x 128 samples = 2.4 GFLOP a rank: no core takes under 1 ms or over 10 s.
    assert 1e6 < prediction.period_ns < 1e10


def test_every_family_is_measured_and_rates_are_those_of_a_core(machine):
    assert set(machine.errors) == {
        "gemm", "bmm", "memory", "attention", "embedding", "collectives",
    }  # fmt: skip
    device = load_topology(machine.topology).device
    assert 1e9 < device.vector_flops < 1e12
    assert 1e8 < device.memory_bandwidth_bytes_per_s < 1e12


def test_noise_is_reported(machine):
    assert 0 <= machine.lost_ratio <= 1
    assert machine.spread_ratio >= 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_gpu_is_refused_with_a_way_out():
    with pytest.raises(MeasurementError, match="--device cpu"):
        check_device("cuda")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 0}, "at least 1 rank"),
        ({"samples": 1}, "3 samples"),
        ({"out": "absent/here.yaml"}, "folder that exists"),
    ],
)
def test_what_cannot_be_measured_or_written_is_refused_at_once(tmp_path, change, message):
    out = tmp_path / change.pop("out", "here.yaml")
    with pytest.raises(MeasurementError, match=message):
        measure_machine("cpu", out, **change)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_the_command_says_what_is_wrong_and_exits_with_1(tmp_path, capsys):
    words = ["calibrate", "measure", "--device", "cuda", "--out", str(tmp_path / "here.yaml")]

    with pytest.raises(SystemExit) as stop:
        main(words)

    assert stop.value.code == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_the_command_writes_both_files_and_says_how_to_go_on(tmp_path, capsys):
    out = tmp_path / "here.yaml"
    words = ["calibrate", "measure", "--device", "cpu", "--out", str(out)]

    with pytest.raises(SystemExit) as stop:
        main([*words, "--ranks", "1", "--samples", "3"])

    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"perfmodel predict --topology {out} --stack pytorch_cpu" in printed
    assert out.exists()
    assert (tmp_path / "here_device.yaml").exists()


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
    assert found.architecture == device.architecture


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
