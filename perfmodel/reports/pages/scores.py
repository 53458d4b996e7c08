"""Pages of scores: predictions beside measurements, memory verdicts beside what happened."""

from __future__ import annotations

from perfmodel.reports.pages.page import Grid, Headline, Lines, Page, Section
from perfmodel.validation.fits import FitBoard
from perfmodel.validation.scoreboard import Scoreboard

MAX_ROWS = 200
FEWEST_INSIDE_PCT = 80.0
"""Of a 90 % interval: fewer rows inside are no luck of the draw."""
SCORE_HEADINGS = ("group", "rows", "mean error", "median", "bias", "inside interval")


def build_board_page(board: Scoreboard | FitBoard) -> str:
    """The page of either kind of board."""
    return build_fit_page(board) if isinstance(board, FitBoard) else build_score_page(board)


def build_score_page(board: Scoreboard) -> str:
    """Predictions beside measurements: by group, then the rows that are furthest off."""
    overall = board.overall
    rows = [
        (
            name,
            str(score.rows),
            f"{score.mape_pct:.1f} %",
            f"{score.median_pct:.1f} %",
            f"{score.bias_pct:+.1f} %",
            f"{score.inside_interval_pct:.0f} %",
        )
        for name, score in board.groups.items()
    ]
    worst = sorted(board.deviations, key=lambda one: -abs(one.error_pct))[:MAX_ROWS]
    far = [
        (str(one.row), f"{one.error_pct:+.1f} %", _number(one.measured), _number(one.predicted),
         one.group)
        for one in worst
    ]  # fmt: skip
    left_out = [f"{one.row}: {one.reason}" for one in board.unsupported[:MAX_ROWS]]
    unit = {"collectives": "us", "runs": "s"}.get(board.kind, "ms")
    return Page(
        title=f"Predicted and measured: {board.kind}",
        headline=Headline(
            verdict=""
            if overall is None
            else f"{overall.inside_interval_pct:.0f} % of the rows lie in their 90 % interval",
            is_good=overall is not None and overall.inside_interval_pct >= FEWEST_INSIDE_PCT,
            answer="no row" if overall is None else f"{overall.mape_pct:.1f} %",
            beside="mean absolute error",
            facts=(f"{len(board.deviations)} rows, {len(board.unsupported)} left out",),
        ),
        sections=(
            Section("By group", [Grid(SCORE_HEADINGS, rows, range(1, len(SCORE_HEADINGS)))]),
            Section(
                "Furthest off",
                [
                    Grid(
                        ("row", "error", f"measured {unit}", f"predicted {unit}", "group"),
                        far,
                        (1, 2, 3),
                        (0,),
                    )
                ],
            ),
            Section("Left out", [Lines(left_out)] if left_out else []),
        ),
    ).render()


def build_fit_page(board: FitBoard) -> str:
    """The memory verdict beside what ran and what failed."""
    headings = ("group", "failed", "caught", "ran", "false alarms", "balanced accuracy")
    rows = [
        (
            score.group,
            str(score.failed),
            str(score.caught),
            str(score.ran),
            str(score.false_alarms),
            _percent(score.balanced_accuracy_pct),
        )
        for score in board.scores
    ]
    wrong = [one for one in board.verdicts if one.ran != one.fits][:MAX_ROWS]
    misses = [
        ("ran" if one.ran else "failed", one.reason or "fits", one.row, one.group) for one in wrong
    ]
    whole = board.scores[0]
    right = whole.caught + whole.ran - whole.false_alarms
    accuracy = whole.balanced_accuracy_pct
    return Page(
        title="Fits or not, said and seen",
        headline=Headline(
            verdict="",
            is_good=True,
            answer=_percent(accuracy) or f"{right} of {len(board.verdicts)}",
            beside="balanced accuracy" if accuracy is not None else "told rightly",
            facts=(f"{whole.failed} configurations failed, {whole.ran} ran",),
        ),
        sections=(
            Section("By group", [Grid(headings, rows, range(1, len(headings)))]),
            Section(
                "Told wrongly",
                [Grid(("seen", "said", "row", "group"), misses, (), (2,))] if misses else [],
            ),
        ),
    ).render()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
