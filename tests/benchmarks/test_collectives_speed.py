"""How fast collectives are priced, and how that grows with the ranks.

What must hold is a ratio of processor times of one run, so that no machine is too slow for it.
"""

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
def test_a_thousand_different_collectives_cost_no_more_together_than_one_by_one():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=512)
    calls = different_calls(cluster, 1_000)
    started = time.process_time()
    costs = price_collectives(calls, cluster=cluster)
    together_s = time.process_time() - started
    alone = [price_collective(c.collective, cluster=cluster, ranks=c.ranks) for c in calls[:100]]
    alone_s = time.process_time() - started - together_s
    print(
        f"\n1,000 different collectives on 4,096 ranks: {together_s:.2f} s together, "
        f"{10 * alone_s:.2f} s one by one"
    )
    assert [cost.duration_ns for cost in costs[:100]] == [cost.duration_ns for cost in alone]
    assert together_s < 3 * 10 * alone_s


@pytest.mark.benchmark
def test_two_thousand_times_the_ranks_cost_less_than_two_hundred_times_the_time():
    median_ms = {ranks: _median_ms(ranks) for ranks in (8, 64, 512, 4_096, 16_384)}
    for ranks, each_ms in median_ms.items():
        print(f"\nall-reduce over {ranks} ranks: {each_ms:.2f} ms")
    assert median_ms[16_384] < 200 * median_ms[8]


def _median_ms(ranks: int) -> float:
    """Processor time of one all-reduce, sizes one by one."""
    cluster = build_cluster(load_topology("dgx_h100"), hosts=max(1, ranks // 8))
    members = np.arange(ranks)
    times = []
    for size in range(20):
        call = Collective(CollectiveKind.ALL_REDUCE, 1 << size)
        started = time.process_time()
        price_collective(call, cluster=cluster, ranks=members)
        times.append(time.process_time() - started)
    return 1e3 * sorted(times)[10]
