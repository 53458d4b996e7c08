"""Does the fastest predicted layout run fastest? Sets of measured runs that differ in layout only.

python experiments/layout_search/run.py [--quick] [--out results.json]
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from perfmodel.prediction.question import Asked
from perfmodel.validation.runs_prediction import RunAsked, predict_run
from perfmodel.validation.runs_table import RunRow, load_runs

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1].parent / "shared" / "data"))
CORE = HERE.parent / "measured" / "core_transformer.csv"
ASKED = RunAsked(Asked(samples=2, is_explained=False))


class Run(NamedTuple):
    """A layout: how long it took, how long it was said to take, and its tensor group."""

    measured_s: float
    predicted_s: float
    tp: int
    is_suspect: bool


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--quick", action="store_true", help="a few sets of each kind")
    words.add_argument("--out", type=Path, default=HERE / "results.json")
    words.add_argument("--runs", type=Path, help="also write every pair of times, for draw.py")
    asked = words.parse_args()
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text())
    table = load_runs(DATA / "runs" / "transformer.csv.gz" if DATA.exists() else CORE)
    results, pairs = {}, {}
    for kind, rule in scenario["sets"].items():
        members = gather(table.rows, rule, scenario["smallest_set"])
        if asked.quick:
            members = members[:: max(1, len(members) // scenario["quick_sets"])]
        sets = [runs for rows in members if len(runs := predict_all(rows)) > 1]
        pairs[kind] = sets
        results[kind] = score(sets, scenario["near"])
        clean = [[run for run in runs if not run.is_suspect] for runs in sets]
        if clean != sets:
            kept = [runs for runs in clean if len(runs) > 1]
            results[f"{kind}, without suspect runs"] = score(kept, scenario["near"])
        print(kind, json.dumps(results[kind]), flush=True)
    asked.out.write_text(json.dumps(results, indent=1) + "\n")
    if asked.runs is not None:
        asked.runs.write_text(json.dumps(pairs))


def gather(rows: tuple[RunRow, ...], rule: dict[str, Any], smallest: int) -> list[list[RunRow]]:
    """Rows by set, in the order of the table."""
    sets = defaultdict(list)
    for row in rows:
        is_several = (row.count("n_nodes") or 1) > 1
        is_asked = rule["hosts"] == "any" or is_several == (rule["hosts"] == "several")
        if rule["source"] in row.text("source") and is_asked and row.measured_s:
            sets[tuple(row.text(name) for name in rule["same"])].append(row)
    return [members for members in sets.values() if len(members) >= smallest]


def predict_all(rows: list[RunRow]) -> list[Run]:
    """What can be predicted of *rows*; a layout measured more than once is as fast as its best."""
    best: dict[tuple[object, ...], Run] = {}
    for row in rows:
        key = tuple(row.text(name) for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "mbs",
                    "grad_accum", "data_sharding", "recompute", "sequence_parallel"))  # fmt: skip
        if key in best and best[key].measured_s <= (row.measured_s or 0):
            continue
        answer = predict_run(ASKED, row)
        if not answer.reason:
            flag = "OLD_PP_CODE_SUSPECT" in row.text("flag")
            best[key] = Run(row.measured_s, answer.predicted_ns / 1e9, row.count("tp") or 1, flag)
    return list(best.values())


def score(sets: list[list[Run]], near: float) -> dict[str, Any]:
    """How often the choice is near the best, by prediction and by the rule of thumb; order."""
    chosen = [share(runs, min(runs, key=lambda run: run.predicted_s)) for runs in sets]
    # Every run of a set fits, so the smallest tensor group that ran; of those what ran fastest.
    thumb = [share(runs, min(runs, key=lambda run: (run.tp, run.measured_s))) for runs in sets]
    right, counted = 0, 0
    for runs in sets:
        for one, other in combinations(runs, 2):
            if max(one.measured_s, other.measured_s) > (1 + near) * min(
                one.measured_s, other.measured_s
            ):
                counted += 1
                right += (one.measured_s < other.measured_s) == (
                    one.predicted_s < other.predicted_s
                )
    return {
        "sets": len(sets),
        "runs": sum(map(len, sets)),
        "near_best_pct": percent(sum(value <= 1 + near for value in chosen), len(sets)),
        "median_regret_pct": 100 * (sorted(chosen)[len(chosen) // 2] - 1) if sets else None,
        "rule_of_thumb_near_best_pct": percent(
            sum(value <= 1 + near for value in thumb), len(sets)
        ),
        "pairs": counted,
        "pairs_in_order_pct": percent(right, counted),
    }


def share(runs: list[Run], chosen: Run) -> float:
    return chosen.measured_s / min(run.measured_s for run in runs)


def percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


if __name__ == "__main__":
    main()
