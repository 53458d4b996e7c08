"""Calibrate this CPU, predict training steps on 1 and 2 gloo ranks, train for real, compare."""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure

from perfmodel import api
from perfmodel.calibration.measure.command import MeasuredMachine, MeasureRequest, measure_machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from training import measure_steps  # noqa: E402  beside this file, which is no package


def run_round(scenario: dict, folder: Path) -> tuple[dict[str, dict], MeasuredMachine]:
    """Every case predicted and measured once, right after the machine was."""
    request = MeasureRequest("cpu", folder / "machine.yaml", scenario["ranks"], scenario["samples"])
    machine = measure_machine(request)
    results = {}
    for case in scenario["cases"]:
        for ranks in range(1, scenario["ranks"] + 1):
            batch = case["batch_a_rank"] * ranks
            question = api.Scenario(
                topology=str(machine.topology),
                workload=case["workload"],
                overrides=(f"batch={batch}",),
                hosts=ranks,
                stack=machine.stack,
            )
            prediction = api.predict(question, executor="serial")
            timing = measure_steps(
                case["workload"], batch=batch, ranks=ranks, steps=scenario["steps"]
            )
            noun = "rank" if ranks == 1 else "ranks"
            results[f"{case['workload']}, {ranks} {noun}"] = {
                "predicted_ms": prediction.period_ns / 1e6,
                "measured_ms": timing.duration_ns / 1e6,
                "measured_wall_ms": timing.wall_ns / 1e6,
                "spread_pct": 100 * timing.spread_ratio,
                "lost_pct": 100 * timing.lost_ratio,
            }
    return results, machine


def sum_up(rounds: list[dict[str, dict]]) -> dict[str, dict]:
    """Medians over rounds, and the error of the median prediction."""
    summary = {}
    for name in rounds[0]:
        medians = {
            key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]
        }
        errors = [
            100 * (one[name]["predicted_ms"] / one[name]["measured_ms"] - 1) for one in rounds
        ]
        error = 100 * (medians["predicted_ms"] / medians["measured_ms"] - 1)
        summary[name] = {key: round(value, 1) for key, value in medians.items()} | {
            "error_pct": round(error, 1),
            "error_of_rounds_pct": [round(value, 1) for value in errors],
        }
    return summary


BARS = {
    "predicted_ms": ("predicted", "#0b6e4f"),
    "measured_ms": ("measured, time without a core taken off", "#c7522a"),
    "measured_wall_ms": ("measured, wall clock", "#e6b8a2"),
}


def draw(summary: dict[str, dict]) -> Figure:
    """Predicted beside measured, in one picture."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(summary))
    for shift, (key, (label, colour)) in zip((-0.27, 0.0, 0.27), BARS.items(), strict=True):
        heights = [result[key] for result in summary.values()]
        bars = axes.bar(places + shift, heights, 0.26, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
    names = [f"{name}\nerror {result['error_pct']:+.1f} %" for name, result in summary.items()]
    axes.set_xticks(places, [name.replace(", ", ",\n") for name in names], fontsize=8)
    axes.set_ylabel("training step (ms)")
    axes.set_title("Training steps on this CPU, one thread a rank, gloo", fontsize=11)
    axes.legend(fontsize=9)
    return figure


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    rounds, machines = [], []
    for number in range(scenario["rounds"]):
        with tempfile.TemporaryDirectory() as folder:
            results, machine = run_round(scenario, Path(folder))
        rounds.append(results)
        machines.append(machine)
        print(f"round {number + 1}: {json.dumps(sum_up([results]))}", flush=True)
    summary = sum_up(rounds)
    families = machines[0].errors
    document = {
        "cases": summary,
        "kernels_median_error_pct": {
            name: round(statistics.median(one.errors[name].median_pct for one in machines), 1)
            for name in families
        },
        "cores": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "core_lost_pct": round(100 * statistics.median(one.lost_ratio for one in machines), 1),
    }
    draw(summary).savefig(HERE / "steps.png", dpi=110)
    (HERE / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
