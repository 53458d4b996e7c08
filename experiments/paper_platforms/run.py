"""The paper's multi-GPU workloads on its two platforms: times, naive sums, streams, tables.

python experiments/paper_platforms/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from embeddings.sharders import build_named_plan
from experiments.figures import (
    BLUE,
    EXPERIMENTS,
    GREY,
    HATCHES,
    PAGE,
    Wishes,
    legend_below,
    new_figure,
    plot_parts,
    read_measured,
    read_wishes,
)
from experiments.sharding_plans.tasks import DrawnTask, build_model, draw_tasks
from experiments.streams import Iteration, replay_iteration
from perfmodel.execution import Executor
from perfmodel.prediction.plans.default_plan import build_task
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.jobs import build_job
from topologies import build_cluster, load_topology

RECORDED = {
    "dlrm_two_sleeps": "TorchRec DLRM, recorded, 4 x V100",
    "gpt_tensor_parallel": "GPT, tensor parallel, recorded, 2 x V100",
}


def main() -> None:
    """Replay everything, draw three pictures, write the tables."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    with wishes.executor() as executor:
        rows = [
            *dlrm_rows(scenario, executor),
            *nlp_rows(wishes, scenario, executor),
        ]
        streams = {
            name: find_streams(wishes, scenario, asked, executor)
            for name, asked in scenario["streams"].items()
        }
    draw_times(wishes, scenario["platforms"], [row for row in rows if "year" in row], "dlrm.png")
    draw_times(wishes, scenario["platforms"], [row for row in rows if "model" in row], "nlp.png")
    draw_streams(wishes, streams)
    wishes.write_results(rows)
    wishes.write_text(tables(scenario, rows), "tables.md")


def replay_dlrm(task: DrawnTask, sharder: str, batch: int, executor: Executor) -> Iteration:
    """A task at *batch*, its tables placed by *sharder*."""
    spec = build_model(task.tables).model_copy(update={"batch": batch})
    plan = build_named_plan(sharder, build_task(spec, task.tables, task.cluster))
    ranks, per_host = task.cluster.rank_count, task.cluster.ranks_per_host
    job = build_job(spec, rank_count=ranks, ranks_per_host=per_host, plan=plan)
    return replay_iteration(job, task.cluster, load_stack(spec.stack), executor)


def replay_nlp(
    wishes: Wishes, platform: str, word: str, batch: int, stack_name: str, executor: Executor
) -> Iteration:
    """A Transformer of the paper with *batch* sequences a GPU."""
    cluster, stack = build_cluster(load_topology(platform)), load_stack(stack_name)
    count = cluster.rank_count
    changes = [f"batch={batch * count}", f"parallel.micro_batch={batch}", "parallel.tp=1"]
    spec = load_workload(str(wishes.folder / f"{word}.yaml"), [*changes, "parallel.pp=1"])
    job = build_job(spec, rank_count=count, ranks_per_host=count, stack=stack)
    return replay_iteration(job, cluster, stack, executor)


def dlrm_rows(scenario: dict[str, Any], executor: Executor) -> Iterator[dict[str, Any]]:
    """All tasks at all batches."""
    asked = scenario["dlrm"]
    for task in draw_tasks():
        if task.number >= asked["tasks"]:
            continue
        for batch in asked["batches"]:
            found = replay_dlrm(task, asked["sharder"], batch, executor)
            times = {"predicted_ms": found.time_ms, "naive_ms": found.naive_ms}
            yield {**task.labels, "batch": batch, **times}


def nlp_rows(
    wishes: Wishes, scenario: dict[str, Any], executor: Executor
) -> Iterator[dict[str, Any]]:
    """All Transformers at all batches."""
    for platform in scenario["platforms"]:
        for word, batches in scenario["nlp"].items():
            for batch in batches:
                found = replay_nlp(
                    wishes, platform, word, batch, scenario["nlp_stack"], executor
                )  # fmt: skip
                times = {"predicted_ms": found.time_ms, "naive_ms": found.naive_ms}
                yield {"platform": platform, "model": word, "batch": batch, **times}


def find_streams(
    wishes: Wishes, scenario: dict[str, Any], asked: list[Any], executor: Executor
) -> Iteration:
    """A task of a year, or a model at a batch, on the last platform."""
    platform = list(scenario["platforms"])[-1]
    first, number = asked
    for task in draw_tasks():
        if (task.platform, task.year, task.number) == (platform, first, number):
            return replay_dlrm(task, scenario["dlrm"]["sharder"], 4096, executor)
    return replay_nlp(wishes, platform, first, number, scenario["nlp_stack"], executor)


def draw_times(
    wishes: Wishes, platforms: dict[str, str], rows: list[dict[str, Any]], name: str
) -> None:
    """Predicted time as a bar, and how far the naive sum of the longest stream is below it."""
    figure, axes = new_figure(2, len(platforms), width=PAGE, height=2.8, sharex="col")
    for (above, below), (platform, title) in zip(axes.T, platforms.items(), strict=True):
        mine = [row for row in rows if row["platform"] == platform]
        places = np.arange(len(mine))
        times = np.array([row["predicted_ms"] for row in mine])
        naive = np.array([row["naive_ms"] for row in mine])
        above.bar(places, times, color=BLUE, label="predicted")
        above.bar(places, naive, color=GREY, width=0.4, label="longest stream alone (naive)")
        above.set_title(title)
        below.bar(places, 100 * (naive / times - 1), color=GREY, hatch=HATCHES[1], ec="white", lw=0)
        if "model" in mine[0]:
            labels = [f"{row['model'].split('_')[0]} {row['batch']}" for row in mine]
            below.set_xticks(places, labels, rotation=90)
        else:
            below.set_xticks([])
            below.set_xlabel("20 tasks, each at all batches; heavy tasks first of each year")
        for axis in (above, below):
            axis.grid(visible=False, axis="x")
    axes[0][0].set_ylabel("iteration (ms)")
    axes[1][0].set_ylabel("naive against\npredicted (%)")
    legend_below(figure, axes[0][0])
    wishes.save(figure, name)


def draw_streams(wishes: Wishes, streams: dict[str, Iteration]) -> None:
    """Shares of every stream of every rank, predicted, with recorded jobs."""
    recorded = json.loads(
        (EXPERIMENTS / "measured" / "recordings" / "streams.json").read_text(encoding="utf-8")
    )
    panels = {
        f"{name}: {found.time_ms:.1f} ms, predicted, 4 x A100": [
            (f"rank {one.rank} {one.stream}", one.part_ms) for one in found.streams
        ]
        for name, found in streams.items()
    }
    for name, title in RECORDED.items():
        panels[title] = [
            (f"rank {one['rank']} stream {one['stream']}", one["parts_ms"])
            for one in busiest(recorded[name])
        ]
    heights = [len(lines) for lines in panels.values()]
    figure, axes = new_figure(len(panels), height=0.1 * sum(heights) + 0.33 * len(panels) + 0.6,
                              height_ratios=heights)  # fmt: skip
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        shares = [
            {part: 100 * time / sum(times.values()) for part, time in times.items()}
            for _, times in lines
        ]
        plot_parts(axis, [name for name, _ in lines], shares)
        axis.set_title(title, loc="left")
        axis.tick_params(axis="y", labelsize=5)
        axis.set_xlim(0, 100)
    axes[-1].set_xlabel("share of the iteration or of the recorded window (%)")
    legend_below(figure, axes[0])
    wishes.save(figure, "streams.png")


def busiest(streams: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The two streams of every rank that idle least."""
    by_idle = sorted(streams, key=lambda one: (one["rank"], one["parts_ms"]["idle"]))
    return [
        one
        for place, one in enumerate(by_idle)
        if place < 2 or by_idle[place - 2]["rank"] != one["rank"]
    ]


def tables(scenario: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """Platforms, kernel errors and end-to-end errors as the paper has them, with ours."""
    yield from ("# Platforms", "", "| | GPUs | fp32 TFLOP/s | memory | link of a GPU |")
    yield "|---|---|---|---|---|"
    for platform, title in scenario["platforms"].items():
        topology = load_topology(platform)
        device = topology.device
        rate = device.memory_bandwidth_bytes_per_s / 1e9
        memory = f"{device.memory_bytes / 2**30:.0f} GiB, {rate:.0f} GB/s"
        out = sum(link.bandwidth_bytes_per_s for link in topology.links if link.source == "gpu:0")
        yield (
            f"| {title} | {device.name} | {device.vector_flops / 1e12:.1f} | {memory} "
            f"| {out / 1e9:.0f} GB/s out |"
        )
    yield from ("", "# What the paper reports, as other sources quote it", "")
    yield from ("| what | where | value |", "|---|---|--:|")
    for row in read_measured("paper/multi_gpu_results_secondary_source.csv"):
        yield f"| {row['what']} | {row['scope']} | {row['value']} {row['unit']} |"
    for row in read_measured("paper/e2e_single_gpu_summary.csv"):
        spread = f"{row['geomean_pct']} % ({row['min_pct']} to {row['max_pct']})"
        yield f"| {row['metric']}, one GPU, {row['version']} | {row['scope']} | {spread} |"
    yield from ("", "# What is predicted here (no time of these tasks is public)", "")
    yield from ("| workloads | platform | iterations | naive sum below it |", "|---|---|--:|--:|")
    for platform, title in scenario["platforms"].items():
        for name, key in (("DLRM tasks", "year"), ("Transformers", "model")):
            mine = [row for row in rows if row["platform"] == platform and key in row]
            times = [row["predicted_ms"] for row in mine]
            below = [100 * (1 - row["naive_ms"] / row["predicted_ms"]) for row in mine]
            yield (
                f"| {name}, {len(mine)} | {title} | {min(times):.1f} to {max(times):.1f} ms "
                f"| {min(below):.0f} to {max(below):.0f} % |"
            )


if __name__ == "__main__":
    main()
