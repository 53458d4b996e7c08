from dataclasses import fields, replace

import numpy as np
import pytest

from collectives.calibration import load_default_calibration
from collectives.collective import CollectiveAlgorithm, CollectiveKind, Protocol
from collectives.constants import FabricConstants, HostConstants
from collectives.measurements import wiring_of_run
from collectives.movement import build_movement
from collectives.pricing import price_sizes
from collectives.timing import WireSpeeds, _norm, predict_duration_ns

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
    wiring = wiring_of_run("dgx_a100", 1, 4)
    sizes = np.array([4e6])
    duration = predict_duration_ns(
        build_movement(CollectiveKind.ALL_GATHER, CollectiveAlgorithm.RING, sizes, wiring),
        algorithm=CollectiveAlgorithm.RING,
        protocol=Protocol.SIMPLE,
        wires=WireSpeeds(
            ring_bytes_per_s=100e9, pair_bytes_per_s=100e9, nic_bytes_per_s=1.0, ranks_per_host=4
        ),
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
        "ring_hop_ratio": 1.0,
        "spread_bytes": 1.0,
        "fill_bytes": 1.0,
        "ll128_fill_bytes": 1e6,
        "ll128_fill_ns": 10_000.0,
        "nic_crowding": 0.25,
        "pair_burst_bytes": 1e5,
    }
)
WIRES = WireSpeeds(
    ring_bytes_per_s=1e18, pair_bytes_per_s=1e18, nic_bytes_per_s=1e9, ranks_per_host=4
)
SWIFT = replace(PLAIN, pair_ratio=1.0, ll128_ratio=1.0, ll_overlap=1.0)


def between_hosts_ns(kind, algorithm, protocol, *, size, hosts=2, wires=WIRES) -> float:
    movement = build_movement(
        kind, algorithm, np.array([size]), wiring_of_run("dgx_a100", hosts, 4 * hosts)
    )
    duration = predict_duration_ns(
        movement,
        algorithm=algorithm,
        protocol=protocol,
        wires=wires,
        host=SWIFT,
        fabric=NETWORK,
    )
    return float(duration[0])


RING_GATHER = (CollectiveKind.ALL_GATHER, CollectiveAlgorithm.RING, Protocol.SIMPLE)


def test_a_call_pays_its_latency_once_and_every_hop_its_own():
    for hosts in (2, 8):
        wires = replace(WIRES, call_latency_ns=400_000.0)
        plain = between_hosts_ns(*RING_GATHER, size=8.0, hosts=hosts)
        called = between_hosts_ns(*RING_GATHER, size=8.0, hosts=hosts, wires=wires)
        assert called - plain == pytest.approx(400_000)
        wires = replace(WIRES, net_latency_ns=40_000.0)
        hopped = between_hosts_ns(*RING_GATHER, size=8.0, hosts=hosts, wires=wires)
        # A gather over h hosts crosses h - 1 borders one after the other.
        assert hopped - plain == pytest.approx((hosts - 1) * 40_000)


def test_an_exchange_pays_the_latency_of_a_call_once():
    exchange = (CollectiveKind.ALL_TO_ALL, CollectiveAlgorithm.PAIRWISE, Protocol.SIMPLE)
    wires = replace(WIRES, call_latency_ns=400_000.0)
    plain = between_hosts_ns(*exchange, size=8.0, hosts=8)
    assert between_hosts_ns(*exchange, size=8.0, hosts=8, wires=wires) - plain == pytest.approx(
        400_000
    )


def test_five_ranks_on_one_nic_take_twice_as_long_as_its_bandwidth_says():
    # 8 ranks gather 8 GB over 1 GB/s: 7 s; four more on the NIC cost a quarter each.
    alone = between_hosts_ns(*RING_GATHER, size=8e9)
    shared = between_hosts_ns(*RING_GATHER, size=8e9, wires=replace(WIRES, nic_sharing=5))
    assert alone == pytest.approx(7e9, rel=1e-3)
    assert shared == pytest.approx(14e9, rel=1e-3)


def test_a_tree_in_ll128_waits_for_its_first_chunk_at_every_level():
    tree = (CollectiveKind.ALL_REDUCE, CollectiveAlgorithm.TREE, Protocol.LL128)
    endless = replace(WIRES, nic_bytes_per_s=1e18)
    small = between_hosts_ns(*tree, size=8.0, hosts=4, wires=endless)
    large = between_hosts_ns(*tree, size=1e6, hosts=4, wires=endless)
    # Two levels up and two down; at 1 MB half of 10 us each.
    assert large - small == pytest.approx(4 * 5_000, rel=1e-3)


def test_an_oversubscribed_spine_slows_large_slices_only():
    exchange = (CollectiveKind.ALL_TO_ALL, CollectiveAlgorithm.PAIRWISE, Protocol.SIMPLE)
    narrow = replace(WIRES, oversubscription=4.0)

    def slower(size):
        return between_hosts_ns(*exchange, size=size, wires=narrow) / between_hosts_ns(
            *exchange, size=size
        )

    assert slower(8 * 1e4) == pytest.approx(1.0, abs=1e-2)
    assert slower(8 * 1e7) == pytest.approx(4.0, rel=1e-2)


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
    assert _norm(3.6e12, 1e9, 64.0) == pytest.approx(3.6e12)
    assert _norm(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert _norm(0.0, 0.0, 4.0) == pytest.approx(0.0, abs=1e-8)
