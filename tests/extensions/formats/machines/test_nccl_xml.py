"""NCCL's topology XML: wiring as the file says, and what it does not say is named."""

from __future__ import annotations

import pytest

from perfmodel import api
from perfmodel.base.errors import TopologyError
from topologies import load_topology
from topologies.link import VertexKind

HEAD = '<system version="1">'
CPU = '<cpu numaid="{0}" arch="x86_64" vendor="AuthenticAMD">'
SWITCH = '<pci busid="ff:0{0}" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">'
GPU = '<pci busid="0{0}:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16.0 GT/s PCIe" link_width="16">'  # noqa: E501  one element
NIC = (
    '<pci busid="1{0}:00.0" class="0x020700"><nic><net name="mlx5_{0}" speed="200000"/></nic></pci>'
)


def gpu(number, *links):
    inner = "".join(
        f'<nvlink target="{to}" count="{count}" tclass="{kind}"/>' for to, count, kind in links
    )
    return f'{GPU.format(number)}<gpu dev="{number}" sm="80">{inner}</gpu></pci>'


def switched(number):
    return gpu(number, ("ff:ff.0", 12, "0x068000"))


def host(*sockets):
    body = "".join(f"{CPU.format(number)}{inner}</cpu>" for number, inner in enumerate(sockets))
    return f"{HEAD}{body}</system>"


def pair(number):
    """A switch with two GPUs and a NIC."""
    first = 2 * number
    inner = switched(first) + switched(first + 1) + NIC.format(number)
    return f"{SWITCH.format(number)}{inner}</pci>"


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "topo.xml"
        path.write_text(text)
        return path

    return write


def test_a_dump_names_its_gpus_and_their_wires(file):
    machine = load_topology(file(host(pair(0), pair(1))))
    assert machine.device.name == "a100_sxm_80gb"
    counts = {kind: len(machine.of_kind(kind)) for kind in VertexKind}
    assert (counts[VertexKind.GPU], counts[VertexKind.PCIE_SWITCH], counts[VertexKind.CPU]) == (
        4,
        2,
        2,
    )
    # Twelve lanes of 25 GB/s to the NVSwitch.
    assert machine.gpu_route(0, 3).bandwidth_bytes_per_s == 300e9
    # 16 GT/s x 16 lanes x 128/130 / 8.
    to_switch = next(one for one in machine.links if one.target == "pcie_switch:0")
    assert to_switch.bandwidth_bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert machine.fabric.nic_bandwidth_bytes_per_s == 25e9
    assert machine.nic_of_gpu == (0, 0, 1, 1)


def test_links_between_gpus_are_a_mesh_without_a_switch(file):
    first = gpu(0, ("01:00.0", 4, "0x030200"))
    second = gpu(1, ("00:00.0", 4, "0x030200"))
    machine = load_topology(file(host(first + second)))
    assert not machine.of_kind(VertexKind.NVSWITCH)
    assert machine.gpu_route(0, 1).bandwidth_bytes_per_s == 100e9
    assert "peer_to_peer" not in " ".join(machine.assumed)
    apart = load_topology(file(host(gpu(0) + gpu(1))))
    assert "peer_to_peer (true or false) states it" in " ".join(apart.assumed)


def test_what_the_file_does_not_say_is_assumed_in_words(file):
    bare = GPU.format(0).replace('device="0x20b2" ', "").removesuffix(">") + "/>"
    path = file(host(bare + '<pci busid="10:00.0" class="0x020700"/>'))
    with pytest.raises(TopologyError, match="does not say which GPU it is about"):
        load_topology(path)
    found = api.import_topology(path, gpu="a100_pcie_80gb")
    said = " ".join(found.topology.assumed)
    assert "NVLink is left out" in said
    assert "The rate of a NIC is not stated" in said
    assert found.topology.fabric is None
    assert "# fabric:" in found.text
    told = api.import_topology(path, gpu="a100_pcie_80gb", nic_rate="100 Gbit/s")
    assert told.topology.fabric.nic_bandwidth_bytes_per_s == 12.5e9


def test_a_gpu_that_the_catalog_lacks_is_answered_with_those_of_its_generation(file):
    path = file(host(gpu(0).replace("0x20b2", "0xffff")))
    with pytest.raises(TopologyError, match=r"compute capability 8\.0 .*GPUs: a100_") as fault:
        load_topology(path)
    assert "h100" not in str(fault.value)


def test_interfaces_of_containers_are_no_nics(file):
    veth = '<nic><net name="veth0" speed="10000"/><net name="br-1" speed="10000"/></nic>'
    machine = load_topology(file(host(pair(0) + veth)))
    assert len(machine.of_kind(VertexKind.NIC)) == 1
    assert machine.fabric.nic_bandwidth_bytes_per_s == 25e9


def test_the_written_file_is_the_machine(file, tmp_path):
    path, out = file(host(pair(0), pair(1))), tmp_path / "my.yaml"
    out.write_text(api.import_topology(path).text)
    assert load_topology(out).is_wired_like(load_topology(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<graph/>", "must be NCCL's <system>, got <graph>"),
        (f"{HEAD}<cpu>", "not valid XML"),
        (f"{HEAD}</system>", "must list the GPUs"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "not valid XML"),
        ("<!DOCTYPE system><system/>", "not valid XML"),
    ],
)
def test_other_xml_is_refused(file, text, said):
    with pytest.raises(TopologyError) as fault:
        load_topology(file(text))
    assert said in str(fault.value)
