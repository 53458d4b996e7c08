"""Figures that people compare, on paper."""

from __future__ import annotations

from perfmodel.prediction.yardsticks import IterationWork, Yardsticks, count_work
from perfmodel.workloads import load_workload
from topologies import load_device


def test_figures_are_those_of_paper():
    work = IterationWork(4, 4_000, model_flops=800 * 10**9, hardware_flops=10**12, peak_flops=1e12)
    figures = Yardsticks(work, rank_count=2, iteration_ns=500_000_000)
    # 4,000 tokens in half a second, by two GPUs.
    assert (figures.per_s, figures.per_s_per_gpu, figures.samples_per_s) == (8_000, 4_000, 8)
    # 0.8 TFLOP in half a second by two GPUs of 1 TFLOP/s each.
    assert figures.model_utilisation == 0.8
    assert figures.hardware_utilisation == 1.0
    # Two GPUs at 3.6 an hour are 0.002 a second, and a million tokens take 125 s.
    assert abs(figures.cost_per_million(3.6) - 0.25) < 1e-12


def test_without_tokens_samples_are_counted():
    figures = Yardsticks(IterationWork(samples=10), rank_count=1, iteration_ns=10**9)
    assert (figures.unit, figures.per_s, figures.model_utilisation) == ("samples", 10, None)
    for iteration_ns in (0, 1):
        assert Yardsticks(IterationWork(samples=10), 1, iteration_ns).per_s == 10 * 10**9
    unknown = IterationWork(samples=10, model_flops=7)
    assert Yardsticks(unknown, 1, 10**9).model_utilisation is None
    assert Yardsticks(unknown, 1, 10**9).model_flops_per_gpu == 7


def test_a_format_without_a_rate_is_compared_with_the_one_it_runs_as():
    spec = load_workload("llama3_8b", ["training.compute=mxfp8"])
    assert count_work(spec, device=load_device("b200_sxm")).peak_flops == 4500e12
