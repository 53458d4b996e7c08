"""Recorded and replayed timelines of recorded jobs with several ranks.

python experiments/recorded_replay/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.figures import (
    BLUE,
    GREEN,
    MEASURED,
    PAGE,
    PURPLE,
    legend_below,
    new_figure,
    read_wishes,
)
from perfmodel.extensions.recordings.self_replay import compare
from perfmodel.extensions.recordings.storage import load_recorded_job
from perfmodel.extensions.recordings.stream_holds import HoldRule, hold_ratios, replay_with_holds

COLOURS = {"compute": BLUE, "communication": PURPLE, "copy": GREEN}
KEPT = (
    "iteration_error_pct", "worst_error_pct", "rounds", "unsettled",
)  # fmt: skip


def main() -> None:
    """Replay every job of the scenario with its own durations."""
    wishes = read_wishes(__file__, __doc__)
    names = wishes.scenario()["recordings"]
    figure, axes = new_figure(len(names), width=PAGE, height=0.75 * len(names) + 0.6)
    results = {}
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        job = load_recorded_job(MEASURED / "recordings" / name)
        held = replay_with_holds(
            job.graph, job.durations(), HoldRule(hold_ratios(job.graph), job.can_be_held)
        )
        document = compare(job, held).document()
        results[name] = {key: document[key] for key in KEPT} | {
            "period_errors_pct": [period["error_pct"] for period in document["periods"]]
        }
        draw(axis, job, held)
        worst = document["worst_error_pct"]
        axis.set_title(f"{name}: rank 0, worst period {worst:.2f} % off", loc="left")
    axis.set_xlabel("ms")
    legend_below(figure, axis)
    wishes.save(figure, "timelines.png")
    wishes.write_results(results)


def draw(axis: Any, job: Any, held: Any) -> None:
    """Device work of the first rank: recorded above, replayed below."""
    program, end = job.graph.program_of(0), int(job.graph.rank_rows()[1])
    lanes = program.task_lanes()
    recorded = (job.recorded_start_ns[:end], job.recorded_end_ns[:end])
    told = set()
    for row, (start_ns, end_ns) in enumerate([(held.start_ns[:end], held.end_ns[:end]), recorded]):
        for number, lane in enumerate(program.lanes):
            if lane.kind.is_device:
                word = lane.kind.value
                chosen = np.flatnonzero(lanes == number)
                spans = np.column_stack([start_ns[chosen], (end_ns - start_ns)[chosen]]) / 1e6
                place = (row + (0.5 if word == "communication" else 0.05), 0.4)
                label = None if word in told else word
                axis.broken_barh(spans.tolist(), place, color=COLOURS[word], label=label)
                told.add(word)
    axis.set_yticks([0.5, 1.5], ["replayed", "recorded"])
    axis.grid(visible=False, axis="y")


if __name__ == "__main__":
    main()
