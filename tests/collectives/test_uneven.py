import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Collective, CollectiveKind, price_collective
from collectives.uneven import build_rank_load
from perfmodel.base.errors import InputError
from tests.collectives.machines import build_host
from topologies import build_cluster, load_topology

HOST = build_cluster(load_topology("dgx_h100"), hosts=1)


def price(matrix, cluster=HOST):
    rows = tuple(tuple(int(value) for value in row) for row in matrix)
    call = Collective(CollectiveKind.ALL_TO_ALL, 0, byte_matrix=rows)
    return price_collective(call, cluster=cluster, ranks=range(len(rows)))


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_the_even_matrix_costs_exactly_the_even_exchange(hosts):
    cluster = build_cluster(load_topology("dgx_h100"), hosts=hosts)
    count = cluster.rank_count
    uneven = price(np.full((count, count), 1 << 16), cluster)
    even = price_collective(
        Collective(CollectiveKind.ALL_TO_ALL, count << 16), cluster=cluster, ranks=range(count)
    )
    assert uneven.duration_ns == pytest.approx(even.duration_ns, rel=1e-12)
    assert np.allclose(uneven.per_rank_ns, even.duration_ns, rtol=1e-12)


def test_every_rank_has_its_own_end():
    cluster = build_cluster(load_topology("dgx_a100"), hosts=1)
    matrix = np.full((8, 8), 1 << 10)
    matrix[3, 5] = 1 << 28
    cost = price(matrix, cluster)
    late = set(np.nonzero(cost.per_rank_ns > 2 * np.median(cost.per_rank_ns))[0].tolist())
    assert late == {3, 5}  # who sends it and who receives it
    assert cost.duration_ns == cost.per_rank_ns.max()


def test_ranks_that_share_a_nic_wait_for_what_it_carries():
    # GPUs 0 and 2 share a NIC of the host; only rank 0 sends much, but rank 2 waits as well.
    cluster = build_cluster(build_host(gpus=4, nics=2), hosts=2)
    nics = cluster.topology.nic_of_gpu
    matrix = np.zeros((8, 8))
    matrix[0, 4:] = 1 << 26
    cost = price(matrix, cluster)
    sharing = [rank for rank in range(4) if nics[rank] == nics[0]]
    apart = [rank for rank in range(4) if nics[rank] != nics[0]]
    assert min(cost.per_rank_ns[sharing]) > 5 * max(cost.per_rank_ns[apart])


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), place=st.tuples(st.integers(0, 7), st.integers(0, 7)))
def test_more_bytes_anywhere_end_no_rank_earlier(seed, place):
    cluster = build_cluster(load_topology("dgx_h100"), hosts=2, ranks_per_host=4)
    matrix = np.random.default_rng(seed).integers(0, 1 << 24, (8, 8))
    more = matrix.copy()
    more[place] += 1 << 22
    assert np.all(price(more, cluster).per_rank_ns >= price(matrix, cluster).per_rank_ns - 1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_renaming_ranks_of_a_host_only_permutes_the_ends(seed):
    source = np.random.default_rng(seed)
    matrix, order = source.integers(0, 1 << 24, (8, 8)), source.permutation(8)
    renamed = price(matrix[np.ix_(order, order)]).per_rank_ns
    assert np.allclose(renamed, price(matrix).per_rank_ns[order])


def test_a_matrix_of_another_size_than_the_group_is_refused():
    call = Collective(CollectiveKind.ALL_TO_ALL, 0, byte_matrix=((1, 1), (1, 1)))
    with pytest.raises(InputError, match="2 rows and the group 3"):
        price_collective(call, cluster=HOST, ranks=range(3))


def test_messages_of_a_rank_share_its_wires_alike():
    matrix = np.zeros((8, 8))
    matrix[0, 1:4] = 10, 20, 30
    load = build_rank_load(matrix, range(8), HOST)
    # Three times 10 until the first is through, then 20 twice and 10, then everything.
    assert load.inside_bytes.tolist() == [60, 30, 50, 60, 0, 0, 0, 0]


def test_whoever_gets_something_from_the_busiest_rank_ends_with_it():
    sent = np.array([4, 1, 1, 1, 3, 3, 3, 0])[:, np.newaxis] << 20
    for matrix in (np.tile(sent, 8), np.tile(sent, 8).T):
        cost = price(matrix - np.diag(np.diag(matrix)))
        assert np.allclose(cost.per_rank_ns, cost.duration_ns)
