import pytest

from perfmodel.base.errors import TopologyError
from topologies import Vertex, VertexKind


def test_only_an_nvswitch_reduces():
    assert Vertex(VertexKind.NVSWITCH, 0, chips=4, reduces=True).reduces
    with pytest.raises(TopologyError, match="only an nvswitch can reduce"):
        Vertex(VertexKind.CPU, 0, reduces=True)
