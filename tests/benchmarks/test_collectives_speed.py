"""How fast collectives are priced, and how that grows with the ranks."""

import random
import time

import numpy as np
import pytest

from collectives import (
    Collective,
    CollectiveCall,
    CollectiveKind,
    price_collective,
    price_collectives,
)
from topologies import build_cluster, load_topology

KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def different_calls(cluster, count):
    """Calls of different kinds, sizes and groups, none a translation of another."""
    source = random.Random(1)
    return [
        CollectiveCall(
            Collective(KINDS[number % 4], source.randrange(1, 1 << 30)),
            np.array(sorted(source.sample(range(cluster.rank_count), source.randint(2, 512)))),
        )
        for number in range(count)
    ]


@pytest.mark.benchmark
def test_a_thousand_different_collectives_on_512_hosts_take_under_five_seconds():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=512)
    calls = different_calls(cluster, 1_000)
    started = time.perf_counter()
    costs = price_collectives(calls, cluster=cluster)
    elapsed_s = time.perf_counter() - started
    print(f"\n1,000 different collectives on 4,096 ranks: {elapsed_s:.2f} s")
    assert len(costs) == 1_000
    assert elapsed_s < 5


@pytest.mark.benchmark
@pytest.mark.parametrize("ranks", [8, 64, 512, 4_096, 16_384])
def test_one_collective_takes_milliseconds_whatever_the_ranks(ranks):
    cluster = build_cluster(load_topology("dgx_h100"), hosts=max(1, ranks // 8))
    members = np.arange(ranks)
    times = []
    for size in range(20):
        call = Collective(CollectiveKind.ALL_REDUCE, 1 << size)
        started = time.perf_counter()
        price_collective(call, cluster=cluster, ranks=members)
        times.append(time.perf_counter() - started)
    median_ms = 1e3 * sorted(times)[10]
    print(f"\nall-reduce over {ranks} ranks: {median_ms:.2f} ms")
    assert median_ms < 50
