import math

import numpy as np
import pytest

from collectives.collective import CollectiveAlgorithm, CollectiveKind
from collectives.group import wiring_of
from collectives.movement import ALGORITHMS, build_movement
from tests.collectives.machines import build_host
from topologies import build_cluster

SIZE = np.array([8000.0])


def wiring(hosts=1, gpus=4):
    cluster = build_cluster(build_host(gpus=gpus, reduces=True), hosts=hosts)
    return wiring_of(range(cluster.rank_count), cluster)


def moved(kind, algorithm, *, hosts=1, gpus=4):
    return build_movement(kind, algorithm, SIZE, wiring(hosts, gpus))


def test_a_ring_all_reduce_sends_twice_all_but_one_share():
    movement = moved(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.RING)
    # Four ranks: 2 x 3 steps of 8000 / 4 bytes.
    assert movement.host_hops == 6
    assert movement.gpu_bytes[0] == 12_000
    assert movement.chunk_bytes[0] == 2_000


def test_a_ring_all_gather_makes_half_the_steps_of_an_all_reduce():
    movement = moved(CollectiveKind.ALL_GATHER, CollectiveAlgorithm.RING)
    assert movement.host_hops == 3
    assert movement.gpu_bytes[0] == 6_000


def test_a_ring_over_hosts_crosses_each_border_twice():
    movement = moved(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.RING, hosts=2)
    # Eight ranks: 14 steps, of which 2 x 2 cross; every host sends 14 / 8 of the buffer.
    assert (movement.host_hops, movement.net_hops) == (10, 4)
    assert movement.nic_bytes[0] == 14_000


def test_a_tree_between_two_hosts_hands_the_buffer_over_once():
    movement = moved(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, hosts=2)
    assert movement.nic_bytes[0] == 8_000
    assert movement.net_hops == 2


def test_an_inner_host_of_a_double_tree_sends_twice_the_buffer():
    movement = moved(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, hosts=8)
    assert movement.nic_bytes[0] == 16_000
    assert movement.net_hops == 2 * math.log2(8)


def test_the_switch_takes_each_buffer_once():
    movement = moved(CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.NVLS)
    assert movement.gpu_bytes[0] == 8_000
    assert movement.host_hops == 0


def test_pairwise_sends_each_slice_once_inside_or_outside():
    movement = moved(CollectiveKind.ALL_TO_ALL, CollectiveAlgorithm.PAIRWISE, hosts=2)
    # Slices of 1000: three to ranks of the host, four to the other host, from each of 4 ranks.
    assert movement.gpu_bytes[0] == 3_000
    assert movement.nic_bytes[0] == 16_000
    assert (movement.peers, movement.net_peers) == (3, 4)


def test_send_recv_moves_the_whole_buffer_to_the_one_peer():
    movement = moved(CollectiveKind.SEND_RECV, CollectiveAlgorithm.PAIRWISE, gpus=2)
    assert movement.gpu_bytes[0] == 8_000


def test_a_broadcast_passes_every_rank_once():
    movement = moved(CollectiveKind.BROADCAST, CollectiveAlgorithm.RING, hosts=2)
    assert movement.gpu_bytes[0] == 8_000
    assert (movement.host_hops, movement.net_hops) == (6, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_movement_without_bytes_keeps_its_steps(algorithm):
    movement = moved(CollectiveKind.ALL_REDUCE, algorithm, hosts=2)
    empty = movement.without_bytes()
    assert empty.net_hops == movement.net_hops
    assert empty.nic_bytes == 0
