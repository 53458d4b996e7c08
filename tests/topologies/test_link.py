import pytest

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import wire
from topologies import Link, LinkKind, Vertex, VertexKind


def test_a_link_needs_a_real_bandwidth_a_latency_and_two_ends():
    for bandwidth in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(TopologyError, match="gpu:0 -> gpu:1: bandwidth must be above zero"):
            Link("gpu:0", "gpu:1", bandwidth, latency_ns=0, kind=LinkKind.PCIE)
    with pytest.raises(TopologyError, match="latency must be zero or more"):
        Link("gpu:0", "gpu:1", 1e9, latency_ns=-1, kind=LinkKind.PCIE)
    with pytest.raises(TopologyError, match="two different vertices"):
        wire("gpu:0", "gpu:0")


def test_only_an_nvswitch_reduces():
    assert Vertex(VertexKind.NVSWITCH, 0, chips=4, reduces=True).reduces
    with pytest.raises(TopologyError, match="only an nvswitch can reduce"):
        Vertex(VertexKind.CPU, 0, reduces=True)
