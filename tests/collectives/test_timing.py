from dataclasses import fields, replace

import numpy as np
import pytest

from collectives.calibration import load_default_calibration
from collectives.collective import CollectiveKind
from collectives.constants import HostConstants
from collectives.measurements import wiring_of_run
from collectives.movement import build_movement
from collectives.pricing import price_sizes
from collectives.software import CollectiveAlgorithm, Protocol
from collectives.timing import WireSpeeds, predict_duration_ns

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


def test_a_network_of_endless_bandwidth_still_costs_latency():
    calibration = load_default_calibration()
    wiring = wiring_of_run("dgx_h100", 2, 16)
    endless = replace(wiring, nic_bandwidth_bytes_per_s=1e18)
    alone = wiring_of_run("dgx_h100", 1, 8)
    sizes = np.array([8.0])
    far = price_sizes(CollectiveKind.ALL_REDUCE, sizes, wiring=endless, calibration=calibration)
    near = price_sizes(CollectiveKind.ALL_REDUCE, sizes, wiring=alone, calibration=calibration)
    assert far[0].duration_ns > near[0].duration_ns
