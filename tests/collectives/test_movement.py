import math

import numpy as np
import pytest

from collectives.collective import CollectiveAlgorithm, CollectiveKind
from collectives.group import wiring_of
from collectives.movement import build_movement
from tests.collectives.machines import build_host
from topologies import build_cluster

SIZE = np.array([8000.0])


def wiring(hosts=1, gpus=4):
    cluster = build_cluster(build_host(gpus=gpus, reduces=True), hosts=hosts)
    return wiring_of(range(cluster.rank_count), cluster)


def moved(kind, algorithm, *, hosts=1, gpus=4):
    return build_movement(kind, algorithm, SIZE, wiring(hosts, gpus))


RING, TREE = CollectiveAlgorithm.RING, CollectiveAlgorithm.TREE
PAIRWISE, NVLS = CollectiveAlgorithm.PAIRWISE, CollectiveAlgorithm.NVLS
COLLNET = CollectiveAlgorithm.COLLNET


@pytest.mark.parametrize(
    ("kind", "algorithm", "hosts", "expected"),
    [
        # Four ranks: 2 x 3 steps of 8000 / 4 bytes.
        ("all_reduce", RING, 1, {"host_hops": 6, "gpu_bytes": 12_000, "chunk_bytes": 2_000}),
        ("all_gather", RING, 1, {"host_hops": 3, "gpu_bytes": 6_000}),
        # Eight ranks: 14 steps, of which 2 x 2 cross; every host sends 14 / 8 of the buffer.
        ("all_reduce", RING, 2, {"host_hops": 10, "net_hops": 4, "nic_bytes": 14_000}),
        # A tree between two hosts hands the buffer over once, an inner host of a double tree twice.
        ("all_reduce", TREE, 2, {"net_hops": 2, "nic_bytes": 8_000}),
        ("all_reduce", TREE, 8, {"net_hops": 2 * math.log2(8), "nic_bytes": 16_000}),
        # The switch takes each buffer once.
        ("all_reduce", NVLS, 1, {"host_hops": 0, "gpu_bytes": 8_000}),
        # A chain of four to one GPU and back; the network takes each host's sum once.
        ("all_reduce", COLLNET, 8, {"host_hops": 6, "net_hops": 2, "nic_bytes": 8_000}),
        # Slices of 1000: three to ranks of the host, four to the other host, from each of 4 ranks.
        ("all_to_all", PAIRWISE, 2, {"gpu_bytes": 3_000, "nic_bytes": 16_000, "peers": 3}),
        ("all_to_all", PAIRWISE, 2, {"net_peers": 4}),
        # A broadcast passes every rank once.
        ("broadcast", RING, 2, {"gpu_bytes": 8_000, "host_hops": 6, "net_hops": 1}),
    ],
)
def test_steps_and_bytes_are_those_counted_on_paper(kind, algorithm, hosts, expected):
    movement = moved(CollectiveKind(kind), algorithm, hosts=hosts)
    for name, value in expected.items():
        assert np.all(getattr(movement, name) == value), name


def test_send_recv_moves_the_whole_buffer_to_the_one_peer():
    movement = moved(CollectiveKind.SEND_RECV, PAIRWISE, gpus=2)
    assert movement.gpu_bytes[0] == 8_000
