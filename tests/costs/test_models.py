"""Convolutions are priced by their implicit product."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Convolution, Pass
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

H100 = load_device("h100_sxm")
FUSED = load_stack("pytorch_fused")
# 32 images of 56 x 56 positions, 64 channels out of windows of 9 x 64.
IMAGES = Convolution(
    m=32 * 56 * 56, n=64, k=576, dtype=DType.BF16, read_bytes=2 * 32 * 56 * 56 * 64,
    write_bytes=2 * 32 * 56 * 56 * 64,
)  # fmt: skip


def price_ns(*ops):
    return price_ops(ops, device=H100, stack=FUSED).duration_ns.tolist()


def test_the_unrolled_input_makes_no_traffic():
    [implicit, explicit] = price_ns(IMAGES, IMAGES.product)
    # Unrolled, nine times the input is read: 116 MB, 35 us at 3.35 TB/s.
    assert implicit < 30_000 < explicit


def test_more_images_never_take_less_time():
    twice = replace(
        IMAGES, m=2 * IMAGES.m, read_bytes=2 * IMAGES.read_bytes, write_bytes=2 * IMAGES.write_bytes
    )
    [once_ns, twice_ns] = price_ns(IMAGES, twice)
    assert once_ns <= twice_ns


def test_a_thin_convolution_runs_at_the_vector_rate_or_the_memory_rate():
    thin = Convolution(m=10**6, n=1, k=9, dtype=DType.BF16, groups=512)
    [thin_ns] = price_ns(thin)
    assert thin_ns == pytest.approx(2_000 + thin.flops / H100.vector_flops * 1e9, rel=0.01)


def test_a_depthwise_convolution_takes_as_long_as_its_instructions_need_to_be_issued():
    forward = Convolution(10**6, 1, 9, DType.BF16, groups=512, is_depthwise=True)
    of_input = replace(forward, direction=Pass.BACKWARD)
    of_weight = replace(of_input, m=9, k=10**6)
    forward_ns, of_input_ns, of_weight_ns = price_ns(forward, of_input, of_weight)
    # Eight instructions per multiply-add and 190 per position, 128 per clock and multiprocessor.
    each_ns = 512 * 1e6 / (128 * H100.sm_count * H100.clock_hz) * 1e9
    issued_ns = 2_000 + (9 * 8 + 190) * each_ns
    assert forward_ns == of_input_ns == pytest.approx(issued_ns, rel=0.01)
    assert of_weight_ns == pytest.approx(issued_ns + 9 * 8 * each_ns, rel=0.01)


def test_one_thread_per_weight_takes_the_longer_of_its_chain_and_its_share_of_the_schedulers():
    few = Convolution(144, 16, 10**6, DType.BF16, 4, direction=Pass.BACKWARD, is_serial=True)
    few_ns, many_ns, tensor_ns = price_ns(
        few, replace(few, groups=1024), replace(few, groups=1024, is_serial=False)
    )
    # 16 instructions of 4 clocks and one load of 33; two operands of 8 instructions each.
    assert few_ns == pytest.approx(2_000 + 1e6 * 97 / H100.clock_hz * 1e9, rel=0.01)
    issued = 16 * 1024 * 144 * 16 * 1e6 + 190 * 1024 * 1e6
    assert many_ns == pytest.approx(issued / (128 * H100.sm_count * H100.clock_hz) * 1e9, rel=0.01)
    assert many_ns > 10 * tensor_ns
