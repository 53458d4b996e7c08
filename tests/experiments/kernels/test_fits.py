import numpy as np
import pytest

from experiments.fitting.kernels.constants import alone_ns, fit_constants
from experiments.fitting.kernels.fits import (
    assign_folds,
    cross_validate,
    fit_entries,
)
from experiments.fitting.kernels.gemm import (
    LearnedRows,
    Learning,
    fit_few,
    fit_learned,
    tiny_k_ns,
)
from experiments.fitting.kernels.networks import TrainingPlan
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.costs.gemm_physics import GemmShapes
from perfmodel.extensions.measurements.calibration.bounded_fit import Limit
from perfmodel.extensions.measurements.measured_kernels import KernelTable, MeasuredKernel
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
    kernels, estimates = cross_validate("memory", straight_table(), folds=4, by=("B",))
    truth = np.array([kernel.measured_ns for kernel in kernels])
    assert sorted(truth) == sorted(alone_ns(straight_table()))
    np.testing.assert_allclose(estimates.duration_ns, truth, rtol=0.03)


def test_an_offset_larger_than_a_kernel_can_have_is_the_timing_of_the_benchmark():
    [entry] = fit_entries("memory", straight_table())
    assert entry.constants["floor_ns"] + entry.constants["timing_ns"] == pytest.approx(
        5000, rel=0.02
    )
    assert entry.constants["floor_ns"] == 1300


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


def test_constants_are_found_within_their_limits():
    x = np.linspace(1, 10, 30)
    limits = {"a": Limit(1.0, 0.1, 100.0), "b": Limit(0.0, -1.0, 1.0)}
    found = fit_constants(limits, lambda c: c["a"] * x + c["b"], 7 * x + 0.5)
    assert found == pytest.approx({"a": 7.0, "b": 0.5}, rel=1e-3)
    capped = fit_constants({"a": Limit(1.0, 0.1, 3.0)}, lambda c: c["a"] * x, 7 * x)
    assert capped["a"] <= 3.0 + 1e-9


def test_corrections_learn_what_the_physics_leaves_and_how_sure_they_are():
    chooser = np.random.default_rng(0)
    work = chooser.uniform(-1, 1, (3000, 2))
    wave = 0.02 * np.sin(9 * work[:, :1])
    log_time = work[:, 0] + 0.3 * work[:, 1] + 0.2 * np.tanh(4 * work[:, 0]) + wave[:, 0]
    log_time = log_time + chooser.normal(0, 0.02, 3000)
    learning = Learning(
        ordered=TrainingPlan(hidden=16, steps=600, batch=256, learning_rate=2e-2),
        steps=TrainingPlan(hidden=16, steps=400, batch=256),
        spread=TrainingPlan(steps=300, batch=256, spread_hidden=8),
    )
    numbers = np.arange(len(work))
    rows = LearnedRows(work, np.hstack([work, wave]), log_time, np.ones(len(work)), numbers)
    ordered, correction = fit_learned(rows, learning)
    log_ratio, sigma, _ = ordered.apply(work)
    steps = correction.log_ratio(np.hstack([work, wave]))
    error = log_time - (log_ratio + work[:, 0] + steps)
    assert np.mean(np.abs(error)) < 0.03
    assert 0.8 < np.mean(np.abs(error) < 1.645 * sigma) < 0.99


def test_of_few_weights_only_that_is_learned_which_holds_for_others():
    chooser = np.random.default_rng(0)
    weights = np.repeat(np.arange(30), 20)
    rising = chooser.uniform(5, 10, (600, 2))
    every = rising[:, 0] + 0.3  # every kernel takes 35 % longer than the physics says
    own = chooser.normal(0, 0.3, 30)[weights]  # and what others do not have
    for log_time, error in ((every, 0.02), (rising[:, 0] + own, 0.3)):
        rows = LearnedRows(rising, rising, log_time, np.ones(600), weights)
        log_ratio, sigma, _ = fit_few(rows).apply(rising)
        assert np.mean(np.abs(log_ratio - (log_time - rising[:, 0]))) < error
        assert np.mean(np.abs(log_ratio + rising[:, 0] - log_time) < 1.645 * sigma) > 0.8


def test_what_tiny_products_cost_is_read_off_the_ones_with_a_long_k():
    # Eight products of 4 x 64 x k: 2 us and then 4 ns for each element of k.
    lengths = np.array([2048.0, 3072.0, 4096.0, 5120.0, 6144.0, 6656.0, 7168.0, 7680.0])
    ones = np.ones(8)
    shapes = GemmShapes(batch=ones, m=4 * ones, n=64 * ones, k=lengths, width_bytes=2 * ones)
    assert tiny_k_ns(shapes, 2000 + 4 * lengths) == pytest.approx(4.0)
    assert tiny_k_ns(shapes.rows(np.array([], dtype=np.intp)), np.array([])) == 0.0
