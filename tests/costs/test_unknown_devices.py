"""Chips that no constants were fitted on: priced by physics, with a wider interval."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.dtypes import DType
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

GEMMS = [
    Gemm(m, n, k, DType.BF16)
    for m, n, k in [(64, 64, 64), (4096, 4096, 4096), (8192, 1024, 512), (16, 8192, 8192)]
]


def price(device):
    return price_ops(GEMMS, device=device, stack=load_stack("megatron"))


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
