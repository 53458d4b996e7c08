"""Chips that no constants were fitted on: priced by physics, with a wider interval."""

import random
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.dtypes import DType
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

GEMMS = [
    Gemm(m, n, k, DType.BF16)
    for m, n, k in [(64, 64, 64), (4096, 4096, 4096), (8192, 1024, 512), (16, 8192, 8192)]
]


KERNELS = [
    *GEMMS,
    *(
        Attention(2, length, length, 16, 16, 128, DType.BF16, is_causal, direction)
        for length in (512, 4096)
        for is_causal in (True, False)
        for direction in Pass
    ),
    *(
        MemoryBound(word, size, size, DType.FP32, row_length=1024)
        for word in ("layer_norm", "adam", "relu")
        for size in (2**12, 2**20, 2**28)
    ),
]


def price(device):
    return price_ops(KERNELS, device=device, stack=load_stack("megatron"))


@pytest.mark.parametrize("name", ["a100_sxm_80gb", "h100_sxm", "b200_sxm", "gb200", "l40s"])
@pytest.mark.parametrize("keeps_name", [True, False])
def test_a_chip_of_an_unknown_generation_costs_the_same_with_a_wider_interval(name, keeps_name):
    shipped = load_device(name)
    words = {"architecture": "newton", "compute_capability": "11.0"}
    other = replace(shipped, **words, **({} if keeps_name else {"name": "newton"}))
    before, after = price(shipped), price(other)
    assert after.duration_ns == pytest.approx(before.duration_ns, rel=0.1)
    assert np.all(after.relative_sigma > before.relative_sigma)


@pytest.mark.parametrize("factor", [1.03, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("name", ["a100_sxm_80gb", "h100_sxm", "gb200"])
def test_a_chip_that_is_better_in_everything_is_never_slower(name, factor):
    shipped = load_device(name)
    better = replace(
        shipped,
        name="newton",
        architecture="newton",
        compute_capability="11.0",
        memory_bandwidth_bytes_per_s=shipped.memory_bandwidth_bytes_per_s * factor,
        peak_flops={dtype: rate * factor for dtype, rate in shipped.peak_flops.items()},
        vector_flops=shipped.vector_flops * factor,
        power_w=shipped.power_w * factor,
    )
    assert np.all(price(better).duration_ns <= price(shipped).duration_ns * 1.0001)


@pytest.mark.parametrize("seed", range(10))
def test_any_chip_that_equals_or_exceeds_a_shipped_one_is_never_slower(seed):
    draw = random.Random(seed)
    shipped = load_device(
        draw.choice(["a100_pcie_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s"])
    )

    def factor():
        return draw.choice([1, 1.03, 1.5, 4])

    words = {"architecture": "newton", "compute_capability": "11.0"}
    tensor = factor()
    better = replace(
        shipped,
        name="better",
        memory_bandwidth_bytes_per_s=shipped.memory_bandwidth_bytes_per_s * factor(),
        l2_bytes=int(shipped.l2_bytes * factor()),
        peak_flops={dtype: rate * tensor for dtype, rate in shipped.peak_flops.items()},
        vector_flops=shipped.vector_flops * factor(),
        power_w=shipped.power_w * factor(),
        **draw.choice([{}, words, {**words, "kernel_class": None}]),
    )
    assert np.all(price(better).duration_ns <= price(shipped).duration_ns * 1.0001)


def test_a_format_that_only_the_better_chip_has_is_priced_on_it():
    shipped = load_device("h100_sxm")
    better = replace(shipped, name="better", peak_flops={**shipped.peak_flops, DType.NVFP4: 4e15})
    gemm = Gemm(4096, 4096, 4096, DType.NVFP4)
    assert price_ops([gemm], device=better, stack=load_stack("megatron")).duration_ns[0] > 0
