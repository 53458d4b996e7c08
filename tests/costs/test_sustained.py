"""What a chip sustains under long load, and what a lower power limit costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.costs.calibration_files import power_ratio
from perfmodel.costs.models import price_ops
from perfmodel.costs.sustained import chip_factor, hot_shares, load_sustained, sustained_factors
from perfmodel.graph.ops import Attention, Convolution, Gemm, GroupedGemm, MemoryBound
from perfmodel.stacks.profiles import list_stacks, load_stack
from topologies import load_device

STACK = load_stack("pytorch_fused")
H100 = load_device("h100_sxm")
LARGE = Gemm(16384, 16384, 16384, DType.BF16)
THIN = Gemm(16, 8192, 8192, DType.BF16)
FLASH = Attention(1, 4096, 4096, 32, 32, 128, DType.BF16, is_causal=True, kernel="flash2")


def factor(op, device=H100, stack=STACK):
    alone, loaded = (
        price_ops([op], device=device, stack=stack, is_alone=is_alone).duration_ns[0]
        for is_alone in (True, False)
    )
    return loaded / alone


@pytest.mark.parametrize("name", list_stacks())
def test_products_and_attention_are_slowed_whatever_software_runs_them(name):
    stack = load_stack(name)
    whole = load_sustained()["arithmetic"]["hopper"]
    assert factor(LARGE, stack=stack) == pytest.approx(whole, rel=0.02)
    assert factor(FLASH, stack=stack) == pytest.approx(load_sustained()["attention"]["hopper"])


def test_products_in_eight_bits_take_a_value_more():
    known, fp8 = load_sustained(), replace(LARGE, dtype=DType.FP8)
    whole = known["arithmetic"]["hopper"] * known["narrow"]["hopper"]
    hot = hot_shares([fp8], H100, STACK)[0]
    assert factor(fp8) == pytest.approx(1 + (whole - 1) * hot)


def test_the_slowdown_shrinks_with_the_operations_per_byte():
    # 2 x 4096^3 operations at 989.4 TFLOP/s take 138.9 us, 3 x 4096^2 x 2 bytes at 3.35 TB/s 30.0.
    assert hot_shares([Gemm(4096, 4096, 4096, DType.BF16)], H100, STACK)[0] == pytest.approx(
        1 - 30.05 / 138.91, abs=1e-3
    )
    narrow = Gemm(65536, 768, 3072, DType.BF16)
    assert 1.0 < factor(narrow) < factor(LARGE)
    assert factor(THIN) == 1.0


@pytest.mark.parametrize(
    "op",
    [
        Gemm(8192, 8192, 8192, DType.FP32),
        MemoryBound("add", 2 << 30, 1 << 30, DType.BF16),
        replace(FLASH, kernel="unfused"),
        Convolution(1 << 20, 1, 9, DType.BF16, groups=512, is_depthwise=True),
        Convolution(1152, 128, 1 << 20, DType.BF16, groups=6, is_serial=True),
        Convolution(1 << 20, 4, 1 << 20, DType.BF16),
    ],
    ids=lambda op: type(op).__name__,
)
def test_vector_arithmetic_and_memory_are_not_slowed(op):
    assert factor(op) == 1.0


def test_experts_and_convolutions_are_slowed_as_other_products():
    grouped = GroupedGemm(8, 8192, 8192, 8192, DType.BF16)
    wide = Convolution(1 << 20, 4096, 9 * 4096, DType.BF16, read_bytes=1 << 30, write_bytes=1 << 30)
    assert factor(wide) == pytest.approx(factor(LARGE), rel=0.05)
    # What grouped kernels of training take of their bursts comes on top.
    on_top = load_sustained()["grouped"]["hopper"]
    assert factor(grouped) == pytest.approx(on_top * factor(LARGE), rel=0.05)


def test_a_lower_bandwidth_does_not_make_a_product_faster():
    slow = replace(H100, memory_bandwidth_bytes_per_s=H100.memory_bandwidth_bytes_per_s / 2)
    ops = [LARGE, Gemm(65536, 768, 3072, DType.BF16)]
    assert (sustained_factors(ops, slow, STACK) == sustained_factors(ops, H100, STACK)).all()


def test_half_the_power_takes_the_cube_root_of_two_longer():
    halved = replace(H100, power_w=H100.power_w / 2)
    for kind, stated in load_sustained().items():
        assert chip_factor(kind, H100) == stated["hopper"]
        assert chip_factor(kind, halved) == pytest.approx(stated["hopper"] * 2 ** (1 / 3))


def test_a_chip_of_the_generation_differs_by_the_power_it_has_for_its_rate():
    # 700 W for 989.4 TFLOP/s against 500 W for as many.
    limited = load_device("h100_sxm_hbm2e")
    assert power_ratio(limited, "h100_sxm") == pytest.approx((700 / 500) ** (1 / 3))
    assert power_ratio(load_device("h200_sxm"), "h100_sxm") == pytest.approx(1.0)


def test_a_higher_peak_takes_no_more_power_than_the_catalog_says():
    faster = replace(H100, peak_flops={key: 1.5 * rate for key, rate in H100.peak_flops.items()})
    assert chip_factor("arithmetic", faster) == chip_factor("arithmetic", H100)
    # A chip that the catalog does not have needs power for the peak that it states.
    unknown = replace(faster, name="unknown")
    assert power_ratio(unknown, "h100_sxm") == pytest.approx(1.5 ** (1 / 3))


def test_a_generation_without_runs_is_not_slowed():
    assert chip_factor("arithmetic", load_device("p100_pcie_16gb")) == 1.0
