"""Iteration times of the paper's random DLRMs, beside the naive sum of kernels: prediction only.

python -m experiments.dlrm_tasks.run      # needs ../shared/data for the reuse histograms
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from embeddings.sharders import build_named_plan
from experiments.sharding_plans.tasks import PLATFORMS, build_model, draw_tasks
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import replay
from perfmodel.graph.program import LaneKind
from perfmodel.planning.question import build_task
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.dlrm.job import build_dlrm_job

HERE = Path(__file__).parent
BATCHES = (512, 1024, 2048, 4096)


def main() -> None:
    """Write results.json and the picture."""
    results = [
        {**task.labels, **run_task(task.cluster, task.tables, batch)}
        for task in draw_tasks()
        for batch in BATCHES
    ]
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for platform in PLATFORMS:
        rows = [row for row in results if row["platform"] == platform]
        ratios = [row["naive_ms"] / row["predicted_ms"] for row in rows]
        times = [row["predicted_ms"] for row in rows]
        print(platform, len(rows), min(times), max(times), 100 * (min(ratios) - 1))
    _draw(results)


def run_task(cluster: Any, tables: Any, batch: int) -> dict[str, Any]:
    """Predicted isolated iteration under size_lookup_greedy, and the longest stream alone."""
    spec = build_model(tables).model_copy(update={"batch": batch})
    plan = build_named_plan("size_lookup_greedy", build_task(spec, tables, cluster))
    job = build_dlrm_job(spec, rank_count=cluster.rank_count, plan=plan)
    priced = price_job(job, cluster=cluster, stack=load_stack(spec.stack))
    end = int(replay(job, priced.durations).iteration_end_ns[0, 0])
    naive = 0
    for rank in range(job.rank_count):
        program, rows = job.program_of(rank), priced.durations.of_rank(job, rank)[:, 0]
        lanes = program.task_lanes()
        for number, lane in enumerate(program.lanes):
            if lane.kind in (LaneKind.COMPUTE, LaneKind.COMMUNICATION):
                naive = max(naive, int(rows[lanes == number].sum()))
    return {"batch": batch, "predicted_ms": end / 1e6, "naive_ms": naive / 1e6}


def _draw(results: list[dict[str, Any]]) -> None:
    figure = Figure(figsize=(12, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 1, sharex=True)
    for axis, platform in zip(axes, PLATFORMS, strict=True):
        rows = [row for row in results if row["platform"] == platform]
        places = np.arange(len(rows))
        axis.bar(places, [row["predicted_ms"] for row in rows], color="#7aa6c2", label="predicted")
        naive = [row["naive_ms"] for row in rows]
        axis.plot(places, naive, "k_", label="longest stream alone (naive)")
        axis.set_ylabel("iteration ms")
        axis.set_title(f"{platform}: 20 synthetic tasks x B 512 to 4096; prediction only")
    axes[0].legend(fontsize=8)
    axes[1].set_xlabel("task and batch size; 0-19 and 40-59 are heavy tasks of 2021 and 2022")
    figure.savefig(HERE / "times.png", dpi=110, metadata={"Software": ""})


if __name__ == "__main__":
    main()
