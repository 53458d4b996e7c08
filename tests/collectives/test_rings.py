from dataclasses import replace

import pytest

from collectives.group import wiring_of
from collectives.wiring import HostLinkClass, chain_bandwidth, pack_rings
from perfmodel.base.errors import InputError
from tests.collectives.machines import build_host
from topologies import build_cluster, load_topology


def square(entries):
    return tuple(tuple(float(value) for value in row) for row in entries)


@pytest.mark.parametrize(
    ("wires", "bandwidth"),
    [
        ([[0, 50], [50, 0]], 50),
        # A wire that is thinner one way bounds the ring of two.
        ([[0, 50], [20, 0]], 20),
        ([[0, 20], [50, 0]], 20),
        # 0 -> 1 -> 2 -> 0 and its reverse use each one-way wire of 25 once: 2 x 25.
        ([[0, 25, 25], [25, 0, 25], [25, 25, 0]], 50),
        # Wires of hundreds of gigabytes are packed like thin ones: two rings of 200e9 each.
        ([[0, 2e11, 2e11], [2e11, 0, 2e11], [2e11, 2e11, 0]], 4e11),
        # A ring goes the way its wires go.
        ([[0, 5, 0], [0, 0, 5], [5, 0, 0]], 5),
        ([[0, 5, 0], [0, 0, 5], [0, 0, 0]], 0),
        # Each direction must take 0 <-> 1 once: 10 each way, whatever the others carry.
        ([[0, 10, 90], [10, 0, 90], [90, 90, 0]], 20),
        # A star holds no ring.
        ([[0, 50, 0.5], [50, 0, 0], [0.5, 0, 0]], 0),
    ],
)
def test_rings_are_packed_into_the_wires(wires, bandwidth):
    assert pack_rings(square(wires)) == pytest.approx(bandwidth, rel=1e-9)


def test_wires_that_join_all_gpus_make_a_chain():
    assert chain_bandwidth(square([[0, 50, 0.5], [50, 0, 0], [0.5, 0, 0]])) == 0.5
    assert chain_bandwidth(square([[0, 5, 0], [5, 0, 0], [0, 0, 0]])) == 0


def test_the_hybrid_cube_mesh_holds_the_rings_that_were_measured():
    # Rings of 25 GB/s for the first n GPUs of a DGX-1; five GPUs hold none, so one chain is taken.
    topology = load_topology("dgx1_v100")
    rings = {}
    for count in range(2, 9):
        wiring = wiring_of(range(count), build_cluster(topology, hosts=1))
        rings[count] = wiring.ring_bandwidth_bytes_per_s / 25e9
        assert wiring.is_chain == (count == 5)
    assert {count: round(value, 3) for count, value in rings.items()} == {
        2: 1, 3: 2, 4: 4, 5: 1, 6: 2, 7: 4, 8: 6,
    }  # fmt: skip


def test_large_meshes_are_bounded_by_the_poorest_gpu():
    count = 9
    wires = [[0.0 if a == b else 1.0 for b in range(count)] for a in range(count)]
    wires[0] = [0.0, *[0.5] * (count - 1)]
    # GPU 0 sends 8 x 0.5 = 4, all others 8 x 1; turned round it receives as little.
    assert pack_rings(square(wires)) == 4
    assert pack_rings(square(zip(*wires, strict=True))) == 4


def test_eight_gpus_are_packed_and_not_bounded():
    # Two squares that one wire joins: each GPU could send, and no ring passes all of them.
    wires = [[1.0 if a != b and a // 4 == b // 4 else 0.0 for b in range(8)] for a in range(8)]
    wires[0][4] = wires[4][0] = 1.0
    assert pack_rings(square(wires)) == 0
    # Nine would take too long: three more each way round, and so it is bounded.
    nine = [[*row, 0.0] for row in wires] + [[0.0] * 9]
    nine[8][7] = nine[7][8] = 2.0
    assert pack_rings(square(nine)) == 2


@pytest.mark.parametrize(
    ("hosts", "ranks", "nic_bytes_per_s", "fault"),
    [(0, 4, 0.0, "between 1"), (5, 4, 1e9, "between 1"), (2, 4, 0.0, "need a network")],
)
def test_hosts_have_ranks_and_are_joined(hosts, ranks, nic_bytes_per_s, fault):
    wiring = wiring_of(range(4), build_cluster(build_host()))
    with pytest.raises(InputError, match=fault):
        replace(
            wiring, host_count=hosts, rank_count=ranks, nic_bandwidth_bytes_per_s=nic_bytes_per_s
        )
    assert replace(wiring, host_count=4, nic_bandwidth_bytes_per_s=1.0).host_count == 4


@pytest.mark.parametrize(
    ("link", "is_nvlink"),
    [("nvswitch", True), ("nvlink_mesh", True), ("pcie_peer", False), ("none", False)],
)
def test_links_of_hosts_are_nvlink_or_not(link, is_nvlink):
    assert HostLinkClass(link).is_nvlink is is_nvlink
