"""Intervals and errors of published runs with 0, 1, 3 and 10 other runs of their cluster known.

python experiments/anchored_runs/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures import BLACK, BLUE, MEASURED, new_figure, read_wishes
from experiments.fitting.anchors import (
    Scored,
    anchors_of,
    dense_cluster,
    score,
    unseen_spreads,
)
from experiments.fitting.problem import build_problem
from experiments.fitting.spreads import Z_90
from experiments.fitting.stacks import load_cases
from perfmodel.extensions.measurements.calibration.anchors import load_priors
from perfmodel.extensions.measurements.validation.runs_table import load_runs


def main() -> None:
    """Score every run of a cluster that has enough others, and draw."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    rows = load_runs(MEASURED / "core_transformer.csv").rows[: scenario["rows"]]
    kept = os.environ.get("KEPT_CASES")
    cases = load_cases(rows, Path(kept) if kept else None)
    left = build_problem(cases, "transformer").left_out(lambda case: case.publisher)
    anchors = anchors_of(cases, left, unseen_spreads(cases))
    priors = dict.fromkeys((case.publisher for case in cases), load_priors())
    most = max(scenario["known"])
    enough = {one.case.row.name for one in score(cases, anchors, priors, dense_cluster, most)}
    by_count = {
        count: [
            one
            for one in score(cases, anchors, priors, dense_cluster, max(count, 1))
            if one.case.row.name in enough
        ]
        for count in scenario["known"]
    }
    results = {str(count): sum_up(some, count) for count, some in by_count.items() if some}
    wishes.write_results(results)
    if results:
        figure, axes = new_figure(height=2.0)
        for place, (count, some) in enumerate(by_count.items()):
            widths, errors = widths_and_errors(some, count)
            low, middle, high = np.quantile(widths, [0.25, 0.5, 0.75])
            axes.errorbar(
                place - 0.12, middle, yerr=[[middle - low], [high - middle]], fmt="s", color=BLUE,
                label="half of the interval" if not place else None,
            )  # fmt: skip
            low, middle, high = np.quantile(errors, [0.25, 0.5, 0.75])
            axes.errorbar(
                place + 0.12, middle, yerr=[[middle - low], [high - middle]], fmt="o", color=BLACK,
                label="error against measured" if not place else None,
            )  # fmt: skip
        axes.set_xticks(range(len(by_count)), [str(count) for count in by_count])
        axes.set_xlabel("known runs of the cluster")
        axes.set_ylabel("%: median and quartiles")
        axes.set_ylim(bottom=0)
        axes.legend()
        wishes.save(figure, "interval.png")


def widths_and_errors(some: Sequence[Scored], count: int) -> tuple[Any, Any]:
    """Half-widths and errors in percent, with *count* runs known or none."""
    ratios = np.array([one.ratio if count else 1.0 for one in some])
    errors = np.array([one.after if count else one.before for one in some])
    sigmas = np.array([one.sigma for one in some])
    return 100 * np.sinh(Z_90 * sigmas * ratios), 100 * np.abs(np.expm1(-errors))


def sum_up(some: Sequence[Scored], count: int) -> dict[str, float]:
    """Errors and intervals of *some* runs."""
    widths, errors = widths_and_errors(some, count)
    inside = [
        abs(one.after if count else one.before) <= Z_90 * one.sigma * (one.ratio if count else 1.0)
        for one in some
    ]
    return {
        "rows": len({one.case.row.name for one in some}),
        "mean_pct": float(errors.mean()),
        "median_pct": float(np.median(errors)),
        "inside_pct": 100 * float(np.mean(inside)),
        "half_width_pct": float(np.median(widths)),
    }


if __name__ == "__main__":
    main()
