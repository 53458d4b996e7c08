"""What to time, what it promises, and the script that times it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest

from perfmodel import api
from perfmodel.base.errors import MeasurementError
from perfmodel.extensions.measurements.calibration import kernel_rows
from perfmodel.extensions.measurements.calibration.kernel_rows import price_rows, read_tables


def scenario(workload, **changes):
    """A small question."""
    return api.Scenario(workload=workload, topology="dgx_h100", **changes)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A plan for a small Transformer, with its folder."""
    folder = tmp_path_factory.mktemp("measure")
    return api.measure(scenario("gpt2_xl"), folder), folder


def fill(folder, path):
    """The table that the GPUs would write if they were as predicted."""
    rows = json.loads((folder / "kernels.json").read_text())["kernels"]
    about = {"device": "h100_sxm", "under_load": 1, "residency": "cold", "latency_ms": 1.0}
    rows = [{**row, **about} for row in rows]
    write(path, rows)
    for kernel in kernel_rows.read_table(path, None).kernels:
        rows[int(kernel.row)]["latency_ms"] = price_rows([kernel]).duration_ns[0] / 1e6
    write(path, rows)
    return path


def write(path, rows):
    """*rows* as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def half_width(prediction):
    """Half of the interval over the iteration."""
    return prediction.interval.half_width_ns / prediction.iteration_ns


def test_what_is_promised_is_kept(measured, tmp_path):
    plan, folder = measured
    table = fill(folder, tmp_path / "table.csv")
    api.calibrate_kernels([table], tmp_path / "k.yaml")

    known = scenario("gpt2_xl", calibration=(str(tmp_path / "k.yaml"),))
    after = half_width(api.predict(known))

    promised, kept = plan.half_width - plan.expected, plan.half_width - after
    assert kept == pytest.approx(promised, rel=1 / 3)


def test_each_kernel_leaves_less_than_those_before_it(measured):
    plan, _ = measured
    left = [one.left for one in plan.listed]

    assert left == sorted(left, reverse=True)
    assert 0 < left[-1] < 1


def test_jobs_with_other_bottlenecks_get_other_lists(measured, tmp_path):
    plan, _ = measured
    other = api.measure(scenario("dlrm_dcnv2"), tmp_path)

    assert other.listed[0].row["kind"] == "lookup"
    assert plan.listed[0].row["kind"] != "lookup"


def test_the_script_runs_on_a_cpu_and_its_times_are_not_taken_for_those_of_gpus(measured):
    plan, folder = measured
    done = subprocess.run(
        [sys.executable, folder / "measure.py", "--dry-run"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    with (folder / "table.csv").open(newline="") as file:
        found = {row["kind"] for row in csv.DictReader(file)}
    assert found == {one.row["kind"] for one in plan.listed}
    with pytest.raises(MeasurementError, match="dry run"):
        read_tables([folder / "table.csv"], None)


def test_two_ranks_write_one_table(measured, tmp_path):
    _, folder = measured
    gemm = {"kind": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "bf16", "batch": 1, "added_bytes": 0}
    call = {"kind": "collective", "collective": "all_reduce", "size_bytes": 64, "dtype": "bf16"}
    rows = [gemm, call | {"ranks": 2, "hosts": 2}]
    plan = json.dumps({"device": "h100_sxm", "kernels": rows})
    (tmp_path / "kernels.json").write_text(plan)
    (tmp_path / "measure.py").write_text((folder / "measure.py").read_text())

    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*ranks, tmp_path / "measure.py", "--dry-run"], check=False, capture_output=True, text=True
    )

    # Two layouts of the product, and the collective among the ranks of the one host that is here.
    assert done.returncode == 0, done.stderr
    with (tmp_path / "table.csv").open(newline="") as file:
        assert [row["kind"] for row in csv.DictReader(file)] == ["gemm", "gemm", "collective"]


def test_kernels_that_like_ones_speak_for_are_not_listed(tmp_path):
    plan = api.measure(scenario("dlrm_dcnv2", hosts=2), tmp_path)

    # Every one of 16 ranks looks up tables of its own, most of them alike.
    lookups = [one for one in plan.listed if one.row["kind"] == "lookup"]
    assert 1 <= len(lookups) <= 8
    assert plan.expected < 0.75 * plan.half_width


def test_every_answer_says_what_would_narrow_it():
    found = api.predict(scenario("gpt2_xl"))

    kinds = [one.kind for one in found.narrowed_by]
    assert kinds[-2:] == ["run", "kernels"]
    assert all(0 < one.half_width_ns < found.interval.half_width_ns for one in found.narrowed_by)
