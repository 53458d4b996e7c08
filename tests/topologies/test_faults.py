"""Faults: what is written, what it leaves of a host, and what is refused."""

import numpy as np
import pytest

from perfmodel.base.errors import TopologyError
from topologies import build_cluster, load_topology
from topologies.faults import parse_fault


def with_faults(*faults, name="dgx_h100"):
    return load_topology(name, faults=faults)


def test_a_fault_names_hosts_a_place_and_what_happened():
    one = parse_fault("host:1,3 gpu:0-nvswitch:0 bandwidth=0.5")
    assert (one.hosts, one.place, one.other, one.ratio) == ((1, 3), "gpu:0", "nvswitch:0", 0.5)
    assert parse_fault("nic:2 down").hosts == (0,)
    assert parse_fault("host:* gpu:0-3 nvlink").hosts is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu:3", "must name a place and what happened"),
        ("gpu:3 gone", "must end with nvlink, down"),
        ("gpu:3 speed", "must end with nvlink, down"),
        ("gpu:3 speed=0", "which share is left"),
        ("gpu:3 speed=1.5", "which share is left"),
        ("gpu:3 speed=nan", "which share is left"),
        ("gpu:3 down", "use fewer ranks per host"),
        ("nic:3 speed=0.5", "is about a GPU"),
        ("host:x gpu:3 nvlink", "must look like"),
        ("gpu:8 nvlink", "there is no gpu:8"),
        ("gpu:0-gpu:1 down", "no such link"),
        ("nic:* down", "a GPU reaches no nic"),
    ],
)
def test_what_cannot_be_is_refused(text, said):
    with pytest.raises(TopologyError, match=said):
        with_faults(text)


def test_a_fault_of_a_host_that_there_is_not_is_refused():
    cluster = build_cluster(with_faults("host:2 gpu:3 nvlink"), hosts=2)
    with pytest.raises(TopologyError, match="the job has 2 hosts, counted from 0"):
        cluster.check_faults()


def test_a_host_with_a_fault_is_wired_without_what_is_broken():
    cluster = build_cluster(with_faults("host:1 gpu:3 nvlink", "host:1 nic:2 down"), hosts=3)
    broken = cluster.machine_of(1)
    assert cluster.machine_of(0) == cluster.machine_of(2) != broken
    assert broken.nvlink_bandwidth_bytes_per_s(3) == 0
    assert broken.nvlink_bandwidth_bytes_per_s(2) == 450e9
    # GPU 2 goes to the other NIC of its switch, on its own host only.
    ranks = np.array([2, 8 + 2, 8 + 3, 16 + 2])
    assert cluster.nics_of(ranks).tolist() == [2, 8 + 3, 8 + 3, 16 + 2]
    assert not cluster.route(8 + 3, 8 + 4).is_nvlink
    assert cluster.route(3, 4).is_nvlink


def test_equal_faults_make_one_machine():
    machine = with_faults("host:0-99 gpu:3 nvlink", "host:200 gpu:3 nvlink", "host:7 nic:0 down")
    # Sound hosts, those without an NVLink, and one that lacks a NIC, too.
    assert len(machine.machines) == 3


def test_shares_of_bandwidth_and_speed_multiply():
    machine = with_faults(
        "gpu:0-nvswitch:0 bandwidth=0.5", "gpu:0 speed=0.9", "host:* gpu:0 speed=0.5"
    )
    cluster = build_cluster(machine, hosts=2)
    assert cluster.machine_of(0).nvlink_bandwidth_bytes_per_s(0) == 225e9
    assert cluster.speeds_of(np.array([0, 1, 8, 9])).tolist() == [0.45, 1.0, 0.5, 1.0]


def test_a_machine_file_states_faults_that_the_command_adds_to(tmp_path):
    file = tmp_path / "mine.yaml"
    text = (load_topology.__globals__["CATALOG"] / "dgx_a100.yaml").read_text()
    file.write_text(text.replace("cpu: 2 x", "faults: ['gpu:1 nvlink']\ncpu: 2 x"))
    cluster = build_cluster(load_topology(file, faults=["nic:0 down"]))
    assert cluster.faults == (
        "Host 0: gpu:1 lost NVLink: groups with it go over PCIe.",
        "Host 0: nic:0 is down: its GPUs share the other NICs.",
    )
    file.write_text(text.replace("cpu: 2 x", "faults: ['gpu:1 lost']\ncpu: 2 x"))
    with pytest.raises(TopologyError, match=r"faults\[0\].*must end with nvlink, down"):
        load_topology(file)
