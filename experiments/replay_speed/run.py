"""How fast one job is replayed, against other simulators on the same graph.

python experiments/replay_speed/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import json
import subprocess
import sys

from experiments.figures import (
    BLUE,
    COLOURS,
    EXPERIMENTS,
    MARKERS,
    legend_below,
    new_figure,
    plain_ticks,
    read_wishes,
)


def main() -> None:
    """Measure in processes of their own, by processor time, so that other work does not count."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    found = {}
    for ranks in scenario["ranks"]:
        words = [sys.executable, "-m", "tests.benchmarks.measure_replay", str(ranks), "distinct"]
        done = subprocess.run(
            words, cwd=EXPERIMENTS.parent, check=True, capture_output=True, text=True
        )
        found[ranks] = json.loads(done.stdout)
    figure, axes = new_figure(height=2.2)
    speeds = {ranks: one["first_tasks_per_s"] for ranks, one in found.items()}
    axes.plot(speeds.keys(), speeds.values(), "o-", color=BLUE, label="perfmodel, one core")
    for number, (name, points) in enumerate(scenario["others"].items(), 1):
        axes.plot(points.keys(), points.values(), f"{MARKERS[number]}--", color=COLOURS[number],
                  label=name)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="tasks replayed a second")
    plain_ticks(axes.xaxis, [8, 64, 512, 4096])
    legend_below(figure, axes, 2)
    wishes.save(figure, "speed.png")
    wishes.write_results({"perfmodel": found, "others": scenario["others"]})


if __name__ == "__main__":
    main()
