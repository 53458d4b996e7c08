from dataclasses import fields, replace

import numpy as np
import pytest

from collectives.calibration import load_default_calibration
from collectives.collective import CollectiveAlgorithm, CollectiveKind, Protocol
from collectives.constants import FabricConstants, HostConstants
from collectives.measurements import wiring_of_run
from collectives.movement import build_movement
from collectives.pricing import price_sizes
from collectives.timing import predict_duration_ns, soft_sum

PLAIN = HostConstants(
    **{field.name: 0.0 for field in fields(HostConstants)}
    | {
        "launch_ns": 5_000.0,
        "simple_launch_ns": 1_000.0,
        "simple_hop_ns": 2_000.0,
        "simple_ratio": 0.5,
        "copy_ratio": 0.5,
        "spread_bytes": 1.0,
        "plateau_bytes": 1.0,
    }
)


def test_a_simple_ring_adds_launch_steps_and_bytes():
    wiring = replace(wiring_of_run("dgx_a100", 1, 4), ring_bandwidth_bytes_per_s=100e9)
    sizes = np.array([4e6])
    duration = predict_duration_ns(
        build_movement(CollectiveKind.ALL_GATHER, CollectiveAlgorithm.RING, sizes, wiring),
        (CollectiveAlgorithm.RING, Protocol.SIMPLE),
        wiring=wiring,
        host=PLAIN,
        fabric=None,
    )
    # 5 + 1 us to launch, 3 steps of 2 us, (3 MB sent + 0.5 x 1 MB copied) at 50 GB/s: 70 us.
    assert duration[0] == pytest.approx(82_000)


NETWORK = FabricConstants(
    **{field.name: 0.0 for field in fields(FabricConstants)}
    | {
        "simple_hop_ns": 1_000.0,
        "simple_ratio": 1.0,
        "ll128_ratio": 1.0,
        "pair_ratio": 1.0,
        "ll_bytes_per_s": 1e9,
        "spread_bytes": 1.0,
        "step_bytes": 1e6,
        "fill_bytes": 1.0,
        "ll128_fill_bytes": 1e6,
        "ll128_fill_ns": 10_000.0,
        "nic_crowding": 0.25,
        "pair_burst_bytes": 1e5,
    }
)
WIRES = {
    "ring_bandwidth_bytes_per_s": 1e18,
    "pair_bandwidth_bytes_per_s": 1e18,
    "nic_bandwidth_bytes_per_s": 1e9,
    "nic_sharing": 1,
    "pair_oversubscription": 1.0,
    "net_latency_ns": 0.0,
}
SWIFT = replace(PLAIN, pair_ratio=1.0, ll128_ratio=1.0, ll_overlap=1.0)


def between_hosts_ns(kind, *choice, size, hosts=2, **wires) -> float:
    wiring = replace(wiring_of_run("dgx_a100", hosts, 4 * hosts), **{**WIRES, **wires})
    movement = build_movement(kind, choice[0], np.array([size]), wiring)
    [duration] = predict_duration_ns(movement, choice, wiring=wiring, host=SWIFT, fabric=NETWORK)
    return float(duration)


RING_GATHER = (CollectiveKind.ALL_GATHER, CollectiveAlgorithm.RING, Protocol.SIMPLE)


EXCHANGE = (CollectiveKind.ALL_TO_ALL, CollectiveAlgorithm.PAIRWISE, Protocol.SIMPLE)


@pytest.mark.parametrize("hosts", [2, 8])
def test_a_call_pays_its_latency_once_and_every_hop_its_own(hosts):
    for call in (RING_GATHER, EXCHANGE):
        plain = between_hosts_ns(*call, size=8.0, hosts=hosts)
        called = between_hosts_ns(*call, size=8.0, hosts=hosts, call_latency_ns=400_000.0)
        assert called - plain == pytest.approx(400_000)
    plain = between_hosts_ns(*RING_GATHER, size=8.0, hosts=hosts)
    hopped = between_hosts_ns(*RING_GATHER, size=8.0, hosts=hosts, net_latency_ns=40_000.0)
    # A gather over h hosts crosses h - 1 borders one after the other.
    assert hopped - plain == pytest.approx((hosts - 1) * 40_000)


def test_five_ranks_on_one_nic_take_twice_as_long_as_its_bandwidth_says():
    # 8 ranks gather 8 GB over 1 GB/s: 7 s; four more on the NIC cost a quarter each.
    assert between_hosts_ns(*RING_GATHER, size=8e9) == pytest.approx(7e9, rel=1e-3)
    assert between_hosts_ns(*RING_GATHER, size=8e9, nic_sharing=5) == pytest.approx(14e9, rel=1e-3)


def test_a_tree_in_ll128_waits_for_its_first_chunk_at_every_level():
    tree = (CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, Protocol.LL128)
    small, large = (
        between_hosts_ns(*tree, size=size, hosts=4, nic_bandwidth_bytes_per_s=1e18)
        for size in (8.0, 1e6)
    )
    # Two levels up and two down; at 1 MB half of 10 us each.
    assert large - small == pytest.approx(4 * 5_000, rel=1e-3)


@pytest.mark.parametrize(("size", "slower"), [(8e4, 1.0), (8e7, 4.0)])
def test_an_oversubscribed_spine_slows_large_slices_only(size, slower):
    narrow = between_hosts_ns(*EXCHANGE, size=size, pair_oversubscription=4.0)
    assert narrow / between_hosts_ns(*EXCHANGE, size=size) == pytest.approx(slower, rel=1e-2)


def test_a_network_of_endless_bandwidth_still_costs_latency():
    calibration = load_default_calibration()
    wiring = wiring_of_run("dgx_h100", 2, 16)
    endless = replace(wiring, nic_bandwidth_bytes_per_s=1e18)
    alone = wiring_of_run("dgx_h100", 1, 8)
    sizes = np.array([8.0])
    far = price_sizes(CollectiveKind.ALL_REDUCE, sizes, wiring=endless, calibration=calibration)
    near = price_sizes(CollectiveKind.ALL_REDUCE, sizes, wiring=alone, calibration=calibration)
    assert far[0].duration_ns > near[0].duration_ns


def test_long_times_are_joined_by_any_power():
    # An hour and a second: the larger decides, and the 64th power of it is beyond all numbers.
    assert soft_sum(3.6e12, 1e9, 64.0) == pytest.approx(3.6e12)
    assert soft_sum(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert soft_sum(0.0, 0.0, 4.0) == pytest.approx(0.0, abs=1e-8)


ALL_REDUCE = CollectiveKind.ALL_REDUCE
SMALL_HOSTS = {"nic_count": 2, "ranks_per_host": 2, "rank_count": 8}
"""Four hosts of two GPUs and two NICs, 1 GB/s together."""


def small_hosts_ns(algorithm: CollectiveAlgorithm, size: float, **network: float) -> float:
    wiring = replace(wiring_of_run("dgx_a100", 4, 8), **{**WIRES, **SMALL_HOSTS})
    movement = build_movement(ALL_REDUCE, algorithm, np.array([size]), wiring)
    [duration] = predict_duration_ns(
        movement,
        (algorithm, Protocol.SIMPLE),
        wiring=wiring,
        host=SWIFT,
        fabric=replace(NETWORK, **network),
    )
    return float(duration)


def test_a_ring_over_four_hosts_of_two_goes_round_twice():
    # 6 us of launch, 14 steps: 8 between hosts of 1 us, 6 inside of 2 us; 14/8 of 8 MB at 1 GB/s.
    found = small_hosts_ns(CollectiveAlgorithm.RING, 8e6)
    assert found == pytest.approx(6_000 + 8_000 + 12_000 + 14e6, rel=1e-6)


def test_a_double_tree_over_four_hosts_of_two_sends_the_buffer_twice():
    # Two levels up and down between hosts, one hop up and down inside; 2 x 8 MB at 1 GB/s.
    found = small_hosts_ns(CollectiveAlgorithm.TREE, 8e6)
    assert found == pytest.approx(6_000 + 4_000 + 4_000 + 16e6, rel=1e-6)


def test_small_pieces_of_a_ring_wait_for_proxies_at_every_step():
    # Each of 14 steps hands 1 MB to two NICs: far above 10 kB, so 3 ms, longer than its 1 ms.
    slow = {"step_ns": 3e6, "step_bytes": 1e4}
    found = small_hosts_ns(CollectiveAlgorithm.RING, 8e6, **slow)
    joined = 14 * soft_sum(1e6, 3e6, 4.0)
    assert found == pytest.approx(26_000 + joined, rel=1e-3)
    # A tree has none of it.
    tree = CollectiveAlgorithm.TREE
    assert small_hosts_ns(tree, 8e6, **slow) == small_hosts_ns(tree, 8e6)


def test_a_step_in_ll_takes_half_of_one_in_simple_and_proxies_read_every_flag():
    # 8 MB over two hosts of four: 14/8 of it leave each host, 14 steps with 1 MB each.
    ring = (ALL_REDUCE, CollectiveAlgorithm.RING)
    wires = {"nic_bandwidth_bytes_per_s": 1e12, "nic_count": 1, "ranks_per_host": 4}
    wiring = replace(wiring_of_run("dgx_a100", 2, 8), **{**WIRES, **wires})
    movement = build_movement(*ring, np.array([8e6]), wiring)

    def duration_ns(protocol: Protocol, **network: float) -> float:
        [found] = predict_duration_ns(
            movement,
            (CollectiveAlgorithm.RING, protocol),
            wiring=wiring,
            host=replace(SWIFT, ll_ratio=1.0),
            fabric=replace(NETWORK, **network),
        )
        return float(found)

    slow = {"step_ns": 3e6, "step_bytes": 1e3, "ll_bytes_per_s": 1e15}
    assert duration_ns(Protocol.SIMPLE, **slow) == pytest.approx(14 * 3e6, rel=1e-3)
    assert duration_ns(Protocol.LL, **slow) == pytest.approx(14 * 1.5e6, rel=1e-3)
    # 14 MB at 4 x 1 MB/s: 3.5 s, and 28 MB on the wire where that is slower.
    assert duration_ns(Protocol.LL, ll_bytes_per_s=1e6) == pytest.approx(3.5e9, rel=1e-3)
    assert duration_ns(Protocol.LL, ll_bytes_per_s=1e15) == pytest.approx(
        5_000 + 14e6 * 2 / 1e12 * 1e9, rel=1e-3
    )


@pytest.mark.parametrize(("has_amd_cpu", "step_ns"), [(False, 1_000), (True, 2_000)])
def test_proxies_are_busy_at_every_step_of_a_ring_over_hosts(has_amd_cpu, step_ns):
    wiring = replace(wiring_of_run("dgx_a100", 2, 8), **WIRES, has_amd_cpu=has_amd_cpu)
    movement = build_movement(*RING_GATHER[:2], np.array([8.0]), wiring)
    choice = (CollectiveAlgorithm.RING, Protocol.LL)
    about = {"wiring": wiring, "host": replace(SWIFT, ll_ratio=1.0)}
    idle, busy = (
        predict_duration_ns(movement, choice, fabric=replace(NETWORK, proxy_ns=ns), **about)[0]
        for ns in (0.0, 1_000.0)
    )
    # Seven steps, one of them between the hosts.
    assert busy - idle == pytest.approx(6 * step_ns)


def test_two_ranks_on_a_nic_take_twice_as_long_in_an_exchange():
    # Messages of an exchange are a quarter of a ring's, and at each the NIC waits as long.
    alone = between_hosts_ns(*EXCHANGE, size=8e9)
    assert between_hosts_ns(*EXCHANGE, size=8e9, nic_sharing=2) == pytest.approx(
        2 * alone, rel=1e-3
    )


def test_eight_hosts_of_one_gather_by_parallel_trees():
    wires = {**WIRES, "nic_count": 1, "ranks_per_host": 1, "rank_count": 8, "host_count": 8}
    wiring = replace(wiring_of_run("dgx_a100", 8, 8), **wires)
    call = (CollectiveKind.ALL_GATHER, CollectiveAlgorithm.PAT)
    [found] = predict_duration_ns(
        build_movement(*call, np.array([8e6]), wiring),
        (CollectiveAlgorithm.PAT, Protocol.SIMPLE),
        wiring=wiring,
        host=replace(SWIFT, copy_ratio=0.0),
        fabric=NETWORK,
    )
    # Three levels of 1 us where a ring has seven steps; 7/8 of 8 MB over 1 GB/s.
    assert found == pytest.approx(6_000 + 3_000 + 7e6, rel=1e-6)


@pytest.mark.parametrize(("racks", "seconds"), [(2, 0.04), (4, 2 * 0.04 * 1.1)])
def test_racks_send_their_sums_through_a_nic_for_every_two_channels(racks, seconds):
    # 64 NICs carry 1.6 TB/s together, 16 channels an eighth of it: 8 GB once between two racks,
    # twice between four, where a doubling loses a tenth.
    wires = {"nic_count": 64, "nic_bandwidth_bytes_per_s": 1.6e12, "doubling_loss": 0.1}
    wiring = replace(
        wiring_of_run("gb200_nvl72", racks, 64 * racks),
        **{**WIRES, **wires, "ring_bandwidth_bytes_per_s": 1e18},
    )
    call = (ALL_REDUCE, CollectiveAlgorithm.NVLS_TREE)
    [found] = predict_duration_ns(
        build_movement(*call, np.array([8e9]), wiring),
        (CollectiveAlgorithm.NVLS_TREE, Protocol.SIMPLE),
        wiring=wiring,
        host=replace(SWIFT, nvls_ratio=1.0),
        fabric=NETWORK,
    )
    assert found == pytest.approx(seconds * 1e9, rel=1e-3)
