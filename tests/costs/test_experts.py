"""Layers of experts: tiles counted on paper, and fits that find what made a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.fitting.kernels.fits import cross_validate
from experiments.fitting.kernels.gemm import FEWEST_SHAPES, fit_expert_entry
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.calibration_files import entries_for
from perfmodel.costs.expert_physics import (
    ExpertConstants,
    predict_grouped_times,
)
from perfmodel.costs.experts import price_grouped_gemms
from perfmodel.costs.gemm_features import machine_rates
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.extensions.measurements.expert_layers import (
    ExpertLayerModel,
    layer_shapes,
    predict_layer_times,
)
from perfmodel.extensions.measurements.kernel_tables import load_table
from perfmodel.extensions.measurements.measured_kernels import KernelTable
from perfmodel.graph.ops import GroupedGemm
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

MACHINE = MachineRates(100, 1e9, 1e14, 1e12, 1e7)
CONSTANTS = ExpertConstants(
    floor_ns=5_000, expert_ns=100, compute_ratio=0.5, memory_ratio=0.5, tile_rows=64,
    wasted_tiles=0.5, least_waves=0.01, start_k=0, row_traffic=1, token_traffic=0,
)  # fmt: skip
HEADER = "collector,device,kernel_source,dtype,tokens,hidden,ffn,top_k,experts,tp,ep,"
HEADER += "distribution,latency_ms\n"


def row(kernel="cutlass", *, tokens=1024, hidden=1024, ffn=512, experts=8, latency_ms=0.1):
    return (
        f"c,NVIDIA H100 80GB HBM3,{kernel},bf16,{tokens},{hidden},{ffn},2,{experts},1,1,balanced,"
        f"{latency_ms}\n"
    )


def table_of(tmp_path, *rows):
    file = tmp_path / "layers.csv"
    file.write_text(HEADER + "".join(rows))
    return load_table("experts", file)


def test_a_grouped_product_takes_its_tiles_its_floor_and_no_more():
    shapes = np.array([8.0, 480.0, 1280.0, 1000.0])[:, np.newaxis]
    times = predict_grouped_times(shapes, MACHINE, CONSTANTS, width_bytes=2)

    # (8 x 480 / 64 + 8 / 2) x 1280 / 128 = 640 tiles of 2 x 64 x 128 x 1000 flops at 5e13 a second.
    tiles_ns = 640 * 2 * 64 * 128 * 1000 / 5e13 * 1e9
    assert times.arithmetic_ns[0] == pytest.approx(tiles_ns)
    assert times.memory_ns[0] == pytest.approx(8 * 1280 * 1000 * 2 / 0.5e12 * 1e9)
    # A fifth of the floor of a layer, and of what each of the 8 experts adds to it.
    assert times.duration_ns[0] == pytest.approx(5_800 / 5 + tiles_ns, rel=0.01)


def test_a_product_smaller_than_a_wave_takes_most_of_one():
    shapes = np.array([1.0, 64.0, 128.0, 4096.0])[:, np.newaxis]

    def arithmetic_ns(least_waves):
        constants = replace(CONSTANTS, least_waves=least_waves)
        times = predict_grouped_times(shapes, MACHINE, constants, width_bytes=2)
        return times.arithmetic_ns[0]

    # 1.5 tiles on 100 multiprocessors.
    assert arithmetic_ns(0.9) / arithmetic_ns(0.0001) == pytest.approx(0.9 / 0.015, rel=0.01)


def test_a_model_listed_without_gate_has_none_under_any_kernel_of_the_table(tmp_path):
    table = table_of(
        tmp_path,
        row("library_nongated", ffn=512), row("other", ffn=512), row("other", ffn=768),
    )  # fmt: skip

    assert [kernel.op.is_gated for kernel in table.kernels] == [False, False, True]


def made_table(tmp_path, models):
    """Layers of these *models* (hidden sizes) that take just what CONSTANTS say on an H100."""
    sizes = [(tokens, hidden) for hidden in models for tokens in (128, 512, 2048, 8192, 32768)]
    table = table_of(tmp_path, *(row(tokens=tokens, hidden=hidden) for tokens, hidden in sizes))
    layers = [kernel.op for kernel in table.kernels]
    machine = machine_rates(load_device("h100_sxm"), layers[0].dtype)
    times = predict_layer_times(layer_shapes(layers), machine, CONSTANTS).duration_ns
    return KernelTable(
        tuple(
            replace(kernel, measured_ns=float(time_ns))
            for kernel, time_ns in zip(table.kernels, times, strict=True)
        ),
        (),
    )


def test_a_fit_finds_the_times_of_models_that_it_did_not_see(tmp_path):
    table = made_table(tmp_path, [256 * number for number in range(2, 14)])
    kernels, estimates = cross_validate("experts", table, folds=4, by=("shape",))
    truth = np.array([kernel.measured_ns for kernel in kernels])

    np.testing.assert_allclose(estimates.duration_ns, truth, rtol=0.05)


def test_few_models_teach_nothing_beyond_the_physics(tmp_path):
    few = made_table(tmp_path, [256 * number for number in range(2, 2 + FEWEST_SHAPES - 1)])
    many = made_table(tmp_path, [256 * number for number in range(2, 2 + FEWEST_SHAPES)])

    assert not fit_expert_entry(few, "h100_sxm").curves
    assert not fit_expert_entry(many, "h100_sxm").curves
    # 500 rows are enough.
    many = KernelTable(many.kernels * (500 // len(many.kernels) + 1))
    assert set(fit_expert_entry(many, "h100_sxm").curves) == {"span", "weights"}


def test_another_kernel_of_the_chip_stands_in_before_the_same_one_of_another_chip(tmp_path):
    table = made_table(tmp_path, [1024, 2048])
    own = fit_expert_entry(table, "h100_sxm")
    old = replace(
        own, device="a100_sxm_80gb", architecture="ampere", compute_capability="8.0",
        variant="asked/bf16", constants={**own.constants, "floor_ns": 1e9},
    )  # fmt: skip
    layer = replace(table.kernels[0].op, kernel="asked")

    price = ExpertLayerModel([own, old]).price
    [duration_ns] = price([layer], load_device("h100_sxm"), load_stack("generic")).duration_ns
    assert duration_ns < 1e8


@pytest.mark.parametrize("device", ["h100_sxm", "b200_sxm", "gb200"])
def test_training_takes_a_kernel_that_is_faster_in_eight_bits(device):
    shape, stack = (8, 4096, 4096, 4096), load_stack("megatron")
    times_ns = {
        dtype: price_grouped_gemms([GroupedGemm(*shape, dtype)], load_device(device), stack)
        for dtype in (DType.BF16, DType.FP8)
    }
    ratio = times_ns[DType.BF16].duration_ns[0] / times_ns[DType.FP8].duration_ns[0]
    assert 1.3 < ratio < 2.2


def test_narrow_kernels_slower_than_bf16_are_told(monkeypatch):
    device = load_device("h100_sxm")
    slow = [
        replace(one, constants={**one.constants, "compute_ratio": 0.1})
        if one.variant.endswith("/fp8")
        else one
        for one in entries_for("experts", device)
    ]
    monkeypatch.setattr("perfmodel.costs.experts.entries_for", lambda *_: slow)
    with pytest.raises(CalibrationError, match="times as long as that for bf16"):
        price_grouped_gemms(
            [GroupedGemm(8, 4096, 4096, 4096, DType.FP8)], device, load_stack("nemo")
        )


def test_kernels_of_fp8_stand_in_for_those_by_block_that_only_serve():
    device, shape = load_device("h100_sxm"), (8, 4096, 4096, 4096)
    block, plain, wide = (
        price_grouped_gemms([GroupedGemm(*shape, one)], device, load_stack("nemo"))
        for one in (DType.FP8_BLOCK, DType.FP8, DType.BF16)
    )
    assert plain.duration_ns[0] == block.duration_ns[0] < wide.duration_ns[0]
    assert block.relative_sigma[0] > plain.relative_sigma[0]
