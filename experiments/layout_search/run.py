"""Does the layout that is predicted to be fastest run fastest? And what more GPUs and imbalance do.

python experiments/layout_search/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import Any, NamedTuple

from experiments.figures import (
    COLOURS,
    MARKERS,
    MEASURED,
    PAGE,
    Wishes,
    new_figure,
    plain_ticks,
    plot_diagonal,
    read_wishes,
)
from perfmodel.api import LayoutQuestion, Scenario, predict, search
from perfmodel.extensions.measurements.validation.runs import predict_run
from perfmodel.extensions.measurements.validation.runs_table import RunRow, load_runs
from perfmodel.prediction.question import PredictOptions

ASKED = PredictOptions(samples=2, is_explained=False)
SUSPECT = "OLD_PP_CODE_SUSPECT"
LAYOUT = (
    "tp", "pp", "vpp", "dp", "cp", "ep", "mbs", "grad_accum", "data_sharding", "recompute",
    "sequence_parallel",
)  # fmt: skip


class Run(NamedTuple):
    """A layout: how long it took, how long it was said to take, and where the rule puts it."""

    measured_s: float
    predicted_s: float
    rule: tuple[float, ...]
    is_suspect: bool


def main() -> None:
    """Score choices among measured layouts, and draw all three pictures."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    sets = predict_sets(scenario)
    results: dict[str, Any] = {
        "chosen": {kind: score(runs, scenario["near"]) for kind, runs in sets.items()},
        "front": find_front(wishes, scenario["front"]),
        "imbalance": find_imbalance(scenario["imbalance"]),
    }
    draw_order(wishes, sets)
    draw_front(wishes, results["front"])
    draw_imbalance(wishes, results["imbalance"])
    wishes.write_results(results)


def predict_sets(scenario: dict[str, Any]) -> dict[str, list[list[Run]]]:
    """Every set with its predictions; sets with runs of suspect code once more without them."""
    rows = load_runs(MEASURED / "runs_layouts.csv.gz").rows
    found: dict[str, list[list[Run]]] = {}
    for kind, rule in scenario["sets"].items():
        members = gather(rows, rule)[: scenario["most_sets"]]
        sets = [runs for one in members if len(runs := predict_all(one)) > 1]
        found[kind] = sets
        clean = [[run for run in runs if not run.is_suspect] for runs in sets]
        if clean != sets:
            found[f"{kind}, code not suspect"] = [runs for runs in clean if len(runs) > 1]
    return found


def gather(rows: tuple[RunRow, ...], rule: dict[str, Any]) -> list[list[RunRow]]:
    """Rows by set, in the order of the table."""
    sets = defaultdict(list)
    for row in rows:
        is_several = (row.value("n_nodes") or 1) > 1
        is_asked = rule["hosts"] == "any" or is_several == (rule["hosts"] == "several")
        if rule["source"] in row.text("source") and is_asked and row.measured_s:
            sets[tuple(row.text(name) for name in rule["same"])].append(row)
    return list(sets.values())


def predict_all(rows: list[RunRow]) -> list[Run]:
    """What can be predicted of *rows*; a layout measured more than once is as fast as its best."""
    fastest: dict[tuple[str, ...], RunRow] = {}
    for row in sorted(rows, key=lambda one: one.measured_s or 0.0):
        fastest.setdefault(tuple(row.text(name) for name in LAYOUT), row)
    runs = []
    for row in fastest.values():
        answer = predict_run(ASKED, row)
        if not answer.reason:
            # Every run of a set fitted: the smallest tensor group, then the fewest stages.
            rule = tuple(row.value(name) or 1.0 for name in ("tp", "pp", "mbs"))
            is_suspect = SUSPECT in row.text("flag")
            runs.append(Run(row.measured_s or 0.0, answer.predicted_ns / 1e9, rule, is_suspect))
    return runs


def score(sets: list[list[Run]], near: float) -> dict[str, Any]:
    """How often the choice is near the best, by prediction and by rule of thumb, and the order."""
    chosen = sorted(over_best(runs, min(runs, key=lambda run: run.predicted_s)) for runs in sets)
    thumb = [over_best(runs, min(runs, key=lambda run: run.rule)) for runs in sets]
    right = [
        (one.measured_s < other.measured_s) == (one.predicted_s < other.predicted_s)
        for runs in sets
        for one, other in combinations(runs, 2)
        if abs(one.measured_s - other.measured_s) > near * min(one.measured_s, other.measured_s)
    ]
    return {
        "sets": len(sets),
        "layouts": sum(map(len, sets)),
        "near_best_pct": percent([value <= 1 + near for value in chosen]),
        "rule_near_best_pct": percent([value <= 1 + near for value in thumb]),
        "median_over_best": chosen[len(chosen) // 2],
        "worst_over_best": chosen[-1],
        "pairs": len(right),
        "pairs_in_order_pct": percent(right),
    }


def over_best(runs: list[Run], chosen: Run) -> float:
    return chosen.measured_s / min(run.measured_s for run in runs)


def percent(flags: list[bool]) -> float:
    return 100 * sum(flags) / len(flags)


def find_front(wishes: Wishes, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The fastest layout on every number of hosts."""
    points = []
    for hosts in asked["hosts"]:
        question = LayoutQuestion(
            topology=asked["topology"],
            workload=asked["workload"],
            hosts=(hosts,),
            overrides=tuple(asked["fixed"]),
            price_per_gpu_hour=asked["price"],
            work=asked["work"],
            samples=16,
            top=1,
        )
        place = "ray" if wishes.ray_address else "serial"
        [found] = search(question, executor=place, ray_address=wishes.ray_address)
        best = found.best
        points.append(
            {
                "gpus": found.rank_count,
                "layout": best.name,
                "iteration_s": best.time_ns / 1e9,
                "interval_s": [best.interval.low_ns / 1e9, best.interval.high_ns / 1e9],
                "cost_per_million_tokens": found.cost_per_million_tokens(best),
            }
        )
    return points


def find_imbalance(asked: dict[str, Any]) -> dict[str, list[list[float]]]:
    """By size of the expert group: exponent of the routing, and time over that of even routing."""
    found = {}
    for ep in asked["ep"]:
        fixed = (f"parallel.ep={ep}", "parallel.tp=1", "parallel.pp=1", "parallel.micro_batch=1")
        where = {key: asked[key] for key in ("workload", "topology", "hosts")}

        def iteration_ns(*changes: str, fixed=fixed, where=where) -> int:
            scenario = Scenario(**where, overrides=(*fixed, *changes), samples=2)
            return predict(scenario).iteration_ns

        even_ns = iteration_ns()
        found[f"ep={ep}"] = [
            [exponent, iteration_ns("training.routing=power_law",
                                    f"training.routing_exponent={exponent}") / even_ns]
            for exponent in asked["exponents"]
        ]  # fmt: skip
    return found


def draw_order(wishes: Wishes, sets: dict[str, list[list[Run]]]) -> None:
    """Every layout: predicted and measured time, each over the fastest of its set."""
    figure, axes = new_figure(1, len(sets), width=PAGE, height=2.2, squeeze=False)
    for axis, (kind, members) in zip(axes[0], sets.items(), strict=True):
        for number, runs in enumerate(members):
            measured, predicted = (min(run[part] for run in runs) for part in (0, 1))
            axis.plot(
                [run.measured_s / measured for run in runs],
                [run.predicted_s / predicted for run in runs],
                MARKERS[number % len(MARKERS)], color=COLOURS[number % 7], alpha=0.5, ms=2,
            )  # fmt: skip
        plot_diagonal(axis, (0.9, 20))
        for side in (axis.xaxis, axis.yaxis):
            plain_ticks(side, [1, 2, 5, 10, 20])
        axis.set_title(kind.replace(", ", ",\n"))
        axis.set_xlabel("measured over fastest")
    axes[0][0].set_ylabel("predicted over fastest")
    wishes.save(figure, "order.png")


def draw_front(wishes: Wishes, points: list[dict[str, Any]]) -> None:
    """Time and money by number of GPUs."""
    figure, (above, below) = new_figure(2, height=3.0, sharex=True)
    gpus = [point["gpus"] for point in points]
    times = [point["iteration_s"] for point in points]
    lows, highs = zip(*(point["interval_s"] for point in points), strict=True)
    above.fill_between(gpus, lows, highs, color=COLOURS[0], alpha=0.2, lw=0)
    above.plot(gpus, times, "o-", color=COLOURS[0])
    for point in points:
        words = point["layout"].split(" micro_batch")[0].replace(" ", "\n")
        above.annotate(words, (point["gpus"], point["iteration_s"]), fontsize=4.5,
                       xytext=(3, 3), textcoords="offset points")  # fmt: skip
    above.set(xscale="log", yscale="log", ylabel="iteration (s)")
    plain_ticks(above.yaxis, [2, 5, 10, 20, 50, 100, 200])
    costs = [point["cost_per_million_tokens"] for point in points]
    below.plot(gpus, costs, "s-", color=COLOURS[1])
    below.set(xlabel="GPUs", ylabel="money a million tokens", ylim=(0, 1.15 * max(costs)))
    plain_ticks(below.xaxis, gpus)
    wishes.save(figure, "front.png")


def draw_imbalance(wishes: Wishes, curves: dict[str, list[list[float]]]) -> None:
    """Iterations by how unevenly tokens choose experts."""
    figure, axis = new_figure()
    for number, (name, points) in enumerate(curves.items()):
        axis.plot(*zip(*points, strict=True), MARKERS[number] + "-", label=name)
    axis.set(xlabel="exponent of the routing's power law", ylabel="iteration over even routing")
    axis.legend()
    wishes.save(figure, "imbalance.png")


if __name__ == "__main__":
    main()
