"""Calibrate this CPU, predict training steps on 1 and 2 gloo ranks, train for real, compare.

python experiments/cpu_prediction/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from experiments.figures import Wishes, legend_below, new_figure, plot_bars, read_wishes
from perfmodel import api
from perfmodel.extensions.measurements.calibration.measure import MeasuredMachine
from perfmodel.extensions.measurements.calibration.measure.machine import measure_machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from training import measure_steps  # noqa: E402  beside this file, which is no package


def run_round(scenario: dict, folder: Path) -> tuple[dict[str, dict], MeasuredMachine]:
    """Every case predicted and measured once, right after the machine was."""
    how = {name: scenario[name] for name in ("ranks", "samples")}
    machine = measure_machine("cpu", folder / "machine.yaml", **how)
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


def draw(wishes: Wishes, summary: dict[str, dict]) -> None:
    """Predicted and measured times in one picture."""
    figure, axes = new_figure(height=2.2)
    short = [name.replace("_data_parallel", "").replace("_small", "") for name in summary]
    errors = [f"{result['error_pct']:+.1f} %" for result in summary.values()]
    names = [f"{name}\n{error}" for name, error in zip(short, errors, strict=True)]
    series = {
        "predicted": [result["predicted_ms"] for result in summary.values()],
        "measured": [result["measured_ms"] for result in summary.values()],
        "wall clock": [result["measured_wall_ms"] for result in summary.values()],
    }
    plot_bars(axes, [name.replace(", ", "\n") for name in names], series, values="%.0f")
    axes.tick_params(axis="x", labelsize=5.5)
    axes.set_ylabel("training step (ms)")
    legend_below(figure, axes)
    wishes.save(figure, "steps.png")


def main() -> None:
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
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
    draw(wishes, summary)
    wishes.write_results(document)


if __name__ == "__main__":
    main()
