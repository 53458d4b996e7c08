"""Machines of measured runs: what a row states in addition to a name counts."""

from __future__ import annotations

import time

import pytest

from perfmodel.base.errors import MeasurementError, WorkloadError
from perfmodel.extensions.measurements.validation.runs_question import build_machine, count_joined
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from tests.extensions.measurements.validation.test_runs import DLRM, write
from topologies import Cluster, load_topology

PCIE = DLRM | {"device": "a100_pcie_40gb", "machine": "a100_pcie", "nvlink_domain": "1"}


def machine_of(folder, **changes) -> tuple[Cluster, list[str]]:
    [row] = load_runs(write(folder, PCIE | changes)).rows
    sentences: list[str] = []
    return build_machine(row, sentences, ()), sentences


@pytest.mark.parametrize(
    ("name", "count"),
    [("a100_pcie", 1), ("a100_pcie_nvbridge", 2), ("dgx1_v100", 8), ("dgx_h100", 8)],
)
def test_gpus_that_nvlink_joins_are_counted_over_switches_and_other_gpus(name, count):
    assert count_joined(load_topology(name)) == count


def test_an_nvlink_domain_beside_a_named_machine_decides_its_wiring(tmp_path):
    plain, silent = machine_of(tmp_path)
    bridged, said = machine_of(tmp_path, nvlink_domain="2")
    assert (plain.topology.name, bridged.topology.name) == ("a100_pcie", "a100_pcie_nvbridge")
    assert bridged.device.name == plain.device.name == "a100_pcie_40gb"
    assert "the wiring is that of a100_pcie_nvbridge" in " ".join(said)
    assert not any("NVLink" in sentence for sentence in silent)
    # No machine of the catalog joins four of these boards: it stays as named.
    assert machine_of(tmp_path, nvlink_domain="4")[0].topology.name == "a100_pcie"


def test_four_boards_of_a_host_are_on_both_sockets(tmp_path):
    cluster, said = machine_of(tmp_path, n_gpus="4", gpus_per_node="4")
    sockets = [cluster.topology.cpu_route(gpu).links[-1].target for gpu in range(4)]
    assert sockets == ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]
    assert "are assumed to be on each socket" in " ".join(said)
    switched, _ = machine_of(tmp_path, machine="dgx_a100", n_gpus="4", gpus_per_node="4")
    assert switched.topology.name == "dgx_a100"


def test_a_run_that_states_only_its_gpu_gets_a_machine_that_has_it(tmp_path):
    found, said = machine_of(tmp_path, machine="", device="h100_sxm", nvlink_domain="8")
    assert found.device.name == "h100_sxm"
    assert f"The machine is not stated; assumed {found.topology.name}, the largest" in " ".join(
        said
    )


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"device": "h100_sxm"}, "of a100_pcie must be of a100_pcie_80gb's generation"),
        ({"n_gpus": "12", "n_nodes": "2", "gpus_per_node": "4"}, "2 hosts of 4 GPUs must have"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(tmp_path, stated, words):
    with pytest.raises(WorkloadError, match=words):
        machine_of(tmp_path, **stated)


def test_a_table_of_a_hundred_thousand_columns_is_refused_at_once(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{number}" for number in range(100_000)) + "\n")
    started = time.process_time()
    with pytest.raises(MeasurementError, match=r"not known: c0, c1, .*c19"):
        load_runs(path)
    assert time.process_time() - started < 20
