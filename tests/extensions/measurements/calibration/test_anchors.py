"""What measured runs say of other runs, worked by hand; and files of anchors in predictions."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from perfmodel import api
from perfmodel.cli import main
from perfmodel.extensions.measurements.calibration.anchors import (
    FACTORS,
    Anchor,
    Prior,
    PriorFile,
    learn,
    load_anchors,
)
from perfmodel.extensions.measurements.calibration.run_anchors import iter_doubts

NORMAL = 1e9
"""So many degrees of freedom that the errors of runs are normal."""


def priors(*, tails: float = NORMAL, **changes: float) -> PriorFile:
    """Families, and runs as a whole, with 10 %; nothing in common."""
    nothing = dict.fromkeys(FACTORS, 0.0)
    prior = Prior(
        machine=dict.fromkeys(FACTORS, 0.1),
        common=0.0,
        stack=0.0,
        model=0.0,
        dtype=0.0,
        run=nothing,
        whole_run=0.1,
    )
    families = {"transformer": replace(prior, **changes)}
    about = dict.fromkeys(("source", "date", "licence", "command"), "by hand")
    return PriorFile(**about, spread=0.1, tails=tails, families=families)


def anchor(error: float, *, run: str = "a", **shares: float) -> Anchor:
    """A run that took exp(*error*) times the predicted second."""
    return Anchor(
        device="h100_sxm", stack="megatron", family="transformer", model="m", dtype="bf16",
        hosts=1, spread=0.1, run=run, measured_ns=1e9 * math.exp(error), predicted_ns=1e9,
        shares={**dict.fromkeys(FACTORS, 0.0), **shares},
    )  # fmt: skip


def shares_of(**shares: float) -> np.ndarray:
    """Shares in the order of the factors."""
    return np.array([shares.get(name, 0.0) for name in FACTORS])


def test_a_run_of_gemms_moves_gemms_and_one_of_collectives_moves_collectives():
    alone, spread_out = anchor(0.2, gemm=1.0), anchor(0.3, communication=1.0)

    found = learn([alone, spread_out], alone, shares_of(gemm=1.0), priors())

    # Each: 0.1^2 / (0.1^2 + 0.1^2) = half of what the run is off belongs to its family.
    logs = dict(zip(FACTORS, found.logs, strict=False))
    assert logs["gemm"] == pytest.approx(0.1)
    assert logs["communication"] == pytest.approx(0.15)
    assert logs["attention"] == 0.0


def test_two_runs_that_differ_in_one_term_tell_it_from_the_other():
    tp_1, tp_8 = anchor(0.0, gemm=1.0), anchor(0.2, gemm=0.5, communication=0.5)

    together = learn([tp_1, tp_8], tp_1, shares_of(gemm=1.0), priors())
    alone = learn([tp_8], tp_1, shares_of(gemm=1.0), priors())

    # Alone: covariance 0.005 of either term, variance 0.005 + 0.01, so both take a third of 0.2.
    assert alone.logs[[0, 4]] == pytest.approx([0.2 / 3, 0.2 / 3])
    # Together, in hundredths: [[2, 0.5], [0.5, 1.5]] x = (0, 20) gives x = (-3.636, 14.545).
    # GEMMs: 1 * -3.636 + 0.5 * 14.545 = 3.636; collectives: 0.5 * 14.545 = 7.273 hundredths.
    assert 100 * together.logs[[0, 4]] == pytest.approx([3.63636, 7.27273], rel=1e-4)


def test_the_interval_narrows_by_what_a_run_says_and_no_more():
    one = anchor(0.2, gemm=1.0)

    same = learn([one], one, shares_of(gemm=1.0), priors())
    other = learn([one], one, shares_of(attention=1.0), priors())

    # Before 0.01 + 0.01; what is learnt is 0.01^2 / 0.02 = 0.005, so 0.015 / 0.02 is left.
    assert same.ratio == pytest.approx(math.sqrt(0.75))
    assert other.ratio == 1.0


def test_what_is_in_common_is_shared_with_the_same_stack_only():
    file, one = priors(stack=0.1, machine=dict.fromkeys(FACTORS, 0.0)), anchor(0.2, gemm=1.0)

    same = learn([one], one, shares_of(gemm=1.0), file)
    other = learn([one], replace(one, stack="nemo"), shares_of(gemm=1.0), file)

    assert same.logs[-1] == pytest.approx(0.1)
    assert other.logs[-1] == 0.0


def test_ten_times_the_hosts_learn_less():
    file, one = priors(per_doubling=math.log(2)), anchor(0.2, gemm=1.0)

    far = learn([one], replace(one, hosts=4), shares_of(gemm=1.0), file)

    # Two doublings, each halving what is said: a quarter of 0.1.
    assert far.logs[0] == pytest.approx(0.025)
    assert far.ratio > learn([one], one, shares_of(gemm=1.0), file).ratio


def test_a_run_that_is_ten_times_off_moves_less_than_one_that_is_a_tenth_off():
    file = priors(tails=1.0)

    near = learn([anchor(0.1, gemm=1.0)], anchor(0.0), shares_of(gemm=1.0), file)
    fault = learn([anchor(2.3, gemm=1.0)], anchor(0.0), shares_of(gemm=1.0), file)

    assert abs(fault.logs[0]) < abs(near.logs[0])


def test_a_row_of_three_times_its_siblings_is_doubted_and_agreeing_rows_are_not():
    siblings = [anchor(0.05 * one, run=f"r{one}", gemm=1.0) for one in range(3)]
    slow = anchor(1.3, run="slow", gemm=1.0)

    assert [*iter_doubts(siblings)] == []
    doubts = [*iter_doubts([*siblings, slow])]
    assert len(doubts) == 1
    assert doubts[0].startswith("Row slow looks like a fault")


QUESTION = api.Scenario(
    "dgx_h100", workload="gpt2_124m", ranks_per_host=8, overrides=("batch=96",), samples=64
)


def anchored(tmp_path, factor: float):
    """A file of one anchor, of QUESTION's run that took *factor* times the prediction."""
    out = tmp_path / "mine.yaml"
    plain = api.predict(QUESTION, executor="serial")
    api.anchor_run(QUESTION, plain.iteration_ns * factor, out)
    return plain, str(out)


def test_a_prediction_moves_towards_the_measured_run_and_says_what_it_rests_on(tmp_path):
    plain, file = anchored(tmp_path, 1.1)

    found = api.predict(replace(QUESTION, calibration=(file,)), executor="serial")

    assert plain.iteration_ns < found.iteration_ns < 1.1 * plain.iteration_ns
    assert any(f"Anchored on 1 run of {file}" in one for one in found.assumptions)
    width = (found.interval.high_ns - found.interval.low_ns) / found.iteration_ns
    assert width < (plain.interval.high_ns - plain.interval.low_ns) / plain.iteration_ns


def test_a_run_that_took_what_was_predicted_moves_nothing(tmp_path):
    plain, file = anchored(tmp_path, 1.0)

    found = api.predict(replace(QUESTION, calibration=(file,)), executor="serial")

    assert found.iteration_ns == plain.iteration_ns


def test_another_gpu_keeps_its_prediction_and_says_so(tmp_path):
    _, file = anchored(tmp_path, 1.5)
    asked = replace(QUESTION, topology="dgx_a100")

    found = api.predict(replace(asked, calibration=(file,)), executor="serial")

    assert found.iteration_ns == api.predict(asked, executor="serial").iteration_ns
    assert any("its runs are of h100_sxm" in one for one in found.assumptions)


def exit_of(arguments: list[str]) -> object:
    """How the command ends."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


def write_runs(path, *times: str) -> str:
    """A table of runs of one small model on one H100, that took *times*."""
    header = {
        "device": "h100_sxm", "machine": "dgx_h100", "n_gpus": 1, "gbs": 8, "mbs": 8,
        "layers": 2, "hidden": 512, "heads": 8, "vocab": 1000, "seq_len": 512,
        "compute_precision": "bf16",
    }  # fmt: skip
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", *header, "iter_time_s"])
        writer.writeheader()
        for number, time in enumerate(times):
            writer.writerow({"id": f"run-{number}", **header, "iter_time_s": time})
    return str(path)


def test_rows_become_anchors_and_rows_without_a_time_are_named(tmp_path, capsys):
    table, out = write_runs(tmp_path / "runs.csv", "0.004", ""), tmp_path / "mine.yaml"

    assert exit_of(["calibrate", "runs", table, "--out", str(out), "--quiet"]) == 0

    [one] = load_anchors(out).anchors
    assert (one.run, one.device, one.dtype, one.measured_ns) == ("run-0", "h100_sxm", "bf16", 4e6)
    assert "Row run-1 is not used: no time was measured" in capsys.readouterr().out


def test_a_table_without_a_usable_row_is_an_error(tmp_path, capsys):
    table, out = write_runs(tmp_path / "runs.csv", ""), tmp_path / "mine.yaml"

    assert exit_of(["calibrate", "runs", table, "--out", str(out), "--quiet"]) == 1

    assert "no row can be used" in capsys.readouterr().err
    assert not out.exists()


def test_times_in_another_unit_are_refused(tmp_path, capsys):
    table, out = write_runs(tmp_path / "runs.csv", "4000"), tmp_path / "mine.yaml"

    assert exit_of(["calibrate", "runs", table, "--out", str(out), "--quiet"]) == 1

    assert "times must be in seconds" in capsys.readouterr().err
