"""Fleets: hosts of unlike machines in one file."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import TopologyError
from topologies import build_cluster, load_topology

MIXED = """
name: mixed
hosts:
  - {count: 2, machine: dgx_h100}
  - {count: 1, machine: dgx_a100}
...
"""


def fleet(folder, text=MIXED):
    path = folder / "mixed.yaml"
    path.write_text(text)
    return load_topology(path)


def test_a_fleet_has_the_hosts_that_its_file_lists(tmp_path):
    cluster = build_cluster(fleet(tmp_path))
    assert (cluster.host_count, cluster.rank_count) == (3, 24)
    numbers, devices = cluster.devices_of(np.array([0, 15, 16, 23]))
    assert [devices[one].name for one in numbers] == [
        "h100_sxm", "h100_sxm", "a100_sxm_80gb", "a100_sxm_80gb",
    ]  # fmt: skip
    with pytest.raises(TopologyError, match="lists 3 hosts, got 2"):
        build_cluster(fleet(tmp_path), hosts=2)


def test_what_crosses_to_a_slower_host_arrives_at_its_rate(tmp_path):
    cluster = build_cluster(fleet(tmp_path))
    # A NIC of 400 Gbit/s on a DGX H100, of 200 on a DGX A100.
    assert cluster.route(0, 8).bandwidth_bytes_per_s == 50e9
    assert cluster.route(0, 16).bandwidth_bytes_per_s == 25e9
    assert cluster.route(16, 0).bandwidth_bytes_per_s == 25e9


def test_hosts_of_a_fleet_may_have_faults(tmp_path):
    machine = fleet(tmp_path, MIXED.replace("hosts:", "notes: [ours]\nhosts:"))
    broken = load_topology(tmp_path / "mixed.yaml", faults=["host:2 gpu:0 speed=0.5"])
    assert len(machine.machines) == 2
    assert len(broken.machines) == 2
    cluster = build_cluster(broken)
    assert cluster.speeds_of(np.array([0, 16, 17])).tolist() == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("machine", "said"),
    [("hgx_h100_4gpu", "equally many GPUs"), ("gb200_nvl72", "equally many"), ("dgx_x", "dgx_x")],
)
def test_machines_that_cannot_be_joined_are_refused(tmp_path, machine, said):
    with pytest.raises(TopologyError, match=said):
        fleet(tmp_path, MIXED.replace("dgx_a100", machine))
