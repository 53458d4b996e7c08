"""DLRM-DCNv2 by sharding plan, batch, skew and number of GPUs, predicted and measured.

python experiments/dlrm_plans/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from experiments.figures import (
    BLACK,
    BLUE,
    COLOURS,
    MEASURED,
    PAGE,
    SKY,
    legend_below,
    new_figure,
    plain_ticks,
    plot_bars,
    read_measured,
    read_wishes,
)
from perfmodel.api import RankQuestion, rank
from perfmodel.extensions.measurements.validation.runs import predict_run
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from perfmodel.prediction.question import PredictOptions

Ask = Callable[..., dict[str, float]]


def main() -> None:
    """Ask about plans, batches and skew on 8 x B200, and about 4 to 128 H100."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    place = "ray" if wishes.ray_address else "serial"
    ask = partial(ask_plans, scenario, executor=place, ray_address=wishes.ray_address)
    measured = [
        row
        for row in read_measured("embeddings/b200_dlrm_dcnv2.csv")
        if row["status"] in ("ok", "caution", "reference") and row["ms_per_iteration"]
    ]
    figure, axes = new_figure(1, 4, width=PAGE, height=2.3)
    results = {
        "plans": draw_plans(axes[0], scenario, ask, measured),
        "batches": draw_batches(axes[1], scenario, ask, measured),
        "skew": draw_skew(axes[2], scenario, ask, measured),
        "gpus": draw_gpus(axes[3], scenario),
    }
    legend_below(figure, axes[0])
    wishes.save(figure, "dcnv2.png")
    wishes.write_results(results)


def ask_plans(
    scenario: dict[str, Any], sharders: tuple[str, ...], *changes: str, executor: str,
    ray_address: str | None,
) -> dict[str, float]:  # fmt: skip
    """Milliseconds an iteration by sharder."""
    question = RankQuestion(
        topology=scenario["topology"],
        workload="dlrm_dcnv2",
        overrides=changes,
        stack=scenario["stack"],
        sharders=sharders,
        samples=2,
    )
    found = rank(question, executor=executor, ray_address=ray_address)
    return {one.plan.name: one.answer.iteration_ns / 1e6 for one in found.plans}


def times(measured: list[dict[str, str]], **cells: str) -> list[float]:
    """What was measured with *cells*."""
    return [
        float(row["ms_per_iteration"])
        for row in measured
        if all(row[key] == value for key, value in cells.items())
    ]


def draw_plans(
    axes: Any, scenario: dict[str, Any], ask: Ask, measured: list[dict[str, str]]
) -> dict[str, Any]:
    """Tables in turn against the framework's own plan, data in memory."""
    plans = scenario["plans"]
    predicted = ask(tuple(plans.values()))
    found = {
        name: {
            "predicted_ms": predicted[sharder],
            "measured_ms": times(measured, plan=name, batch_global="55296", storage="tmpfs"),
        }
        for name, sharder in plans.items()
    }
    bars = {
        "measured": [float(np.median(one["measured_ms"])) for one in found.values()],
        "predicted": [one["predicted_ms"] for one in found.values()],
    }
    plot_bars(axes, [name.replace("_", " ") for name in found], bars, values="%.2f")
    axes.set(title="plan, 8 x B200", ylabel="iteration (ms)")
    return found


def draw_batches(
    axes: Any, scenario: dict[str, Any], ask: Ask, measured: list[dict[str, str]]
) -> dict[str, Any]:
    """Both plans over the global batch."""
    found: dict[str, Any] = {}
    for (name, sharder), colour in zip(scenario["plans"].items(), COLOURS, strict=False):
        predicted = {
            batch: ask((sharder,), f"batch={batch}")[sharder] for batch in scenario["batches"]
        }
        points = {
            batch: min(known)
            for batch in scenario["batches"]
            if (known := times(measured, plan=name, batch_global=str(batch), index_dist="real")
                or times(measured, plan=name, batch_global=str(batch)))
        }  # fmt: skip
        axes.plot(predicted.keys(), predicted.values(), color=colour, label=name)
        axes.plot(points.keys(), points.values(), "o", color=colour, mec=BLACK, mew=0.3)
        found[name] = {"predicted_ms": predicted, "measured_ms": points}
    axes.set(xscale="log", yscale="log", xlabel="global batch", title="batch (lines: predicted)")
    plain_ticks(axes.xaxis, [27648, 110592, 442368])
    plain_ticks(axes.yaxis, [1, 2, 5, 10, 20])
    axes.legend()
    return found


def draw_skew(
    axes: Any, scenario: dict[str, Any], ask: Ask, measured: list[dict[str, str]]
) -> dict[str, Any]:
    """Uniform indices against real ones, tables in turn."""
    sharder = scenario["plans"]["round_robin"]
    found = {}
    for name, (words, changes) in scenario["skew"].items():
        known = times(measured, plan="round_robin", src=scenario["skew_source"], section="7.5",
                      batch_global="55296", index_dist=words)  # fmt: skip
        predicted = ask((sharder,), *changes)[sharder]
        found[name] = {"predicted_ms": predicted, "measured_ms": known}
    bars = {
        "measured": [float(np.median(one["measured_ms"])) for one in found.values()],
        "predicted": [one["predicted_ms"] for one in found.values()],
    }
    plot_bars(axes, list(found), bars, values="%.2f")
    axes.set(title="indices, 8 x B200")
    return found


def draw_gpus(axes: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    """H100 by their number: measured runs and their own predictions, and a curve between."""
    rows = [
        row
        for row in load_runs(MEASURED / "runs_dcnv2.csv").rows
        if row.text("machine") in scenario["machines"] and row.measured_s
    ]
    asked = PredictOptions(is_explained=False, samples=2)
    found: dict[str, Any] = {"runs": {}, "curve_ms": {}}
    for row in rows[:: scenario["every"]]:
        answer = predict_run(asked, row)
        found["runs"][str(row.name)] = {
            "gpus": row.value("n_gpus"),
            "measured_ms": 1e3 * (row.measured_s or 0.0),
            "predicted_ms": answer.predicted_ns / 1e6,
        }
    [like] = [row for row in rows if row.name == scenario["curve_like"]]
    for hosts, batch in scenario["hosts"].items():
        changed = {"n_gpus": 8 * hosts, "n_nodes": hosts, "gbs": batch}
        cells = {**like.cells, **{key: str(value) for key, value in changed.items()}}
        answer = predict_run(asked, replace(like, cells=cells))
        found["curve_ms"][8 * hosts] = answer.predicted_ns / 1e6
    gpus = [one["gpus"] for one in found["runs"].values()]
    for key, marker, colour in (("measured_ms", "o", BLACK), ("predicted_ms", "x", BLUE)):
        axes.plot(gpus, [one[key] for one in found["runs"].values()], marker, color=colour, ms=3.5)
    axes.plot(found["curve_ms"].keys(), found["curve_ms"].values(), color=SKY)
    axes.set(xscale="log", xlabel="H100 GPUs (batch grows too)", title="scale")
    plain_ticks(axes.xaxis, [4, 8, 16, 32, 64, 128])
    axes.set_ylim(0, None)
    return found


if __name__ == "__main__":
    main()
