"""Iteration times of single-GPU DLRMs: ours, the paper's, and the sum of kernel times."""

import csv
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure

from perfmodel.costs.pricing import price_job
from perfmodel.engine.breakdown import Window, break_down
from perfmodel.engine.history import History
from perfmodel.engine.replay import replay
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Copy, EmbeddingOp, Gemm, HostPart
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack, canonical_operator
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.jobs import build_job
from topologies import build_cluster, load_topology

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data")) / "paper"
FAMILIES = {"products": "gemm", "memory-bound": "memory", "embedding": "embedding"}
PARTS = {
    "t2": HostPart.BEFORE_LAUNCH, "t3": HostPart.AFTER_LAUNCH, "t5": HostPart.BETWEEN_LAUNCHES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """One isolated iteration."""

    iteration_ms: float
    active_ms: float
    kernel_sum_ms: float
    family_ms: Mapping[str, float]


def read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def own_stack(stack: SoftwareStack, model: str, batch: int) -> SoftwareStack:
    """*stack* with the host times that were measured for this very run."""
    operators = {name: dict(parts) for name, parts in stack.host.operators.items()}
    between = stack.host.between_operators_ns
    for row in read("overheads_final_figure_digitized.csv"):
        if (row["model"], row["batch"]) != (model, str(batch)):
            continue
        time_ns = 1e3 * float(row["mean_us"])
        if row["type"] == "t1":
            between = time_ns
        else:
            parts = operators.setdefault(canonical_operator(row["op"]), {})
            parts[PARTS[row["type"]]] = time_ns
    host = replace(stack.host, operators=operators, between_operators_ns=between)
    return replace(stack, host=host)


def predict(job: JobGraph, stack: SoftwareStack) -> Answer:
    """Price and replay *job*."""
    cluster = build_cluster(load_topology(HERE / "machine.yaml"), ranks_per_host=1)
    priced = price_job(job, cluster=cluster, stack=stack)
    program = job.program_of(0)
    values_ns = priced.durations.values_ns[:, 0]
    family: dict[str, float] = defaultdict(float)
    for number, lane in enumerate(program.lanes):
        rows = slice(program.lane_start[number], program.lane_start[number + 1])
        if lane.kind is LaneKind.HOST:
            continue
        for op, time_ns in zip(program.op[rows], values_ns[rows], strict=True):
            family[family_of(job.ops[op])] += float(time_ns) / 1e6
    answer = replay(job, priced.durations, iterations=1)
    end_ns = int(answer.iteration_end_ns[0, 0])
    parts = break_down(History(job, priced.durations, answer), 0, Window(0, end_ns))
    active_ns = parts.compute_ns + parts.exposed_copy_ns
    return Answer(end_ns / 1e6, active_ns / 1e6, sum(family.values()), family)


def family_of(op: object) -> str:
    kinds = {Gemm: "products", EmbeddingOp: "embedding", Copy: "copies"}
    return kinds.get(type(op), "memory-bound")


def recorded_family_ms(trace: str) -> dict[str, float]:
    """Time an iteration of a recording spends in kernels, by family."""
    totals: dict[str, float] = defaultdict(float)
    for row in read("kernel_instances_V100_traces.csv"):
        if row["trace"] == trace:
            totals[recorded_family(row["kernel"])] += float(row["time_us"]) / 1e3 / 10
    return totals


def recorded_family(kernel: str) -> str:
    if "embedding" in kernel:
        return "embedding"
    if "gem" in kernel or "splitK" in kernel:
        return "products"
    return "copies" if "HtoD" in kernel or "DtoH" in kernel else "memory-bound"


def fit_ratios(scenario: dict) -> dict[str, float]:
    """How much longer recorded kernels take than priced ones, by family, in both recordings."""
    stack = replace(load_stack(scenario["stack"]), kernel_time_ratio={})
    logs: dict[str, list[float]] = defaultdict(list)
    for workload, trace in scenario["recorded"].items():
        spec = load_workload(workload, [*scenario["overrides"], "batch=2048"])
        job = build_job(spec, rank_count=1, ranks_per_host=1, stack=stack)
        priced, recorded = predict(job, stack).family_ms, recorded_family_ms(trace)
        for name, family in FAMILIES.items():
            logs[family].append(math.log(recorded[name] / priced[name]))
    return {family: round(math.exp(np.mean(values)), 3) for family, values in logs.items()}


def error_pct(predicted: float, measured: float) -> float:
    return round(100 * (predicted / measured - 1), 1)


def run_case(scenario: dict, case: dict, batch: int, measured: dict[str, str]) -> dict:
    spec = load_workload(case["workload"], [*scenario["overrides"], f"batch={batch}"])
    shared = load_stack(scenario["stack"])
    job = build_job(spec, rank_count=1, ranks_per_host=1, stack=shared)
    own, pooled = predict(job, own_stack(shared, case["model"], batch)), predict(job, shared)
    current = load_stack(scenario["current_stack"])
    newer = predict(build_job(spec, rank_count=1, ranks_per_host=1, stack=current), current)
    time_ms = float(measured["measured_iter_ms"])
    result = {
        "predicted_ms": round(own.iteration_ms, 2),
        "error_pct": error_pct(own.iteration_ms, time_ms),
        "error_shared_overheads_pct": error_pct(pooled.iteration_ms, time_ms),
        "error_sum_of_kernels_pct": error_pct(own.kernel_sum_ms, time_ms),
        "error_without_habits_pct": error_pct(newer.iteration_ms, time_ms),
        "gpu_active_share_pct": round(100 * own.active_ms / own.iteration_ms, 1),
        "paper_error_pct": measured["e2e_err_pct"],
        "paper_error_shared_overheads_pct": measured["shared_overhead_e2e_err_pct"],
        "paper_error_sum_of_kernels_pct": measured["kernel_only_err_pct"],
    }
    if batch == 2048 and case["workload"] in scenario["recorded"]:
        recorded = recorded_family_ms(scenario["recorded"][case["workload"]])
        result["kernel_time_error_pct"] = {
            name: error_pct(own.family_ms[name], recorded[name]) for name in sorted(recorded)
        } | {"all": error_pct(own.kernel_sum_ms, sum(recorded.values()))}
    return result


def draw(results: dict[str, dict]) -> Figure:
    series = {
        "perfmodel, host times of this run": ("error_pct", "#0b6e4f"),
        "perfmodel, host times shared by all runs": ("error_shared_overheads_pct", "#7fc8a9"),
        "paper, host times of this run": ("paper_error_pct", "#c7522a"),
        "sum of kernel times (naive)": ("error_sum_of_kernels_pct", "#9a9a9a"),
    }
    figure = Figure(figsize=(9.5, 5.2), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(results))
    for number, (label, (key, colour)) in enumerate(series.items()):
        heights = [float(str(result[key]).strip("~<")) for result in results.values()]
        bars = axes.bar(places + 0.2 * (number - 1.5), heights, 0.19, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    axes.axhspan(-10, 10, color="#dfeee8", zorder=0)
    axes.axhline(0, color="black", linewidth=0.8)
    names = [
        f"{name}\nGPU active {result['gpu_active_share_pct']:.0f} %"
        for name, result in results.items()
    ]
    axes.set_xticks(places, names, fontsize=8)
    axes.set_ylabel("error of the iteration time (%)")
    axes.set_title(
        "DLRM training on one V100, predicted against measured (band: 10 %)", fontsize=11
    )
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    measured = {
        (row["model"], int(row["batch"])): row for row in read("e2e_single_gpu_final_digitized.csv")
    }
    results = {
        f"{case['workload']} B={batch}": run_case(
            scenario, case, batch, measured[case["model"], batch]
        )
        for case in scenario["cases"]
        for batch in case["batches"]
    }
    draw(results).savefig(HERE / "errors.png", dpi=110)
    ours = {
        name: {key: value for key, value in result.items() if not key.startswith("paper")}
        for name, result in results.items()
    }
    (HERE / "results.json").write_text(json.dumps(ours, indent=1) + "\n", encoding="utf-8")
    for name, result in results.items():
        print(f"{name}: {json.dumps(result)}")
    print(f"kernel_time_ratio by the recordings: {json.dumps(fit_ratios(scenario))}")


if __name__ == "__main__":
    main()
