"""Whole runs: days, money, energy, and what failures cost, checked on paper."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfmodel.api import RunQuestion
from perfmodel.base.errors import ScenarioError
from perfmodel.base.units import NS_PER_S, parse_count, parse_long_duration_ns
from perfmodel.prediction.whole_run import find_goodput, load_rates, plan_run
from perfmodel.prediction.yardsticks import IterationWork
from tests.reports.predictions import build_prediction

RATES = load_rates()


def prediction(**work):
    """An iteration on 4 GPUs that does *work*."""
    found = build_prediction()
    facts = replace(found.facts, device="h100_sxm", work=IterationWork(**work))
    return replace(found, facts=facts)


def test_sixteen_thousand_gpus_fail_every_three_hours():
    # 419 interruptions of 16,384 GPUs in 54 days: 54 * 24 / 419 = 3.09 hours.
    good = find_goodput(16_384, RATES)
    assert good.failure_every_s / 3600 == pytest.approx(3.09, rel=0.01)
    # The report says that more than 90 % was training; with restarts of 10 minutes it is 88 %.
    assert good.ratio == pytest.approx(0.88, abs=0.01)


def test_the_best_checkpoint_interval_is_best():
    good = find_goodput(4096, RATES)
    rate, pause_s, restart_s = 1 / good.failure_every_s, 30.0, 600.0

    def ratio(every_s):
        return (
            every_s * rate / (math.exp(rate * restart_s) * math.expm1(rate * (every_s + pause_s)))
        )

    best_s = good.checkpoint_every_s
    assert good.ratio == pytest.approx(ratio(best_s))
    assert ratio(best_s) > max(ratio(0.9 * best_s), ratio(1.1 * best_s))
    # Young's rule for rare failures: the root of twice the pause times the time between them.
    rare = find_goodput(8, RATES)
    assert rare.checkpoint_every_s == pytest.approx(
        math.sqrt(2 * pause_s * rare.failure_every_s), rel=0.01
    )


def test_nothing_is_lost_without_failures():
    good = find_goodput(4096, replace(RATES, failures_per_gpu_year=0.0))
    assert (good.ratio, good.failure_every_s) == (1.0, math.inf)


def test_a_run_on_paper():
    found = prediction(samples=100, tokens=1000)
    run = plan_run(found, RunQuestion(tokens=1e9), price_per_gpu_hour=2.0)
    seconds = 1e6 * found.iteration_ns / NS_PER_S
    assert run.iterations == 1e6
    assert run.days == pytest.approx(seconds / 86_400)
    assert run.expected_days == pytest.approx(run.days / run.goodput.ratio)
    assert run.gpu_hours == pytest.approx(run.expected_days * 24 * 4)
    assert run.cost == pytest.approx(2 * run.gpu_hours)
    # 700 W, of which 15 % are drawn while the GPU waits.
    assert 0.15 * 700e-6 * run.gpu_hours < run.energy_mwh <= 700e-6 * run.gpu_hours


def test_samples_and_epochs_count_too():
    found = prediction(samples=100)
    run = plan_run(found, RunQuestion(train_samples=1e6, epochs=3))
    assert (run.iterations, run.unit) == (30_000, "samples")
    with pytest.raises(ScenarioError, match="counts samples, not tokens"):
        plan_run(found, RunQuestion(tokens=1e9))


def test_prices_are_by_machine_then_by_gpu(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\nper_gpu_hour: {my_box: 1.5, h100_sxm: 3}\n")
    found, asked = prediction(samples=1, tokens=1), RunQuestion(tokens=1e6, prices=str(path))
    assert plan_run(found, asked, machine="my_box.yaml").price_per_gpu_hour == 1.5
    assert plan_run(found, asked, machine="other").price_per_gpu_hour == 3
    # As people call the GPU; an h100_pcie is another.
    spoken = tmp_path / "spoken.yaml"
    spoken.write_text("per_gpu_hour: {H100 PCIe: 1, h100: 2, a100: 3}\n")
    by_name = replace(asked, prices=str(spoken))
    assert plan_run(found, by_name, machine="other").price_per_gpu_hour == 2
    other = replace(found, facts=replace(found.facts, device="l4"))
    assert plan_run(other, asked, machine="other").cost is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("per_gpu_hour: {h100_sxm: cheap}\n", "must be a number"),
        ("per_gpu_hour: {dgx_h1000: 3}\n", "did you mean dgx_h100?"),
        ("per_gpu_hour: {}\nrestart: 10\n", "must carry its unit"),
        ("per_hour: {}\n", "did you mean 'per_gpu_hour'?"),
        ("overhead: 0.1\n", "must be at least 1"),
        ("failures_per_gpu_year: 173\nrestart: 7 d\n", "must be at most 6 h"),
    ],
)
def test_faults_of_a_file_of_prices_are_named(tmp_path, text, said):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as fault:
        load_rates(str(path))
    assert said in str(fault.value)


def test_failures_that_leave_no_time_to_train_are_refused(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("failures_per_gpu_year: 500\n")
    with pytest.raises(ScenarioError, match="leaves no time to train"):
        find_goodput(16_384, load_rates(str(path)))
    path.write_text("failures_per_gpu_year: 1\n")
    # The file is read again.
    assert find_goodput(8, load_rates(str(path))).ratio > 0.99


def test_counts_and_long_times_are_read_as_people_write_them():
    assert [parse_count(text) for text in ("300B", "1.5T", "2e12", "1,000", "7k")] == [
        300e9, 1.5e12, 2e12, 1000, 7000,
    ]  # fmt: skip
    assert parse_long_duration_ns("30d") == 30 * 86_400e9
    assert parse_long_duration_ns("10 min") == 600e9
    with pytest.raises(ValueError, match="like 300B"):
        parse_count("many")


def test_a_run_without_a_length_is_refused():
    with pytest.raises(ScenarioError, match="Give --tokens COUNT too"):
        RunQuestion(prices="prices.yaml")
    with pytest.raises(ScenarioError, match="say the same"):
        RunQuestion(tokens=1.0, train_samples=1.0)
