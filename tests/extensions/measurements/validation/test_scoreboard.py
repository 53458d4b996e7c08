import pytest

from perfmodel.base.writing import write_csv
from perfmodel.costs.estimates import interval_of
from perfmodel.extensions.measurements.measured_kernels import Unsupported
from perfmodel.extensions.measurements.validation.scoreboard import (
    Deviation,
    Scoreboard,
    build_score,
)


def deviation(measured, predicted, *, group="g", row=0, half=0.1):
    low, high = predicted * (1 - half), predicted * (1 + half)
    return Deviation(
        row=row, group=group, measured=measured, predicted=predicted, low=low, high=high
    )


def test_a_score_sums_up_errors_relative_to_the_measurement():
    # Errors +10 %, -20 %, +40 %.
    score = build_score([deviation(10, 11), deviation(10, 8), deviation(10, 14)])
    assert score.rows == 3
    assert score.mape_pct == pytest.approx(70 / 3)
    assert score.median_pct == pytest.approx(20)
    assert score.geomean_pct == pytest.approx((10 * 20 * 40) ** (1 / 3))
    assert score.bias_pct == pytest.approx(10)
    # An exact row does not make the geometric mean zero.
    assert build_score([deviation(10, 10)]).geomean_pct == pytest.approx(0.01)
    # Only the first lies within 10 % of its prediction: 11 x 0.9 = 9.9 <= 10.
    assert score.inside_interval_pct == pytest.approx(100 / 3)


def test_groups_keep_the_order_of_the_table():
    board = Scoreboard("x", (deviation(1, 1, group="b"), deviation(1, 2, group="a")))
    assert list(board.groups) == ["b", "a"]


BOARD = Scoreboard("x", (deviation(10, 11, row="r7"),), (Unsupported("r8", "no such GPU"),))


def test_json_has_every_row_and_what_was_left_out():
    content = BOARD.to_json()
    assert content["kind"] == "x"
    assert content["rows"][0]["row"] == "r7"
    assert content["rows"][0]["error_pct"] == pytest.approx(10)
    assert content["unsupported"] == [{"row": "r8", "reason": "no such GPU"}]
    assert set(content["overall"]) == {
        "rows", "mape_pct", "median_pct", "geomean_pct", "p90_pct", "bias_pct",
        "inside_interval_pct",
    }  # fmt: skip


def test_a_csv_has_a_line_per_row_with_its_numbers_or_its_reason(tmp_path):
    write_csv(tmp_path / "rows.csv", BOARD.to_rows())
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0] == "row,measured,predicted,low,high,error_pct,group,reason"
    assert lines[1].startswith("r7,10,11,")
    assert lines[1].endswith(",g,")
    assert lines[2] == "r8,,,,,,,no such GPU"


def test_a_board_without_predictions_exceeds_every_limit():
    assert Scoreboard("x", (), (Unsupported(0, "why"),)).exceeds(1000)
    assert not Scoreboard("x", (deviation(10, 11),)).exceeds(10.1)


def test_the_interval_is_symmetric_in_the_logarithm():
    low, high = interval_of(100.0, 0.1)
    assert low * high == pytest.approx(100.0**2)
    assert high == pytest.approx(100 * 2.718281828 ** (1.645 * 0.1), rel=1e-3)
