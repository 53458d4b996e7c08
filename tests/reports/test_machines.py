from dataclasses import replace
from itertools import pairwise

import pytest

from perfmodel.reports.machine_picture import (
    build_legend,
    drawn_links,
    line_width,
    place_vertices,
    write_picture,
)
from perfmodel.reports.machines import report_topology, route_word
from perfmodel.reports.terminal import to_text
from tests.topologies.machines import build_device, build_pcie_host, build_topology
from topologies import build_cluster, list_topologies, load_topology


@pytest.mark.parametrize("name", list_topologies())
def test_boxes_of_a_row_do_not_overlap(name):
    places = sorted(place_vertices(load_topology(name)).values(), key=lambda place: place[::-1])
    for left, right in pairwise(places):
        assert left[1] != right[1] or right[0] - left[0] >= 0.99


def test_all_vertices_of_a_small_machine_are_drawn():
    topology = load_topology("dgx_h100")
    assert place_vertices(topology).keys() == {vertex.name for vertex in topology.vertices}


def test_of_a_rack_two_trays_are_drawn():
    places = place_vertices(load_topology("gb200_nvl72"))

    assert sum(name.startswith("gpu") for name in places) == 8


def test_each_wire_is_drawn_once_and_faster_ones_are_thicker():
    topology = build_pcie_host()

    # 16 one-way links are 8 wires: 4 GPUs, 2 NICs and 2 switches.
    assert len(drawn_links(topology, place_vertices(topology))) == 8
    assert line_width(450e9) > line_width(63e9) > line_width(16e9)


def test_the_legend_says_lanes_and_rates():
    topology = load_topology("aws_p5")
    words = build_legend(topology, place_vertices(topology))

    assert "NVLink  18 x 25 GB/s = 450 GB/s" in words
    assert "NIC  4 x 100 Gbit/s" in words


def test_the_same_machine_gives_the_same_picture(tmp_path):
    topology = load_topology("dgx1_v100")
    for name in ("a.svg", "b.svg"):
        write_picture(topology, tmp_path / name, build_cluster(topology, hosts=2))

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_lonely_gpu_can_be_drawn(tmp_path):
    topology = build_topology([], counts={"gpu": 1}, device=build_device())
    write_picture(topology, tmp_path / "one.png")

    assert (tmp_path / "one.png").stat().st_size > 1000
    assert to_text(report_topology(topology)).startswith("toy: a toy")


def test_routes_get_the_words_of_nvidia_smi():
    dgx1 = load_topology("dgx1_v100")
    pcie = replace(load_topology("a100_pcie"), peer_to_peer=True)

    assert route_word(dgx1.gpu_route(0, 3)) == "NV2"
    assert route_word(dgx1.gpu_route(0, 7)) == "NVB2"
    assert route_word(pcie.gpu_route(0, 1)) == "PIX"
    assert route_word(pcie.gpu_route(0, 2)) == "PHB"
    assert route_word(pcie.gpu_route(0, 7)) == "SYS"


def test_dollar_signs_in_a_name_are_no_mathematics(tmp_path):
    topology = replace(load_topology("quad_a100"), name="a$_{^$", description="costs $1 and $_{^")
    write_picture(topology, tmp_path / "a.svg")
    assert "a$_{^$" in (tmp_path / "a.svg").read_text()
