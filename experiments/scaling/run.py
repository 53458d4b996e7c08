"""Weak and strong scaling of Transformers up to 16,384 GPUs, and measured runs at scale.

python experiments/scaling/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.figures import (
    BLACK,
    BLUE,
    COLOURS,
    MARKERS,
    MEASURED,
    PAGE,
    Wishes,
    new_figure,
    plain_ticks,
    read_wishes,
)
from perfmodel.api import Scenario, predict
from perfmodel.extensions.measurements.validation.runs import predict_run
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from perfmodel.prediction.question import PredictOptions


def main() -> None:
    """Predict curves, predict the measured runs, draw both."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    figure, axes = new_figure(1, 3, width=PAGE, height=2.2)
    results = {
        "weak": draw_curves(axes[0], wishes, scenario["weak"]),
        "strong": draw_curves(axes[1], wishes, scenario["strong"]),
        "measured": draw_measured(axes[2]),
    }
    axes[0].set(title="weak scaling: batch grows with GPUs", ylabel="tokens/s a GPU")
    axes[0].set_ylim(0, None)
    axes[1].set(title="strong scaling: 2,048 sequences", ylabel="tokens/s", yscale="log")
    wishes.save(figure, "scaling.png")
    wishes.write_results(results)


def draw_curves(axes: Any, wishes: Wishes, curves: dict[str, Any]) -> dict[str, Any]:
    """One line a model; weak scaling by GPU, strong scaling in all."""
    found = {}
    place = "ray" if wishes.ray_address else "serial"
    for number, (name, curve) in enumerate(curves.items()):
        plain = Scenario(topology=curve["topology"], workload=curve["workload"], samples=2)
        line = {}
        for hosts in curve["hosts"]:
            ranks = 8 * hosts
            is_weak = "batch_a_gpu" in curve
            batch = round(curve["batch_a_gpu"] * ranks) if is_weak else curve["batch"]
            changes = {"batch": batch, **curve["layout"]}
            asked = replace(plain, hosts=hosts, overrides=changes)
            answer = predict(asked, executor=place, ray_address=wishes.ray_address)
            tokens_per_s = batch * curve["sequence"] / (answer.iteration_ns / 1e9)
            line[ranks] = tokens_per_s / (ranks if is_weak else 1)
        style = {"color": COLOURS[number], "marker": MARKERS[number]}
        axes.plot(line.keys(), line.values(), label=name.partition(",")[0], **style)
        if "batch" in curve:
            first = next(iter(line))
            ideal = [line[first] * ranks / first for ranks in line]
            axes.plot(line.keys(), ideal, ":", color=COLOURS[number], linewidth=0.7)
        found[name] = line
    axes.set(xscale="log", xlabel="GPUs")
    plain_ticks(axes.xaxis, [8, 64, 512, 4096, 16384])
    axes.legend(loc="upper left" if "batch" in curve else "center left")
    return found


def draw_measured(axes: Any) -> dict[str, Any]:
    """Published runs against predictions of the same configuration."""
    found = {}
    rows = load_runs(MEASURED / "runs_scaling.csv").rows
    for row in rows:
        answer = predict_run(PredictOptions(is_explained=False), row)
        found[str(row.name)] = {
            "run": f"{row.text('model')} on {row.value('n_gpus')} {row.text('device')}",
            "gpus": row.value("n_gpus"),
            "tier": row.text("tier"),
            "measured_s": row.measured_s,
            "predicted_s": answer.predicted_ns / 1e9,
            "interval_s": [answer.low_ns / 1e9, answer.high_ns / 1e9],
            "refused": answer.reason,
        }
    answered = [one for one in found.values() if not one["refused"]]
    gpus = [one["gpus"] for one in answered]
    low = [one["predicted_s"] - one["interval_s"][0] for one in answered]
    high = [one["interval_s"][1] - one["predicted_s"] for one in answered]
    predicted = [one["predicted_s"] for one in answered]
    axes.errorbar(gpus, predicted, yerr=[low, high], fmt="s", color=BLUE, elinewidth=0.7,
                  label="predicted, 90 %")  # fmt: skip
    axes.plot(gpus, [one["measured_s"] for one in answered], "o", color=BLACK, label="measured")
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="iteration (s)")
    plain_ticks(axes.xaxis, [32, 128, 512, 1536])
    plain_ticks(axes.yaxis, [2, 5, 10, 20, 50])
    axes.set_title("published runs, GPT 1.7B to 175B")
    axes.legend(loc="upper left")
    return found


if __name__ == "__main__":
    main()
