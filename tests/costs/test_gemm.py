from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TopologyError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.calibration_files import load_entries
from perfmodel.costs.corrections import LARGEST_STEP
from perfmodel.costs.estimates import Bound
from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.gemm_features import gemm_shapes, machine_rates
from perfmodel.costs.gemm_physics import (
    TINY_WORK,
    GemmConstants,
    MachineRates,
    predict_cast_ns,
    predict_gemm_times,
    weight_miss_ratio,
)
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.capabilities import Residency
from perfmodel.stacks.profiles import load_stack
from tests.costs.devices import load_device

STACK = load_stack("pytorch_fused")
BENCHMARK = load_stack("kernel_benchmark")
SLOWED = load_stack("nanotron")
SIMPLE = GemmConstants(
    floor_ns=1000.0, timing_ns=0.0, compute_ratio=1.0, loss_k=0.0, loss_intensity=0.0,
    tail_ratio=1.0, load_bytes_per_clock=1e9, cache_ratio=1e9, memory_ratio=1.0,
    sustained_loss=0.0, sustained_after_ns=1.0, split_ns=1e9, resident_ratio=1.0,
    resident_sharpness=20.0, activation_resident_ratio=1e-9,
)  # fmt: skip
# One multiprocessor that does 2 x 128 x 128 operations a nanosecond, memory of 1 byte a ns.
MACHINE = MachineRates(
    sm_count=1, clock_hz=1e9, peak_flops=2 * 128 * 128 * 1e9, memory_bytes_per_s=1e9, l2_bytes=1e6
)
LARGE_AND_THIN = (Gemm(8192, 8192, 8192, DType.BF16), Gemm(8, 16384, 16384, DType.BF16))
sizes = st.integers(1, 20_000)


def price(*ops: Gemm, device="h100_sxm", stack=STACK):
    return GemmModel().price(list(ops), load_device(device), stack)


def cold(op: Gemm, machine=MACHINE):
    return predict_gemm_times(gemm_shapes([op]), machine, SIMPLE, Residency.COLD)


def test_tiles_are_paid_whole():
    # Memory is out of the way: 1 byte a ns would dominate, so make it fast.
    machine = MachineRates(1, 1e9, MACHINE.peak_flops, 1e18, 1e6)
    full = cold(Gemm(128, 128, 64, DType.BF16), machine)
    # 64 steps of k at one nanosecond each for a tile of 128 x 128, on top of the floor.
    assert full.duration_ns[0] == pytest.approx(1064.0)
    part = cold(Gemm(65, 65, 64, DType.BF16), machine)
    # The best cover of 65 x 65 is 2 x 5 tiles of 64 x 16 (each 1/16): 10 / 16 x 64 = 40 ns.
    assert part.duration_ns[0] == pytest.approx(1040.0)


def test_operands_that_come_from_memory_take_their_bytes_over_its_bandwidth():
    times = cold(Gemm(16, 1024, 1024, DType.BF16))
    # Weights 2 MiB, activations and output 32 KiB each, one byte a nanosecond.
    assert times.memory_ns[0] == pytest.approx(2 * (1024 * 1024 + 2 * 16 * 1024), rel=1e-6)


def test_rotating_weights_are_hot_when_their_copies_fit_in_the_cache():
    machine = MachineRates(1, 1e9, 1e12, 1e9, 100e6)
    shapes = gemm_shapes([Gemm(1, 1000, size, DType.BF16) for size in (12_500, 14_700)])
    # 25 MB x 4 copies fill 100 MB exactly and stay; 29.4 MB need 4 copies too: 118 MB do not.
    hot, cold = weight_miss_ratio(shapes, machine, SIMPLE, Residency.ROTATING)
    assert hot < 0.6
    assert cold > 0.9


@given(m=sizes, n=sizes, k=sizes, grown=st.sampled_from("mnk"), by=st.integers(0, 5000))
def test_the_physics_never_does_more_work_in_less_time(m, n, k, grown, by):
    shape = {"m": m, "n": n, "k": k}
    larger = {**shape, grown: shape[grown] + by}
    assume((m * n * k < TINY_WORK) == (np.prod(list(larger.values())) < TINY_WORK))
    device = load_device("a100_sxm_80gb")
    calibration = GemmModel().calibration(device, DType.BF16)
    times = predict_gemm_times(
        gemm_shapes([Gemm(**shape, dtype=DType.BF16), Gemm(**larger, dtype=DType.BF16)]),
        machine_rates(device, DType.BF16),
        calibration.constants,
        Residency.COLD,
    )
    assert times.duration_ns[0] <= times.duration_ns[1] * (1 + 1e-12)


growths = st.tuples(
    st.integers(1, 600), sizes, sizes, sizes, st.sampled_from(("batch", "m", "n", "k")),
    st.integers(1, 20_000),
)  # fmt: skip


def smaller_and_larger(growth, dtype: DType) -> tuple[Gemm, Gemm]:
    batch, m, n, k, grown, by = growth
    shape = {"batch": batch, "m": m, "n": n, "k": k}
    larger = {**shape, grown: shape[grown] + by}
    # Below 2**21 multiply-adds libraries run another kernel: a step that leads down, and is real.
    is_tiny = [float(np.prod(list(one.values()))) < TINY_WORK for one in (shape, larger)]
    assume(is_tiny[0] == is_tiny[1])
    return Gemm(**shape, dtype=dtype), Gemm(**larger, dtype=dtype)


@pytest.mark.parametrize("device", ["v100_sxm2_16gb", "a100_pcie_80gb", "h100_sxm", "b200_sxm"])
@pytest.mark.parametrize("stack", [STACK, SLOWED], ids=lambda stack: stack.name)
@given(growth=growths)
def test_more_fp32_work_never_takes_less_time(device, stack, growth):
    ops = smaller_and_larger(growth, DType.FP32)
    small, large = price(*ops, device=device, stack=stack).duration_ns
    # Single steps of the last digit: networks are summed up in another order.
    assert large >= small * (1 - 1e-9)


@pytest.mark.parametrize(
    "device", ["a100_sxm_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000_server"]
)
@pytest.mark.parametrize("stack", [STACK, SLOWED], ids=lambda stack: stack.name)
@given(growth=growths)
def test_more_half_precision_work_is_faster_by_a_step_of_the_library_at_most(device, stack, growth):
    ops = smaller_and_larger(growth, DType.BF16)
    small, large = price(*ops, device=device, stack=stack).duration_ns
    # Measured times fall at one step of m in ten, by up to 40 %; the model follows 3 % either way.
    assert large >= small * np.exp(-2 * LARGEST_STEP) * (1 - 1e-9)


@given(growth=growths)
def test_without_the_steps_of_libraries_more_work_never_takes_less_time(growth):
    entries = [replace(entry, correction=None) for entry in load_entries("gemm")]
    ops = smaller_and_larger(growth, DType.BF16)
    small, large = GemmModel(entries).price(list(ops), load_device("h100_sxm"), STACK).duration_ns
    assert large >= small * (1 - 1e-9)


def test_a_product_too_small_to_split_k_takes_longer_than_a_slightly_larger_one_on_graphics_chips():
    # 7 x 64 x 4096 is below 2**21 = 8 x 64 x 4096; measured 18.5 and 4.0 us on L40S.
    ops = (Gemm(7, 64, 4096, DType.BF16), Gemm(8, 64, 4096, DType.BF16))
    small, large = price(*ops, device="l40s").duration_ns
    assert small > 2 * large


def test_a_large_product_is_bound_by_arithmetic_and_a_thin_one_by_memory():
    priced = price(*LARGE_AND_THIN)
    assert priced.bound.tolist() == [Bound.COMPUTE, Bound.MEMORY]
    # The datasheet: 2 x 8192^3 at 989.4 TFLOP/s is 1111 us, 537 MB at 3.35 TB/s is 160 us.
    assert priced.duration_ns[0] > 1_111_000
    assert priced.duration_ns[1] > 160_000


def test_a_device_nobody_measured_is_tagged_and_less_sure():
    op = Gemm(4096, 4096, 4096, DType.BF16)
    own, other = price(op), price(op, device="b300_sxm")
    assert own.provenance[0] == Provenance.INTERPOLATED
    assert other.provenance[0] == Provenance.EXTRAPOLATED
    assert other.relative_sigma[0] > own.relative_sigma[0]
    assert other.duration_ns[0] < own.duration_ns[0]


def test_every_halving_of_a_side_below_the_tables_makes_us_less_sure():
    # The smallest fp32 product that was measured on a V100 is 128 x 64 x 64.
    ops = [Gemm(m, 1024, k, DType.FP32) for m, k in ((128, 64), (64, 64), (16, 32))]
    fitted, one, four = price(*ops, device="v100_sxm2_32gb").relative_sigma
    assert one > fitted
    # Four halvings of 0.12 each, in addition to the spread of the fit.
    assert 0.48 < four < 0.55


def test_lower_precision_is_faster_and_the_order_of_ops_is_kept():
    kinds = (DType.FP32, DType.FP8, DType.BF16)
    fp32, fp8, bf16 = price(*(Gemm(4096, 4096, 4096, kind) for kind in kinds)).duration_ns
    assert fp8 < bf16 < fp32


def test_pricing_many_equals_pricing_one_by_one():
    where = {"device": "a100_sxm_80gb", "stack": BENCHMARK}
    ops = [Gemm(64 * i, 128, 256, DType.BF16) for i in range(1, 40)]
    together, alone = price(*ops, **where).duration_ns, [price(op, **where) for op in ops]
    alone = [one.duration_ns[0] for one in alone]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_a_format_the_chip_cannot_multiply_is_refused_with_a_sentence():
    fp8 = Gemm(512, 512, 512, DType.FP8)
    with pytest.raises(TopologyError, match="a100_sxm_80gb: cannot multiply fp8; it states"):
        price(fp8, device="a100_sxm_80gb")
    # Scales of 32 values came with Blackwell.
    with pytest.raises(TopologyError, match="h100_sxm: cannot multiply mxfp8"):
        price(replace(fp8, dtype=DType.MXFP8))


def test_a_product_that_is_added_to_a_result_moves_that_result():
    plain = Gemm(8192, 8192, 8192, DType.BF16)
    alone, added = price(plain, replace(plain, added_bytes=2 * 8192 * 8192 * 4)).duration_ns
    # 0.4 of 537 MB at 3.35 TB/s: 64.1 us.
    assert added - alone == pytest.approx(64_100, rel=1e-3)


def test_a_rate_that_a_chip_lacks_is_taken_from_a_wider_format_and_tagged_assumed():
    assert not load_device("v100_sxm2_16gb").supports(DType.BF16)
    priced = price(Gemm(512, 512, 512, DType.BF16), device="v100_sxm2_16gb")
    assert priced.provenance[0] == Provenance.ASSUMED


@pytest.mark.parametrize("name", ["b200_sxm", "gb200", "b300_sxm", "gb300"])
def test_narrower_formats_are_faster_on_blackwell(name):
    kinds = (DType.BF16, DType.MXFP8, DType.FP8, DType.NVFP4)
    ops = [Gemm(16384, 16384, 16384, kind) for kind in kinds]
    bf16, mxfp8, fp8, nvfp4 = price(*ops, device=name).duration_ns
    assert nvfp4 < fp8 < bf16
    assert mxfp8 == pytest.approx(fp8)


def test_a_faster_peak_makes_a_borrowed_product_faster_in_proportion():
    names, op = ("b200_sxm", "gb200"), Gemm(16384, 16384, 16384, DType.BF16)
    slow, fast = (price(op, device=name).duration_ns[0] for name in names)
    low, high = (load_device(name).peak_flops[DType.BF16] for name in names)
    assert slow / fast == pytest.approx(high / low, rel=0.1)


def test_a_table_of_quantised_layers_times_the_cast_and_training_does_not():
    tall = Gemm(32768, 512, 4096, DType.FP8)
    timed, trained = (price(tall, stack=stack).duration_ns[0] for stack in (BENCHMARK, STACK))
    # 134 M values, 3 bytes each: 0.4 GB take at least 120 us at 3.35 TB/s.
    assert timed - trained > 120_000


def test_a_cast_costs_its_floor_and_its_bytes():
    machine = MachineRates(1, 1e9, 1e12, 1e9, 1.0)
    constants = replace(SIMPLE, cast_floor_ns=4_000.0, cast_ratio=0.5, cast_cached_ratio=1.0)
    shapes = gemm_shapes([Gemm(10, 7, 100, DType.FP8), Gemm(10, 7, 100, DType.NVFP4)])
    # 1000 values of 2 bytes in and 1 out: 3 kB at 0.5 GB/s take 6 us.
    assert predict_cast_ns(shapes, machine, constants)[0] == pytest.approx(10_000)
    assert predict_cast_ns(shapes, machine, SIMPLE).tolist() == [0.0, 0.0]


def test_a_quantised_product_gives_out_half_precision():
    shapes = gemm_shapes([Gemm(10, 20, 30, DType.NVFP4)])
    # Operands of half a byte, sums of two bytes.
    assert shapes.activation_bytes[0] == 150
    assert shapes.weight_bytes[0] == 300
    assert shapes.output_bytes[0] == 400


def test_among_equal_relatives_the_nearest_memory_lends():
    entries = [entry for entry in load_entries("gemm") if entry.device != "b200_sxm"]
    model = GemmModel(entries)
    lent = model.calibration(load_device("b200_sxm"), DType.BF16)
    h200 = next(e for e in entries if e.device == "h200_sxm" and e.variant == "tensor")
    assert lent.constants.compute_ratio == h200.constants["compute_ratio"]
    # A newer generation than the lender's: the lower of its two floors.
    assert lent.constants.floor_ns < h200.constants["floor_ns"]
    assert lent.ordered is None


def test_a_board_with_power_to_spare_keeps_the_clock_that_its_lender_loses():
    ops = [Gemm(8192, 8192, 8192, DType.BF16)]
    model, stack = GemmModel(), load_stack("pytorch_fused")
    rates = [
        ops[0].flops / model.price(ops, device, stack).duration_ns[0] * 1e9
        / device.peak_flops[DType.BF16]
        for device in map(load_device, ("l40s", "rtx_3090"))
    ]  # fmt: skip
    # 350 W are spent on 362 TFLOP/s of one and on 71 of the other, which they never exceed.
    assert rates[0] < 0.85 < rates[1] < 1.0


def test_a_gemm_with_odd_rows_takes_the_time_of_loading_elements_one_at_a_time():
    # 2 x 8192^3 operations, 40 clocks for 2 x 128 x 128 of them: 1.34e9 clocks over 132 SMs.
    device, even = load_device("h100_sxm"), Gemm(8192, 8192, 8192, DType.BF16)
    odd = replace(even, loads_singly=True)
    ns = price_ops([even, odd], device=device, stack=STACK, is_alone=True).duration_ns
    clocks = 2 * 8192**3 / (2 * 128 * 128) * 40
    assert ns[1] == pytest.approx(clocks * 1e9 / (device.sm_count * device.clock_hz))
    assert ns[1] > 2 * ns[0]
    # Where cards add up more slowly, loads are not what they wait for.
    card = load_device("rtx_3090")
    ns = price_ops([even, odd], device=card, stack=STACK, is_alone=True).duration_ns
    assert ns[1] == ns[0]
