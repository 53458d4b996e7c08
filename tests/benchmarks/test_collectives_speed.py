"""How fast collectives are priced, and how that grows with the ranks.

What must hold is a ratio of processor times of one run, so that no machine is too slow for it.
"""

import time

import numpy as np
import pytest

from collectives import Collective, CollectiveKind, price_collective
from topologies import build_cluster, load_topology


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
