"""The layout that a search finds against the rule of thumb, and what finding it costs.

python experiments/configuration_search/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any

import numpy as np

from experiments.figures import (
    EXPERIMENTS,
    MEASURED,
    Wishes,
    legend_below,
    new_figure,
    plain_ticks,
    plot_bars,
    read_wishes,
)
from perfmodel.api import LayoutQuestion, Scenario, predict, search
from perfmodel.extensions.measurements.validation.runs_table import RunRow, load_runs

TRIED_ITERATIONS = 20
"""What an owner of the machine would run of every layout before choosing."""


def main() -> None:
    """Search, ask the rule of thumb, and choose among layouts that others measured."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    searched = {name: compare(wishes, asked) for name, asked in scenario["questions"].items()}
    measured = choose_among_measured(scenario["fewest_layouts"])
    draw(wishes, searched, measured["groups"])
    wishes.write_results({"searched": searched, "measured": measured})


def draw(wishes: Wishes, searched: dict[str, Any], measured: dict[str, Any]) -> None:
    """Above what is predicted of found layouts, below what was measured of chosen ones."""
    rows = [len(searched), len(measured)]
    figure, axes = new_figure(2, height=0.2 * sum(rows) + 1.1, height_ratios=rows)
    series = {
        "rule of thumb": [one["rule_s"] for one in searched.values()],
        "search": [one["found_s"] for one in searched.values()],
    }
    plot_bars(axes[0], list(searched), series, horizontal=True, values="%.1f")
    axes[0].set_xlabel("predicted iteration (s)")
    series = {
        "rule of thumb": [one["rule"] for one in measured.values()],
        "search": [one["predicted"] for one in measured.values()],
    }
    plot_bars(axes[1], list(measured), series, horizontal=True)
    axes[1].set_xlabel("measured, chosen over best")
    axes[1].set(xscale="log", xlim=(0.95, None))
    plain_ticks(axes[1].xaxis, [1, 1.5, 2, 3, 5])
    for axis in axes:
        axis.tick_params(axis="y", labelsize=5.5)
    legend_below(figure, axes[0])
    wishes.save(figure, "configurations.png")


def compare(wishes: Wishes, asked: dict[str, Any]) -> dict[str, Any]:
    """The best layout and the rule of thumb's, and what either costs to find."""
    place = "ray" if wishes.ray_address else "serial"
    where = {"topology": asked["topology"], "workload": asked["workload"]}
    question = LayoutQuestion(
        **where,
        hosts=(asked["hosts"],),
        overrides=tuple(asked.get("fixed", ())),
        work=asked["work"],
        top=1,
        samples=2,
    )
    began = time.process_time()
    [ranking] = search(question, executor=place, ray_address=wishes.ray_address)
    seconds = time.process_time() - began
    rule = predict(
        Scenario(**where, hosts=asked["hosts"], overrides=tuple(asked["rule"]), samples=2),
        executor=place,
        ray_address=wishes.ray_address,
    )
    best_s = ranking.best.time_ns / 1e9
    layouts = ranking.tally.considered - ranking.tally.too_large
    return {
        "rule_s": rule.iteration_ns / 1e9,
        "found_s": best_s,
        "found": dict(ranking.best.candidate.overrides),
        "layouts_that_fit": layouts,
        "search_processor_s": seconds,
        "gpu_hours_to_try_all": layouts * TRIED_ITERATIONS * best_s * ranking.rank_count / 3600,
    }


def choose_among_measured(fewest: int) -> dict[str, Any]:
    """Of runs that differ in layout alone: the measured time of who chooses how, over the best."""
    stored = json.loads((EXPERIMENTS / "runs_scoreboard" / "results.json").read_text())
    times = stored["core_transformer.csv"]["rows"]
    groups = defaultdict(list)
    for row in load_runs(MEASURED / "core_transformer.csv").rows:
        if str(row.name) in times:
            words = ("model", "framework", "device", "n_gpus", "gbs", "seq_len")
            groups[tuple(row.text(word) for word in words)].append(row)
    found = {}
    for key, rows in groups.items():
        if len({layout_of(row) for row in rows}) < fewest:
            continue
        measured = np.array([times[str(row.name)][0] for row in rows])
        predicted = np.array([times[str(row.name)][1] for row in rows])
        chosen = measured[int(np.argmin(predicted))]
        rule = measured[min(range(len(rows)), key=lambda place: rule_of_thumb(rows[place]))]
        name = f"{key[0]}, {key[3]} GPUs ({len(rows)})"
        found[name] = {
            "layouts": len(rows),
            "predicted": chosen / measured.min(),
            "rule": rule / measured.min(),
            "mean": float(measured.mean() / measured.min()),
        }
    within = [one["predicted"] <= 1.1 for one in found.values()]
    return {"groups": found, "within_a_tenth_pct": 100 * float(np.mean(within)) if within else None}


def layout_of(row: RunRow) -> tuple[str, ...]:
    """What makes two runs differ."""
    return tuple(row.text(word) for word in ("tp", "pp", "mbs", "data_sharding", "recompute"))


def rule_of_thumb(row: RunRow) -> tuple[int, int, int]:
    """Tensor parallelism up to a host, then few stages, then large micro-batches; least first."""
    return (-min(row.value("tp") or 1, 8), row.value("pp") or 1, -(row.value("mbs") or 1))


if __name__ == "__main__":
    main()
