import pytest

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import both_ways, build_fabric, build_pcie_host, build_topology, wire
from topologies import load_topology


@pytest.mark.parametrize(
    ("links", "counts", "changes", "fault"),
    [
        ([wire("gpu:0", "gpu:1")], {"gpu": 2}, {}, "no links lead gpu:1 -> gpu:0"),
        (
            [wire("gpu:0", "nvswitch:0")],
            {"gpu": 1},
            {},
            "ends at nvswitch:0, which is not a vertex",
        ),
        (
            [*both_ways("gpu:0", "gpu:1"), wire("gpu:0", "gpu:1")],
            {"gpu": 2},
            {},
            "is listed 2 times; write `lanes: 2` instead",
        ),
        ([], {"cpu": 1}, {}, "at least one gpu"),
        ([], {"gpu": 1}, {"fabric": build_fabric()}, "a GPU reaches no nic"),
        (both_ways("gpu:0", "gpu:1"), {"gpu": 2}, {"trays": 3}, "divide evenly over 3 trays"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(links, counts, changes, fault):
    with pytest.raises(TopologyError, match=fault):
        build_topology(links, counts=counts, **changes)


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


def test_a_route_joins_two_vertices_that_are_there():
    with pytest.raises(TopologyError, match=r"no vertex 'gpu:9'\. It has gpu:0 to gpu:3"):
        build_pcie_host().route("gpu:9", "gpu:0")
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
