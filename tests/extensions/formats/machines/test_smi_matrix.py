"""The matrix of `nvidia-smi topo -m`."""

from __future__ import annotations

import pytest

from perfmodel import api
from perfmodel.base.errors import TopologyError
from perfmodel.extensions.formats.machines.smi_matrix import is_matrix, parse_matrix
from topologies import load_topology
from topologies.link import VertexKind

SWITCHED = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tSYS\t0-51\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\t52-103\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tNODE\t52-103\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe
"""
CARDS = """\
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     PHB     0-15            0
GPU1    NV4      X      SYS     PHB     0-15            0
GPU2    SYS     SYS      X      SYS     16-31           1
mlx5_0  PHB     PHB     SYS      X
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "topo.txt"
        path.write_text(text)
        return path

    return write


def test_equal_lanes_between_all_gpus_end_in_a_switch(file):
    machine = api.import_topology(file(SWITCHED), gpu="h100_sxm", nic_rate="400 Gbit/s").topology
    assert len(machine.of_kind(VertexKind.NVSWITCH)) == 1
    # 18 lanes of 25 GB/s.
    assert machine.gpu_route(0, 3).bandwidth_bytes_per_s == 450e9
    assert len(machine.of_kind(VertexKind.CPU)) == 2
    # Only GPU 0 and GPU 2 share a PCIe switch with a NIC.
    assert len(machine.of_kind(VertexKind.PCIE_SWITCH)) == 2
    assert machine.nic_of_gpu == (0, 0, 1, 1)


def test_few_lanes_are_bridges(file):
    machine = api.import_topology(file(CARDS), gpu="rtx_a5000").topology
    assert not machine.of_kind(VertexKind.NVSWITCH)
    # 4 lanes of 14.0625 GB/s, one way.
    assert machine.gpu_route(0, 1).bandwidth_bytes_per_s == 56.25e9
    assert len(machine.of_kind(VertexKind.CPU)) == 2


def test_the_gpu_must_be_named(file):
    with pytest.raises(TopologyError, match="--gpu h100_sxm"):
        load_topology(file(CARDS))


@pytest.mark.parametrize(
    ("text", "gpu", "said"),
    [
        (SWITCHED, "rtx_a5000", "Name the right GPU with --gpu"),
        (SWITCHED.replace("NV18", "NV12", 1), "h100_sxm", "by NV12, and back by NV18"),
        (CARDS + CARDS.splitlines()[1], "rtx_a5000", "two lines for GPU0"),
        (CARDS.replace("NV4     SYS", "NVX     SYS"), "rtx_a5000", "line GPU0 must have one of"),
        (CARDS.rpartition("mlx5_0")[0], "rtx_a5000", "has no line for mlx5_0"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(file, text, gpu, said):
    with pytest.raises(TopologyError) as fault:
        api.import_topology(file(text), gpu=gpu)
    assert said in str(fault.value)


def test_a_matrix_inside_other_text_with_bonded_nics_is_read():
    lines = (
        "- `nvidia-smi topo -m`:",
        "      \tGPU0\tGPU1\tmlx5_bond_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "  GPU0\t X \tSYS\tPHB\t0-13\t0\t\tN/A",
        "  GPU1\tSYS\t X \tSYS\t14-27\t1\t\tN/A",
        "  mlx5_bond_0\tPHB\tSYS\t X \t\t\t\t",
    )
    text = "\n".join(lines)
    matrix = parse_matrix(text, "matrix.txt")
    assert is_matrix(text)
    assert (matrix.gpus, matrix.nics) == (("GPU0", "GPU1"), ("mlx5_bond_0",))
