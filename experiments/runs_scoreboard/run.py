"""Measured training runs against their predictions: by framework, chip, scale and model.

python experiments/runs_scoreboard/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from experiments.figures import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    MARKERS,
    MEASURED,
    ORANGE,
    Wishes,
    legend_below,
    new_figure,
    plain_ticks,
    read_wishes,
)
from perfmodel.extensions.measurements.report import report_scores
from perfmodel.extensions.measurements.validation.runs import validate_runs
from perfmodel.extensions.measurements.validation.runs_table import RunRow, load_runs
from perfmodel.extensions.measurements.validation.scoreboard import Deviation, Score, build_score
from perfmodel.reports.terminal import to_text

FAMILIES = {"transformer": "Transformers", "dlrm": "DLRMs"}
Pairs = list[tuple[RunRow, Deviation]]
NLP = {
    "BERT": ("BERT", "bert"),
    "GPT-2": ("GPT2", "gpt2"),
    "MPT 125m to 1b": ("MPT-1", "MPT-3", "MPT-76"),
}
SCALES = {1: "1 GPU", 8: "2 to 8 GPUs", 64: "9 to 64 GPUs"}


def main() -> None:
    """Score the tables of the scenario, print them as `validate runs` does, draw."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    results, pairs = {}, []
    for name in scenario["tables"]:
        table = load_runs(MEASURED / name)
        table = replace(table, rows=table.rows[:: scenario["every"]])
        with wishes.executor() as executor:
            board = validate_runs(table, executor=executor)
        print(to_text(report_scores(board, title=name)))
        document = board.to_json()
        results[name] = {key: document[key] for key in ("overall", "groups", "unsupported")}
        results[name]["rows"] = {
            str(one.row): [one.measured, one.predicted, one.low, one.high]
            for one in board.deviations
        }
        rows = {row.name: row for row in table.rows}
        pairs += [(rows[one.row], one) for one in board.deviations]
    results["by"] = {
        "framework": scores(pairs, lambda row: row.text("framework")),
        "chip": scores(pairs, lambda row: row.text("device")),
        "scale": scores(pairs, scale_of),
        "model": scores(pairs, nlp_of),
    }
    wishes.write_results(results)
    draw_runs(wishes, pairs)
    draw_groups(wishes, results["by"])


def scale_of(row: RunRow) -> str:
    """How many GPUs, in words that sort."""
    gpus = row.value("n_gpus") or 1
    return next((word for most, word in SCALES.items() if gpus <= most), "65 and more")


def nlp_of(row: RunRow) -> str:
    """The models that the paper took, or their like; empty for others."""
    model = row.text("model")
    return next((name for name, words in NLP.items() if model.startswith(words)), "")


def scores(pairs: Pairs, key_of: Callable[[RunRow], str]) -> dict[str, dict[str, Any]]:
    """Scores by what *key_of* says of a row, most rows first."""
    members = defaultdict(list)
    for row, deviation in pairs:
        if key_of(row):
            members[key_of(row)].append(deviation)
    ordered = sorted(members.items(), key=lambda item: -len(item[1]))
    return {name: asdict(score_of(rows)) for name, rows in ordered}


def score_of(deviations: Iterable[Deviation]) -> Score:
    """The score of some rows."""
    return build_score(list(deviations))


def draw_runs(wishes: Wishes, pairs: Pairs) -> None:
    """Every run: predicted over measured time; hollow where the interval misses it."""
    figure, axes = new_figure(height=2.4)
    axes.axhspan(0.9, 1.1, color=GREY, alpha=0.25, lw=0)
    axes.axhline(1, color=BLACK, linewidth=0.6)
    for number, (family, name) in enumerate(FAMILIES.items()):
        for is_inside, word in ((True, "inside"), (False, "outside")):
            mine = [
                one for row, one in pairs if row.family == family and one.is_inside == is_inside
            ]
            axes.plot(
                [one.measured for one in mine],
                [one.predicted / one.measured for one in mine],
                MARKERS[number],
                color=COLOURS[number],
                ms=2.6,
                mew=0.6,
                mfc=COLOURS[number] if is_inside else "none",
                label=f"{name}, {word} ({len(mine)})",
            )
    axes.set(xscale="log", yscale="log", ylim=(0.3, 3.3))
    axes.set(xlabel="measured iteration (s)", ylabel="predicted over measured")
    plain_ticks(axes.yaxis, [0.3, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 3])
    plain_ticks(axes.xaxis, [0.001, 0.01, 0.1, 1, 10, 100])
    beyond = sum(not 0.3 < one.predicted / one.measured < 3.3 for _, one in pairs)
    score = score_of(one for _, one in pairs)
    axes.set_title(
        f"{score.rows} public runs, median error {score.median_pct:.1f} %"
        + (f", {beyond} beyond the picture" if beyond else "")
    )
    legend_below(figure, axes, 2)
    wishes.save(figure, "runs.png")


def draw_groups(wishes: Wishes, by: dict[str, dict[str, Any]]) -> None:
    """Mean, median and 90th percentile of every group, from zero: bars are compared by length."""
    heights = [len(groups) for groups in by.values()]
    figure, axes = new_figure(
        len(by),
        height=0.12 * sum(heights) + 0.3 * len(by) + 0.5,
        height_ratios=heights,
        sharex=True,
    )
    for axis, (title, groups) in zip(axes, by.items(), strict=True):
        places = np.arange(len(groups))
        found = {
            key: [score[key] for score in groups.values()]
            for key in ("mape_pct", "median_pct", "p90_pct")
        }
        axis.barh(places, found["mape_pct"], color=BLUE, height=0.7, label="mean")
        axis.plot(found["median_pct"], places, "|", color=ORANGE, ms=5, mew=1.3, label="median")
        axis.plot(found["p90_pct"], places, ">", color=BLACK, ms=2.5, label="90th percentile")
        names = [f"{name} ({score['rows']})" for name, score in groups.items()]
        axis.set_yticks(places, names, fontsize=5.5)
        axis.invert_yaxis()
        axis.set_title(f"by {title} (runs)", loc="left")
        axis.axvline(10, color=GREY, linewidth=0.6)
        axis.grid(visible=False, axis="y")
    axes[-1].set(xlabel="error of the predicted iteration (%)", xlim=(0, None))
    legend_below(figure, axes[0])
    wishes.save(figure, "errors.png")


if __name__ == "__main__":
    main()
