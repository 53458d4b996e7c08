"""The memory verdict against runs that failed and runs that did not."""

from __future__ import annotations

import pytest

from perfmodel.extensions.measurements.report import report_fits
from perfmodel.extensions.measurements.validation.fits import FitBoard, FitVerdict, judge_fits
from perfmodel.extensions.measurements.validation.runs_question import layout_of, read_setting
from perfmodel.extensions.measurements.validation.runs_table import load_runs, required_columns
from perfmodel.reports.terminal import to_text
from tests.extensions.measurements.validation.test_runs import TRANSFORMER, write


def test_balanced_accuracy_by_hand():
    kinds = [(False, False)] * 3 + [(False, True)] + [(True, True)] * 9 + [(True, False)]
    board = FitBoard(tuple(FitVerdict("r", "g", ran=ran, fits=fits) for ran, fits in kinds))
    overall, group = board.scores
    # 3 of 4 failures caught, 1 of 10 successes refused: (75 + 90) / 2.
    assert overall.balanced_accuracy_pct == pytest.approx(82.5)
    assert (group.failed, group.caught, group.ran, group.false_alarms) == (4, 3, 10, 1)
    assert "82.5 % balanced accuracy" in to_text(report_fits(board))


@pytest.mark.slow
def test_failed_runs_are_told_from_those_that_ran(shared_data):
    folder = shared_data / "runs"
    tables = [load_runs(folder / f"{name}.csv.gz") for name in ("out_of_memory", "transformer")]
    overall = judge_fits(tables).scores[0]
    assert (overall.failed, overall.ran) == (568, 1075)
    assert overall.balanced_accuracy_pct is not None
    assert overall.balanced_accuracy_pct > 91.5


def test_a_row_that_cannot_be_read_is_named_and_not_judged(tmp_path):
    file = tmp_path / "runs.csv"
    heading = ",".join(required_columns("transformer"))
    cells = heading.replace("iter_time_s", "")
    file.write_text(f"{heading},pp\n{cells},pp\n")
    board = judge_fits([load_runs(file)])
    assert board.verdicts == ()
    assert [one.row for one in board.unsupported] == ["id" if "id" in heading.split(",") else "0"]
    assert "Not judged" in to_text(report_fits(board))
    assert [set(row) for row in board.to_rows()] == [{"row", "reason"}]


def test_measured_memory_is_compared_in_gigabytes(tmp_path):
    board = judge_fits([load_runs(write(tmp_path, TRANSFORMER | {"peak_mem_gb": "10"}))])
    [one] = board.memory.deviations
    setting = read_setting(load_runs(tmp_path / "runs.csv").rows[0])
    # Allocators do not count what the runtime takes: 1 GiB.
    assert one.predicted == (layout_of(setting).peak_bytes - 2**30) / 1e9
    assert (one.measured, one.low * 1.2, one.high) == (10.0, one.predicted, one.predicted * 1.2)
    assert "Peak memory, predicted and measured" in to_text(report_fits(board))


def test_memory_of_a_run_that_cannot_be_read_is_named(tmp_path):
    row = TRANSFORMER | {"peak_mem_gb": "10", "tp": "3"}
    board = judge_fits([load_runs(write(tmp_path, row))])
    assert [one.row for one in board.memory.unsupported] == ["a"]
