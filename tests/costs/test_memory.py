from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.costs.memory import (
    RECORDED_WORDS,
    MemoryModel,
    TrafficCurve,
    interpolate_row_factor,
    measured_word,
    resembling,
)
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import kernel_words
from tests.costs.devices import load_device

STACK = load_stack("pytorch_eager")


def price(operator: str, size_bytes: int, device: str = "a100_sxm_80gb", row_length: int = 0):
    op = MemoryBound(operator, size_bytes, size_bytes, DType.BF16, row_length=row_length)
    return MemoryModel().price([op], load_device(device), STACK)


def test_a_stack_may_name_every_kernel_that_a_curve_is_known_for():
    # Names of the framework for `concat` and for kernels in place are found in traces only, and
    # kernels of compiled code in emulated scripts.
    found = {"add_", "zero_", "cat", "conv"} | {*RECORDED_WORDS, "fused_foreach"}
    assert set(resembling()) - set(kernel_words()) == found


def test_slopes_add_up_from_knot_to_knot():
    curve = TrafficCurve(floor_ns=0.0, timing_ns=0.0, knots_bytes=(0.0, 1000.0), slopes=(0.5, 0.5))
    # At 1 byte a nanosecond: 1000 bytes at half a nanosecond, then 1000 at one.
    assert curve.busy_ns(np.array([2000.0]), 1e9).tolist() == [1500.0]


def test_row_factors_are_interpolated_in_the_logarithm_and_held_outside():
    curve = [[1024.0, 1.0], [4096.0, 2.0]]
    lengths = np.array([512.0, 2048.0, 9999.0])
    assert interpolate_row_factor(lengths, curve).tolist() == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("operator", ["add", "gelu", "layer_norm", "softmax", "adam", "unheard_of"])
@given(small=st.integers(0, 2**33), more=st.integers(0, 2**33))
def test_more_bytes_never_take_less_time(operator, small, more):
    before = price(operator, small, row_length=4096).duration_ns[0]
    assert price(operator, small + more, row_length=4096).duration_ns[0] >= before


def test_no_kernel_is_free_and_an_unknown_one_says_that_it_is_assumed():
    priced = price("unheard_of", 64 * 2**20, "h100_sxm")
    assert priced.provenance[0] == Provenance.ASSUMED
    # 128 MiB at 3.35 TB/s are 40 us.
    assert priced.duration_ns[0] > 40_000


@pytest.mark.parametrize("device", ["v100_sxm2_16gb", "a100_sxm_80gb", "h100_sxm", "b200_sxm"])
def test_a_large_copy_reaches_most_of_the_bandwidth_and_never_more(device):
    size_bytes = 2**30
    bandwidth = load_device(device).memory_bandwidth_bytes_per_s
    best_ns = 2 * size_bytes / bandwidth * 1e9
    assert 1.0 < price("copy", size_bytes, device).duration_ns[0] / best_ns < 1.3


def test_what_the_timing_of_a_benchmark_adds_is_left_out_of_training():
    op = MemoryBound("add", 1000, 1000, DType.FP32)
    device = load_device("a100_pcie_80gb")
    training = MemoryModel().price([op], device, STACK).duration_ns[0]
    benchmark = MemoryModel().price([op], device, load_stack("kernel_benchmark")).duration_ns[0]
    assert training < 2_000 < 10_000 < benchmark


def test_words_with_direction_or_implementation_find_their_operator():
    assert measured_word("gelu_backward") == "gelu"
    assert measured_word("adam_fused") == "add"
    assert measured_word("aten::relu") == "relu"
    assert measured_word("unheard_of") is None


def test_a_kernel_bound_by_its_instructions_takes_as_long_on_a_faster_memory():
    op = MemoryBound("concat", 4 * 10**8, 4 * 10**8, DType.FP16)
    slow = replace(STACK, kernel_operations={"concat": 100.0})
    h100, h200 = load_device("h100_sxm"), load_device("h200_sxm")
    # 8e8 bytes x 100 operations at 66.9 TFLOP/s: 1,196 us, the same vector units on both.
    for device in (h100, h200):
        time_ns = MemoryModel().price([op], device, slow).duration_ns[0]
        assert time_ns == pytest.approx(1.196e6, rel=0.01)
    plain_ns = [MemoryModel().price([op], one, STACK).duration_ns[0] for one in (h100, h200)]
    assert plain_ns[1] < 0.8 * plain_ns[0]


def test_a_compiled_kernel_is_bound_by_its_bytes_or_by_its_arithmetic():
    rows, words = 16_384, 50_304
    bytes_only = MemoryBound("fused_reduction", 2 * rows * words, 0, DType.BF16, row_length=words)
    # An exponential and a sigmoid of every element.
    softmax = replace(bytes_only, flops=2 * 51 * rows * words)
    estimates = MemoryModel().price([bytes_only, softmax], load_device("h100_sxm"), STACK)
    fast_ns, slow_ns = estimates.duration_ns
    assert 0.55e6 < fast_ns < 0.75e6
    assert 1.2e6 < slow_ns < 1.5e6
    small = MemoryBound("fused_pointwise", 64, 64, DType.BF16)
    floor_ns = MemoryModel().price([small], load_device("h100_sxm"), STACK).duration_ns[0]
    # Recorded kernels have no benchmark around them, so their floor is whole.
    assert 1_500 < floor_ns < 2_000
