import csv
import gzip
import io
from collections import Counter
from itertools import permutations

import pytest
import yaml

from topologies import list_devices, list_topologies, load_topology
from topologies.device import DEVICES
from topologies.recognising import CATALOG

GB = 1e9
WANTED = {
    "dgx1_v100", "dgx2_v100", "quad_gv100", "quad_a100", "dgx_a100", "dgx_h100", "hgx_h200",
    "dgx_b200", "gb200_nvl72", "a100_pcie", "h100_pcie", "l40s_pcie", "rtx_pro_6000_pcie",
    "aws_p4d", "aws_p5", "aws_p5en", "polaris", "alps_gh200",
    "dgx_b300", "gb300_nvl72", "h200_nvl_pcie", "hgx_a100_4gpu", "hgx_h100_4gpu", "dgx2h_v100",
    "jean_zay_a100", "grand_teton_h100", "azure_nd_a100_v4", "v100_pcie", "l4_pcie", "l40_pcie",
    "a30_pcie", "a40_pcie", "rtx_a5000_pcie", "rtx_4090_pcie", "a30_pcie_nvbridge", "rtx_3090_pcie",
    "a40_pcie_nvbridge", "rtx_a5000_pcie_nvbridge", "a100_pcie_nvbridge", "h100_pcie_nvbridge",
    "h200_nvl_pcie_nvbridge",
}  # fmt: skip


def test_the_catalog_has_every_machine_that_was_asked_for():
    assert set(list_topologies()) >= WANTED


@pytest.mark.parametrize("table", ["transformer.csv.gz", "dlrm.csv", "out_of_memory.csv.gz"])
def test_every_machine_and_device_of_the_measured_runs_is_in_the_catalog(shared_data, table):
    path = shared_data / "runs" / table
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = list(csv.DictReader(io.StringIO(content.decode())))

    assert {row["machine"] for row in rows} <= {*list_topologies(), ""}
    assert {row["device"] for row in rows} <= {*list_devices(), ""}


@pytest.mark.parametrize("name", list_topologies())
def test_every_gpu_reaches_every_gpu_socket_and_nic(name):
    topology = load_topology(name)
    assert topology.name == name
    for gpu_a, gpu_b in permutations(range(topology.gpus_per_host), 2):
        route = topology.gpu_route(gpu_a, gpu_b)
        assert (route.source, route.target) == (f"gpu:{gpu_a}", f"gpu:{gpu_b}")
    for gpu in range(topology.gpus_per_host):
        assert topology.cpu_route(gpu).target.startswith("cpu")
        if topology.fabric is not None:
            assert topology.nic_route(gpu).target.startswith("nic")
    # There and back are as many links at the same rate, and NICs are shared evenly.
    for gpu in range(1, topology.gpus_per_host):
        there, back = topology.gpu_route(0, gpu), topology.gpu_route(gpu, 0)
        assert len(there.links) == len(back.links)
        assert there.bandwidth_bytes_per_s == back.bandwidth_bytes_per_s
    assert len({topology.nic_of_gpu.count(nic) for nic in range(topology.nics_per_host)}) <= 1


@pytest.mark.parametrize("path", sorted([*CATALOG.glob("*.yaml"), *DEVICES.glob("*.yaml")]))
def test_every_file_names_its_source_date_and_licence(path):
    content = yaml.safe_load(path.read_text())
    assert all(content[key] for key in ("source", "date", "licence"))


# GPUs, and what the datasheet of each counts both ways together.
NVLINK_GB_PER_S = {
    "dgx1_v100": (8, 300), "dgx2_v100": (16, 300), "dgx_a100": (8, 600), "polaris": (4, 600),
    "dgx_h100": (8, 900), "hgx_h200": (8, 900), "alps_gh200": (4, 900), "dgx_b200": (8, 1800),
    "gb200_nvl72": (72, 1800), "dgx_b300": (8, 1800), "gb300_nvl72": (72, 1800),
    "grand_teton_h100": (8, 900), "jean_zay_a100": (8, 600), "azure_nd_a100_v4": (8, 600),
    "dgx2h_v100": (16, 300), "hgx_a100_4gpu": (4, 600), "hgx_h100_4gpu": (4, 900),
    "a30_pcie_nvbridge": (8, 200), "a40_pcie_nvbridge": (8, 112.5),
    "rtx_a5000_pcie_nvbridge": (8, 112.5), "a100_pcie_nvbridge": (8, 600),
    "h100_pcie_nvbridge": (8, 600), "h200_nvl_pcie_nvbridge": (8, 900), "a100_pcie": (8, 0),
    "v100_pcie": (8, 0), "l4_pcie": (8, 0), "h200_nvl_pcie": (8, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", NVLINK_GB_PER_S)
def test_gpus_have_the_nvlink_bandwidth_of_their_datasheet(name):
    topology, (gpus, gb_per_s) = load_topology(name), NVLINK_GB_PER_S[name]
    assert topology.gpus_per_host == gpus
    for gpu in range(gpus):
        assert topology.nvlink_bandwidth_bytes_per_s(gpu) == gb_per_s / 2 * GB


def test_switches_of_a_machine_carry_what_the_datasheet_says():
    dgx, rack = load_topology("dgx_b200"), load_topology("gb200_nvl72")

    # DGX B200: 14.4 TB/s both ways together = 8 GPUs x 1.8 TB/s.
    assert 2 * sum(dgx.nvlink_bandwidth_bytes_per_s(gpu) for gpu in range(8)) == 14.4e12
    # GB200 NVL72: 130 TB/s = 72 x 1.8 TB/s, rounded.
    total = 2 * sum(rack.nvlink_bandwidth_bytes_per_s(gpu) for gpu in range(72))
    assert round(total / 1e12) == 130


NICS_GBIT_PER_S = {
    "dgx_a100": 8 * 200, "dgx_h100": 8 * 400, "aws_p4d": 400, "aws_p5": 3200, "aws_p5en": 3200,
    "polaris": 2 * 200, "alps_gh200": 4 * 200, "gb200_nvl72": 72 * 400, "dgx1_v100": 4 * 100,
    "dgx_b300": 8 * 800, "gb300_nvl72": 72 * 800, "jean_zay_a100": 4 * 100,
    "grand_teton_h100": 8 * 400, "azure_nd_a100_v4": 8 * 200, "hgx_h100_4gpu": 4 * 400,
}  # fmt: skip


@pytest.mark.parametrize("name", NICS_GBIT_PER_S)
def test_hosts_send_what_their_nics_add_up_to(name):
    topology = load_topology(name)
    total = topology.nics_per_host * topology.fabric.nic_bandwidth_bytes_per_s
    # 8 bits a byte.
    assert total * 8 == pytest.approx(NICS_GBIT_PER_S[name] * 1e9)


def test_switches_reduce_from_hopper_on():
    reducing = {name for name in list_topologies() if load_topology(name).has_nvls}
    assert reducing == {
        "dgx_h100", "hgx_h200", "dgx_b200", "gb200_nvl72", "aws_p5", "aws_p5en",
        "dgx_b300", "gb300_nvl72", "grand_teton_h100",
    }  # fmt: skip


JOINED_GPUS = {
    "gb200_nvl72": 72, "gb300_nvl72": 72, "dgx_b300": 8, "dgx2h_v100": 16, "hgx_a100_4gpu": 4,
    "hgx_h100_4gpu": 4, "h200_nvl_pcie_nvbridge": 4, "a100_pcie_nvbridge": 2, "rtx_4090_pcie": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED_GPUS)
def test_nvlink_joins_as_many_gpus_as_a_machine_is_known_for(name):
    topology = load_topology(name)
    others = range(1, topology.gpus_per_host)
    assert 1 + sum(topology.gpu_route(0, gpu).is_nvlink for gpu in others) == JOINED_GPUS[name]


def test_a_gb300_rack_has_trays_of_four():
    rack = load_topology("gb300_nvl72")
    assert (rack.gpus_per_host, rack.trays, rack.gpus_per_tray) == (72, 18, 4)


@pytest.mark.parametrize(("name", "lanes"), [("hgx_a100_4gpu", 4), ("hgx_h100_4gpu", 6)])
def test_boards_of_four_gpus_have_no_switch_and_divide_their_links_evenly(name, lanes):
    topology = load_topology(name)
    # 12 links of an A100 or 18 of an H100, over three others.
    assert not topology.has_nvswitch
    assert all(topology.nvlink_lanes(a, b) == lanes for a, b in permutations(range(4), 2))


@pytest.mark.parametrize("name", ["dgx_b300", "gb300_nvl72"])
def test_gpus_of_blackwell_ultra_fill_their_nics(name):
    topology = load_topology(name)
    # 800 Gbit/s = 100 GB/s, more than PCIe 5.0 carries.
    assert topology.fabric.nic_bandwidth_bytes_per_s == 100 * GB
    for gpu in range(topology.gpus_per_host):
        assert topology.nic_route(gpu).bandwidth_bytes_per_s > 100 * GB
        assert topology.nic_of_gpu[gpu] == gpu


@pytest.mark.parametrize("name", [name for name in list_topologies() if name.endswith("_nvbridge")])
def test_bridges_are_all_that_tells_a_bridged_server_from_the_bare_one(name):
    bridged, bare = load_topology(name), load_topology(name.removesuffix("_nvbridge"))

    assert bridged.device == bare.device
    assert bridged.fabric == bare.fabric
    assert [link for link in bridged.links if link.kind.value != "nvlink"] == list(bare.links)


# NVLinks between each two GPUs as `nvidia-smi topo -m` prints them on a DGX-1 with V100.
CUBE_MESH = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
]


def test_the_hybrid_cube_mesh_has_the_links_of_a_real_dgx1():
    topology = load_topology("dgx1_v100")
    for a, row in enumerate(CUBE_MESH):
        assert sum(row) == 6  # a V100 has six NVLinks
        for b, lanes in enumerate(row):
            if a != b:
                assert topology.nvlink_lanes(a, b) == lanes


def test_far_corners_of_the_cube_mesh_are_reached_through_one_gpu():
    topology = load_topology("dgx1_v100")
    for a, b in permutations(range(8), 2):
        route = topology.gpu_route(a, b)
        assert route.is_nvlink
        assert route.passes_gpu == (CUBE_MESH[a][b] == 0)

    # gpu:0 -> gpu:7 through gpu:4 has two links on both legs, through gpu:3 two and one.
    assert topology.gpu_route(0, 7).stops == ("gpu:4",)
    assert topology.gpu_route(0, 7).bandwidth_bytes_per_s == 50 * GB


def test_bridged_pairs_meet_over_pcie():
    topology = load_topology("quad_a100")
    assert topology.nvlink_lanes(0, 1) == topology.nvlink_lanes(2, 3) == 12
    assert topology.nvlink_lanes(1, 2) == 0
    assert topology.gpu_route(1, 2).stops == ("cpu:0",)


def test_grace_hopper_sends_through_its_cpu():
    route = load_topology("alps_gh200").nic_route(2)
    assert [kind.value for kind in route.kinds] == ["nvlink_c2c", "pcie"]
    assert route.target == "nic:2"


def test_ways_over_the_cube_mesh_that_are_as_wide_end_on_the_wider_link():
    topology = load_topology("dgx1_v100")
    # From 3 to 6 one link bounds both ways: 3 - 2 has two and 2 - 6 one, 3 - 7 one and 7 - 6 two.
    assert topology.nvlink_lanes(3, 2) == topology.nvlink_lanes(7, 6) == 2
    assert topology.nvlink_lanes(3, 7) == topology.nvlink_lanes(2, 6) == 1
    assert [link.target for link in topology.gpu_route(3, 6).links] == ["gpu:7", "gpu:6"]
    pairs = Counter(
        link for a, b in permutations(range(8), 2) for link in topology.gpu_route(a, b).links
    )
    # When all pairs talk at once, no link of 25 GB/s serves more than three of them.
    assert max(25e9 * count / link.bandwidth_bytes_per_s for link, count in pairs.items()) == 3
