import datetime

import numpy as np
import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.calibration.bounded_fit import Limit, fit_constants
from perfmodel.calibration.kernel_fits import (
    about_tables,
    assign_folds,
    cross_validate,
    fit_entries,
    preferred_rows,
)
from perfmodel.calibration.networks import OrderedPairs, TrainingPlan, fit_correction
from perfmodel.costs.tables.kernel_table import KernelTable, MeasuredKernel
from perfmodel.graph.ops import MemoryBound


def measured(size_bytes: int, duration_ns: float, collector: str = "c") -> MeasuredKernel:
    op = MemoryBound("add", 2 * size_bytes, size_bytes, DType.FP32)
    return MeasuredKernel(
        row=str(size_bytes), group=(collector, "gpu", "add"), columns={"B": size_bytes}, op=op,
        device="a100_pcie_80gb", measured_ns=duration_ns,
    )  # fmt: skip


def straight_table() -> KernelTable:
    # 5 us and then 0.6 ps a byte: 1935 GB/s of datasheet at 86 %.
    sizes = [2**power for power in range(12, 30)]
    return KernelTable(tuple(measured(size, 5_000 + 3 * size * 6e-4) for size in sizes), ())


def test_a_straight_line_is_found_again_on_rows_not_fitted():
    held_out = cross_validate("memory", straight_table(), folds=4, by=("B",))
    truth = np.array([kernel.measured_ns for kernel in held_out.kernels])
    np.testing.assert_allclose(held_out.estimates.duration_ns, truth, rtol=0.03)


def test_an_offset_larger_than_a_kernel_can_have_is_the_timing_of_the_benchmark():
    [entry] = fit_entries("memory", straight_table())
    assert entry.constants["floor_ns"] + entry.constants["timing_ns"] == pytest.approx(
        5000, rel=0.02
    )
    assert entry.constants["floor_ns"] == 3000


def test_equal_values_never_fall_in_two_folds():
    table = KernelTable(tuple(measured(size, 1.0) for size in [1, 1, 2, 2, 3, 3, 4, 4]), ())
    folds = assign_folds(table, folds=3, by=("B",))
    assert folds[0::2].tolist() == folds[1::2].tolist()
    assert len(set(folds.tolist())) == 3


def test_folding_by_something_unknown_or_by_one_value_is_refused():
    with pytest.raises(MeasurementError, match="colour"):
        assign_folds(straight_table(), folds=2, by=("colour",))
    with pytest.raises(MeasurementError, match="2 different values"):
        assign_folds(straight_table(), folds=2, by=("device",))


def test_the_collector_with_random_operands_is_preferred():
    table = KernelTable((measured(1, 1.0, "vllm/1"), measured(1, 1.0, "trtllm/1")), ())
    assert [kernel.group[0] for kernel in preferred_rows(table).kernels] == ["trtllm/1"]


def test_constants_are_found_within_their_limits():
    x = np.linspace(1, 10, 30)
    limits = {"a": Limit(1.0, 0.1, 100.0), "b": Limit(0.0, -1.0, 1.0, is_positive=False)}
    found = fit_constants(limits, lambda c: c["a"] * x + c["b"], 7 * x + 0.5)
    assert found == pytest.approx({"a": 7.0, "b": 0.5}, rel=1e-3)
    capped = fit_constants({"a": Limit(1.0, 0.1, 3.0)}, lambda c: c["a"] * x, 7 * x)
    assert capped["a"] <= 3.0 + 1e-9


def test_a_correction_learns_what_the_physics_leaves_and_how_sure_it_is():
    chooser = np.random.default_rng(0)
    features = chooser.uniform(-1, 1, (3000, 2))
    noise = chooser.normal(0, 0.05, 3000)
    target = 0.3 * np.sin(3 * features[:, 0]) + noise
    pairs = OrderedPairs(features[:100], features[:100], np.zeros(100))
    plan = TrainingPlan(hidden=16, steps=600, batch=256, spread_hidden=8)
    correction = fit_correction(features, target, plan, pairs)
    answer = correction.apply(features)
    assert np.mean(np.abs(answer.log_ratio - 0.3 * np.sin(3 * features[:, 0]))) < 0.03
    inside = np.abs(target - answer.log_ratio) < 1.645 * answer.relative_sigma
    assert 0.8 < inside.mean() < 0.97


def test_a_header_names_everything_a_calibration_file_must_say():
    about = about_tables(
        "gemm", command="perfmodel calibrate gemm x", day=datetime.date(2026, 1, 2)
    )
    assert about["date"] == "2026-01-02"
    assert {"source", "hardware", "software", "licence", "command"} <= set(about)
