"""The single-GPU study: iteration times, active and idle time, operators and host times T1 to T5.

python experiments/paper_single_gpu/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PAGE,
    SKY,
    Wishes,
    legend_below,
    new_figure,
    plot_bars,
    read_measured,
    read_wishes,
)
from perfmodel.costs.pricing import price_job
from perfmodel.engine.history import History
from perfmodel.engine.reasons import Window, break_down
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


def own_stack(stack: SoftwareStack, model: str, batch: int) -> SoftwareStack:
    """*stack* with the host times that were measured for this very run."""
    operators = {name: dict(parts) for name, parts in stack.host.operators.items()}
    between = stack.host.between_operators_ns
    for row in read_measured("paper/overheads_final_figure_digitized.csv"):
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
    for row in read_measured("paper/kernels_V100.csv"):
        if row["trace"] == trace:
            totals[recorded_family(row["kernel"])] += float(row["total_us"]) / 1e3 / 10
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
        "measured_ms": time_ms,
        "gpu_active_share_pct": round(100 * own.active_ms / own.iteration_ms, 1),
        "family_share_pct": {
            name: 100 * own.family_ms.get(name, 0.0) / own.iteration_ms
            for name in ("products", "embedding", "memory-bound", "copies")
        },
        "paper_error_pct": measured["e2e_err_pct"],
        "paper_error_shared_overheads_pct": measured["shared_overhead_e2e_err_pct"],
        "paper_error_sum_of_kernels_pct": measured["kernel_only_err_pct"],
    }
    if batch == 2048 and case["workload"] in scenario["recorded"]:
        recorded = recorded_family_ms(scenario["recorded"][case["workload"]])
        result["recorded_active_ms"] = sum(recorded.values())
        result["kernel_time_error_pct"] = {
            name: error_pct(own.family_ms[name], recorded[name]) for name in sorted(recorded)
        } | {"all": error_pct(own.kernel_sum_ms, sum(recorded.values()))}
    return result


def draw_errors(wishes: Wishes, results: dict[str, dict[str, Any]]) -> None:
    """Errors of the iteration: ours, the paper's, and the sum of kernels."""
    series = {
        "perfmodel, host times of this run": "error_pct",
        "perfmodel, host times shared by all runs": "error_shared_overheads_pct",
        "paper, host times of this run": "paper_error_pct",
        "sum of kernel times (naive)": "error_sum_of_kernels_pct",
    }
    figure, axes = new_figure(width=PAGE, height=2.4)
    axes.axhspan(-10, 10, color=GREY, alpha=0.2, lw=0)
    bars = {
        label: [float(str(result[key]).strip("~<")) for result in results.values()]
        for label, key in series.items()
    }
    plot_bars(axes, list(results), bars, values="%.0f")
    axes.axhline(0, color=BLACK, linewidth=0.6)
    axes.set_ylabel("error of the iteration (%)")
    legend_below(figure, axes, 2)
    wishes.save(figure, "errors.png")


def draw_active(wishes: Wishes, results: dict[str, dict[str, Any]]) -> None:
    """GPU active and idle time of predicted iterations, and what active time goes into."""
    families = ("products", "embedding", "memory-bound", "copies")
    figure, axes = new_figure(height=1.9)
    bottom = np.zeros(len(results))
    places = np.arange(len(results))
    for family, colour in zip(families, (BLUE, ORANGE, SKY, BLACK), strict=True):
        share = np.array([one["family_share_pct"][family] for one in results.values()])
        axes.bar(places, share, bottom=bottom, color=colour, label=family)
        bottom += share
    axes.bar(places, 100 - bottom, bottom=bottom, color="#E6E6E6", label="idle")
    measured = {name: one.get("recorded_active_ms") for name, one in results.items()}
    known = [place for place, value in enumerate(measured.values()) if value is not None]
    shares = [
        100 * one["recorded_active_ms"] / one["measured_ms"]
        for one in results.values()
        if one.get("recorded_active_ms") is not None
    ]
    axes.plot(known, shares, "D", color="white", mec=BLACK, label="active, recorded")
    names = [name.replace("dlrm_", "").replace(" B=", "\n") for name in results]
    axes.set_xticks(places, names)
    axes.set(ylabel="share of the iteration (%)", ylim=(0, 105))
    axes.grid(visible=False, axis="x")
    legend_below(figure, axes)
    wishes.save(figure, "active.png")


def draw_operators(wishes: Wishes, scenario: dict[str, Any]) -> dict[str, Any]:
    """Device time by operator as recorded on a V100."""
    found: dict[str, dict[str, float]] = {}
    for row in read_measured("paper/device_time_V100.csv"):
        if row["trace"] in scenario["operators_of"] and row["depth"] == "1":
            times = found.setdefault(row["trace"], defaultdict(float))
            times[row["path"].split(" > ")[-1]] += float(row["time_us"]) / 1e3
    total: dict[str, float] = defaultdict(float)
    for times in found.values():
        for name, time in times.items():
            total[name] += time
    names = sorted(total, key=lambda name: -total[name])[: scenario["operators"]]
    figure, axes = new_figure(height=2.4)
    series = {
        trace.split("_")[1]: [times.get(name, 0.0) for name in names]
        for trace, times in found.items()
    }
    plot_bars(axes, names, series, horizontal=True)
    axes.tick_params(axis="y", labelsize=5.5)
    axes.set_xlabel("recorded device time (ms)")
    legend_below(figure, axes)
    wishes.save(figure, "operators.png")
    return {trace: {name: times[name] for name in names} for trace, times in found.items()}


def draw_host_times(wishes: Wishes, scenario: dict[str, Any]) -> dict[str, Any]:
    """T1, T2, T3 and T5 by operator: measured means over workloads, and what the stack holds."""
    stack = load_stack(scenario["stack"])
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_measured("paper/overheads_final_figure_digitized.csv"):
        seen[row["type"]][row["op"] or "between operators"].append(float(row["mean_us"]))
    figure, axes = new_figure(2, 2, width=PAGE, height=3.6)
    result = {}
    for axis, (kind, operators) in zip(axes.flat, sorted(seen.items()), strict=True):
        names = sorted(operators, key=lambda name, of=operators: -float(np.mean(of[name])))
        used = [host_time_us(stack, kind, name) for name in names]
        measured = [float(np.mean(operators[name])) for name in names]
        plot_bars(axis, names, {"measured": measured, "stack": used}, horizontal=True)
        spread = [(min(operators[name]), max(operators[name])) for name in names]
        for place, (low, high) in enumerate(spread):
            axis.plot([low, high], [place - 0.2] * 2, color=GREY, linewidth=1.2)
        axis.tick_params(axis="y", labelsize=5)
        axis.set_title(kind.upper())
        result[kind] = dict(zip(names, zip(measured, used, strict=True), strict=True))
    for axis in axes[1]:
        axis.set_xlabel("us")
    legend_below(figure, axes[0][0])
    wishes.save(figure, "host_times.png")
    return result


def host_time_us(stack: SoftwareStack, kind: str, operator: str) -> float:
    """What *stack* takes for a kind of host time of *operator*."""
    if kind == "t1":
        return stack.host.between_operators_ns / 1e3
    parts = stack.host.operators.get(canonical_operator(operator), {})
    return parts.get(PARTS[kind], float("nan")) / 1e3


def main() -> None:
    """Predict the cases, draw the four pictures of the study."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    measured = {
        (row["model"], int(row["batch"])): row
        for row in read_measured("paper/e2e_single_gpu_final_digitized.csv")
    }
    results = {
        f"{case['workload']} B={batch}": run_case(
            scenario, case, batch, measured[case["model"], batch]
        )
        for case in scenario["cases"]
        for batch in case["batches"]
    }
    draw_errors(wishes, results)
    draw_active(wishes, results)
    wishes.write_results(
        {
            "cases": results,
            "operators_ms": draw_operators(wishes, scenario),
            "host_times_us": draw_host_times(wishes, scenario),
            "kernel_time_ratio_by_the_recordings": fit_ratios(scenario),
        }
    )


if __name__ == "__main__":
    main()
