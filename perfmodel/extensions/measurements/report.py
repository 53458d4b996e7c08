"""Reports of predictions against measurements: scoreboards, memory verdicts, fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.units import format_duration
from perfmodel.extensions.measurements.validation.fits import FitBoard
from perfmodel.extensions.measurements.validation.runs import RunScoreboard
from perfmodel.extensions.measurements.validation.scoreboard import Score, Scoreboard
from perfmodel.reports.blocks import (
    Headline,
    Look,
    Plot,
    Point,
    Report,
    Section,
    Sentences,
    Table,
    plain_report,
)
from perfmodel.reports.text import shorten

if TYPE_CHECKING:
    from perfmodel.extensions.measurements.calibration.embedding import CaseError
    from perfmodel.extensions.measurements.measuring import MeasurePlan
    from perfmodel.stacks.stack import SoftwareStack

MOST_ROWS = 200
MOST_ASSUMPTIONS = 20
MOST_TOLD = 90
FEWEST_INSIDE_PCT = 80.0
"""Of a 90 % interval: fewer rows inside are not chance."""
SCORE_HEADINGS = ("group", "rows", "MAPE%", "median%", "geomean%", "p90%", "bias%", "inside%")


def report_scores(board: Scoreboard, *, title: str = "") -> Report:
    """Predictions against measurements: by group, then the rows with the largest errors."""
    overall = board.overall
    unit = {"collectives": "us", "runs": "s"}.get(board.kind, "ms")
    worst = sorted(board.deviations, key=lambda one: -abs(one.error_pct))[:MOST_ROWS]
    rows = [
        (str(one.row), f"{one.error_pct:+.1f} %", _number(one.measured), _number(one.predicted),
         one.group)
        for one in worst
    ]  # fmt: skip
    headings = ("row", "error", f"measured {unit}", f"predicted {unit}", "group")
    return Report(
        title=title or f"Predicted and measured: {board.kind}",
        headline=Headline(
            verdict=""
            if overall is None
            else f"{overall.inside_interval_pct:.0f} % of the rows are inside their 90 % interval",
            is_good=overall is not None and overall.inside_interval_pct >= FEWEST_INSIDE_PCT,
            answer="no row" if overall is None else f"{overall.mape_pct:.1f} %",
            caption="could be predicted" if overall is None else "mean absolute error",
            facts=(f"{len(board.deviations)} rows, {len(board.unsupported)} left out",),
        ),
        sections=(
            Section("By group", [_score_table(board)]),
            Section("Predicted over measured", more=lambda: [_scatter(board, unit)]),
            Section("Largest errors", more=lambda: [Table(headings, rows, (1, 2, 3), (0,))]),
            Section("Left out", [_left_out(board)]),
            *(_iter_run_sections(board) if isinstance(board, RunScoreboard) else ()),
        ),
        rows=board.to_rows(),
        columns=120,
    ).warned(board.cautions)


def _scatter(board: Scoreboard, unit: str) -> Plot:
    """Every row as a point; those outside of their interval are red."""
    points = [
        Point(
            one.measured,
            one.predicted,
            f"{one.row}: {one.error_pct:+.1f} %",
            look=Look.BLUE if one.is_inside else Look.RED,
        )
        for one in board.deviations
        if min(one.measured, one.predicted) > 0
    ]
    note = "On the dashed line both are equal; red points are outside of their 90 % interval."
    words = (f"measured {unit}", f"predicted {unit}")
    return Plot(points, *words, note=note, are_log=True, shows_equal=True)


def _score_table(board: Scoreboard) -> Table:
    scored: list[tuple[str, Score]] = list(board.groups.items())
    scored += [] if board.overall is None else [("overall", board.overall)]
    rows = [
        (
            name,
            str(score.rows),
            f"{score.mape_pct:.1f}",
            f"{score.median_pct:.1f}",
            f"{score.geomean_pct:.1f}",
            f"{score.p90_pct:.1f}",
            f"{score.bias_pct:+.1f}",
            f"{score.inside_interval_pct:.0f}",
        )
        for name, score in scored
    ]
    return Table(SCORE_HEADINGS, rows, range(1, len(SCORE_HEADINGS)))


def _left_out(board: Scoreboard | FitBoard) -> Sentences:
    """The rows without a prediction, by reason, the first five by name."""
    by_reason: dict[str, list[str]] = {}
    for one in board.unsupported:
        by_reason.setdefault(one.reason, []).append(str(one.row))
    return Sentences([f"row {shorten(names, 5)}: {reason}" for reason, names in by_reason.items()])


def _iter_run_sections(board: RunScoreboard) -> Iterator[Section]:
    """Whether layouts are in the right order, and how many rows rest on each assumption."""
    orders = [
        f"{one.group}: {one.right_pct:.1f} % of {one.pairs} pairs in the right order"
        for one in board.orders
    ]
    yield Section("Order of layouts", [Sentences(orders)])
    counts = Counter(sentence for one in board.answers.values() for sentence in one.assumptions)
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(str(count), sentence) for sentence, count in common]
    table = Table(("rows", "assumption"), rows, (0,), wraps=(1,), most=MOST_ASSUMPTIONS)
    yield Section("Assumptions", [table])


def report_fits(board: FitBoard) -> Report:
    """The memory verdict against what ran and what failed."""
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
    misses = [
        ("ran" if one.ran else "failed", one.reason or "fits", one.row, one.group)
        for one in board.verdicts
        if one.ran != one.fits
    ][:MOST_ROWS]
    whole = board.scores[0]
    right = whole.caught + whole.ran - whole.false_alarms
    accuracy = whole.balanced_accuracy_pct
    wrong = Table(("measured", "predicted", "row", "group"), misses, code=(2,))
    return Report(
        title="Memory verdicts, predicted and measured",
        headline=Headline(
            answer=_percent(accuracy) or f"{right} of {len(board.verdicts)}",
            caption="balanced accuracy" if accuracy is not None else "right",
            facts=(f"{whole.failed} configurations failed, {whole.ran} ran",),
        ),
        sections=(
            Section("By group", [Table(headings, rows, range(1, len(headings)))]),
            *_memory_sections(board.memory),
            Section("Wrong verdicts", more=lambda: [wrong]),
            Section("Not judged", [_left_out(board)]),
        ),
        rows=board.to_rows(),
        columns=100,
    )


def _memory_sections(memory: Scoreboard) -> Iterator[Section]:
    if memory.deviations or memory.unsupported:
        note = "Counted: everything on the GPU, the CUDA context included; known to about a fifth."
        yield Section(
            "Peak memory, predicted and measured",
            [_score_table(memory), Sentences([note]), _left_out(memory)],
        )


def report_embedding_fit(errors: Sequence[CaseError]) -> Report:
    """Measured and predicted times of cases, with held-out errors and those of a heuristic."""
    headings = ("case", "part", "measured", "predicted", "error", "held out", "heuristic", "")
    rows = [
        (
            one.case,
            one.part,
            f"{one.measured_ns / 1e3:.1f} us",
            f"{one.predicted_ns / 1e3:.1f} us",
            f"{one.error_pct:+.1f} %",
            f"{one.held_out_pct:+.1f} %",
            "" if one.heuristic_pct is None else f"{one.heuristic_pct:+.1f} %",
            "" if one.is_fitted else "not fitted",
        )
        for one in errors
    ]
    table = Table(headings, rows, numeric=range(2, 7))
    return plain_report("Embedding constants, fitted", table, columns=120)


def report_measuring(plan: MeasurePlan, folder: Path) -> Report:
    """What to time, what it buys, and how to time it."""
    rows = []
    for one in plan.listed:
        sizes = {key: value for key, value in one.row.items() if key not in ("kind", "topology")}
        told = " ".join(f"{key}={value}" for key, value in sizes.items() if value != "")
        width = f"±{100 * plan.half_width * one.left:.1f} %"
        rows.append((one.row["kind"], told[:MOST_TOLD], f"{one.share:.1%}", width))
    calls = sum(one.row["kind"] == "collective" for one in plan.listed)
    said = (
        f"The interval is ±{100 * plan.half_width:.1f} %. These {len(rows) - calls} kernels and "
        f"{calls} collectives take about {plan.minutes:.1f} minutes, and should leave "
        f"±{100 * plan.expected:.1f} %."
    )
    groups = [one.row for one in plan.listed if one.row["kind"] == "collective"]
    of_host = max((row["ranks"] // row["hosts"] for row in groups), default=1)
    hosts = max((row["hosts"] for row in groups), default=1)
    several = f" --nnodes {hosts}" if hosts > 1 else ""
    start = f"torchrun --nproc-per-node {of_host}{several}" if groups else "python"
    steps = [
        f"{start} {folder / 'measure.py'}",
        f"perfmodel calibrate kernels {folder / 'table.csv'} --out my_kernels.yaml",
    ]
    table = Table(("kind", "sizes", "of kernel time", "left"), rows, numeric=(2, 3), code=(1,))
    return plain_report("What to time", Sentences([said]), table, Sentences(steps), columns=140)


def report_host_stack(stack: SoftwareStack) -> Report:
    """Host overheads of a fitted *stack*."""
    rows = [
        ("operators", str(len(stack.host.operators))),
        ("launch", format_duration(stack.host.launch_ns)),
        ("between operators", format_duration(stack.host.between_operators_ns)),
    ]
    return plain_report("Host overheads, fitted", Table((), rows))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
