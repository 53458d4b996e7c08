import pytest

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import both_ways, build_pcie_host, build_topology, wire
from topologies import load_topology


def test_gpus_that_cannot_reach_each_other_are_refused():
    with pytest.raises(TopologyError, match=r"no links lead gpu:1 -> gpu:0"):
        build_topology([wire("gpu:0", "gpu:1")], counts={"gpu": 2})


def test_a_dangling_link_is_refused():
    with pytest.raises(TopologyError, match="ends at nvswitch:0, which is no vertex"):
        build_topology([wire("gpu:0", "nvswitch:0")], counts={"gpu": 1})


def test_a_link_that_stands_twice_is_refused():
    links = [*both_ways("gpu:0", "gpu:1"), wire("gpu:0", "gpu:1")]
    with pytest.raises(TopologyError, match="stands 2 times; write `lanes: 2` instead"):
        build_topology(links, counts={"gpu": 2})


def test_a_machine_without_gpu_is_refused():
    with pytest.raises(TopologyError, match="at least one gpu"):
        build_topology([], counts={"cpu": 1})


def test_a_fabric_without_nic_is_refused():
    fabric = build_pcie_host().fabric
    with pytest.raises(TopologyError, match="a GPU reaches no nic"):
        build_topology([], counts={"gpu": 1}, fabric=fabric)


def test_gpus_divide_evenly_over_trays():
    with pytest.raises(TopologyError, match="divide evenly over 3 trays"):
        build_pcie_host(trays=3)


def test_each_gpu_sends_with_the_nearest_nic():
    assert build_pcie_host().nic_of_gpu == (0, 0, 1, 1)


def test_equally_near_nics_are_taken_in_turn():
    links = []
    for gpu in range(4):
        links += both_ways(f"gpu:{gpu}", "cpu:0")
    for nic in range(2):
        links += both_ways(f"nic:{nic}", "cpu:0")
    topology = build_topology(links, counts={"gpu": 4, "cpu": 1, "nic": 2})

    assert topology.nic_of_gpu == (0, 1, 0, 1)


def test_asking_for_a_vertex_that_is_not_there_says_what_is():
    with pytest.raises(TopologyError, match=r"no vertex 'gpu:9'\. It has gpu:0 to gpu:3"):
        build_pcie_host().route("gpu:9", "gpu:0")


def test_a_gpu_has_no_route_to_itself():
    with pytest.raises(TopologyError, match="no links lead from gpu:1 to gpu:1"):
        build_pcie_host().gpu_route(1, 1)


def test_a_measured_host_copy_wins_over_the_device():
    assert build_pcie_host().host_copy_bandwidth_bytes_per_s == 25e9
    assert build_pcie_host(host_copy_bytes_per_s=8e9).host_copy_bandwidth_bytes_per_s == 8e9


def test_equal_topologies_are_equal():
    assert build_pcie_host() == build_pcie_host()
    assert build_pcie_host() != build_pcie_host(name="other")


def test_an_idle_machine_has_nobody_to_wait_for():
    machine = load_topology("aws_p5")
    assert machine.fabric.call_latency_ns > 0
    assert machine.idle.fabric.call_latency_ns == 0
    assert load_topology("dgx_h100").idle is not None
