"""What a chip sustains under long load, and what a lower power limit costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.costs.sustained import arithmetic_slowdown, load_sustained, power_ratio
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

STACK = load_stack("nanotron")
H100 = load_device("h100_sxm")


def test_half_the_power_takes_the_cube_root_of_two_longer():
    halved = replace(H100, power_w=H100.power_w / 2)
    slowdown = arithmetic_slowdown(H100, STACK, DType.BF16)
    assert slowdown == load_sustained()["arithmetic"]["hopper"]
    assert arithmetic_slowdown(halved, STACK, DType.BF16) == pytest.approx(slowdown * 2 ** (1 / 3))


def test_a_chip_of_the_generation_differs_by_the_power_it_has_for_its_rate():
    # 700 W for 989.4 TFLOP/s against 500 W for as many.
    limited = load_device("h100_sxm_hbm2e")
    assert power_ratio(limited, "h100_sxm") == pytest.approx((700 / 500) ** (1 / 3))
    assert power_ratio(load_device("h200_sxm"), "h100_sxm") == pytest.approx(1.0)


def test_a_higher_peak_takes_no_more_power_than_the_catalog_says():
    faster = replace(H100, peak_flops={key: 1.5 * rate for key, rate in H100.peak_flops.items()})
    assert arithmetic_slowdown(faster, STACK, DType.BF16) == arithmetic_slowdown(
        H100, STACK, DType.BF16
    )
    # A chip that the catalog does not have needs power for the peak that it states.
    unknown = replace(faster, name="unknown")
    assert power_ratio(unknown, "h100_sxm") == pytest.approx(1.5 ** (1 / 3))


def test_plain_arithmetic_and_short_loads_are_not_slowed():
    assert arithmetic_slowdown(H100, STACK, DType.FP32) == 1.0
    assert arithmetic_slowdown(H100, load_stack("kernel_benchmark"), DType.BF16) == 1.0
