"""Recorded and replayed timelines of every recorded job with several ranks."""

import json
import os
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure

from perfmodel.recordings.documents import self_replay_document
from perfmodel.recordings.hold_back import HoldRule, replay_held
from perfmodel.recordings.importing import import_job
from perfmodel.recordings.self_replay import compare
from traces.job_trace import load_job_trace

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data"))
KEPT = (
    "iteration_error_pct", "worst_error_pct", "collective_start_median_error_us",
    "unexplained_delay_pct", "critical_path_on_host_pct", "rounds", "unsettled",
)  # fmt: skip


def main() -> None:
    names = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))["recordings"]
    figure = Figure(figsize=(10, 1.5 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1)
    results = {}
    for axis, name in zip(axes, names, strict=True):
        job = import_job(load_job_trace(DATA / "traces" / name))
        held = replay_held(job.graph, job.durations(), HoldRule(job.hold_ratio, job.can_be_held))
        document = self_replay_document(compare(job, held))
        periods = [f"{period['error_pct']:+.2f} %" for period in document["periods"]]
        results[name] = {key: document[key] for key in KEPT} | {"period_errors": periods}
        draw(axis, job, held, name.split("/")[-1], document["worst_error_pct"])
    axes[-1].set_xlabel("ms")
    figure.savefig(HERE / "timelines.png", dpi=130)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def draw(axis, job, held, name, worst) -> None:
    """Device work of the first rank: recorded above, replayed below."""
    program, end = job.graph.program_of(0), int(job.rank_rows()[1])
    lanes = program.task_lanes()
    colours = {"compute": "#1b9e77", "communication": "#e7298a", "copy": "#7570b3"}
    recorded = (job.recorded_start_ns[:end], job.recorded_end_ns[:end])
    for row, (start_ns, end_ns) in enumerate([(held.start_ns[:end], held.end_ns[:end]), recorded]):
        for number, lane in enumerate(program.lanes):
            if lane.kind.is_device:
                chosen = np.flatnonzero(lanes == number)
                spans = np.column_stack([start_ns[chosen], (end_ns - start_ns)[chosen]]) / 1e6
                height = (row + (0.5 if lane.kind.value == "communication" else 0.05), 0.4)
                axis.broken_barh(spans.tolist(), height, color=colours[lane.kind.value])
    axis.set_yticks([0.5, 1.5], ["replayed", "recorded"], fontsize=7)
    axis.set_title(f"{name}: rank 0, worst period {worst:.2f} % off", fontsize=8, loc="left")


if __name__ == "__main__":
    main()
