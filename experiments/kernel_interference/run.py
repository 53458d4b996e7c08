"""Ratio of kernel times with and without a communication kernel beside them, from traces."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1].parent / "shared" / "data"))
FEWEST = 3
COVERED = 0.9


def main() -> None:
    results = {}
    for name, pattern in yaml.safe_load((HERE / "scenario.yaml").read_text())["traces"].items():
        alone: dict[tuple, list[float]] = defaultdict(list)
        beside: dict[tuple, list[float]] = defaultdict(list)
        for path in sorted((DATA / "traces").glob(pattern)):
            collect(path, alone, beside)
        results[name] = sum_up(alone, beside)
        print(name, results[name])
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def collect(path: Path, alone: dict, beside: dict) -> None:
    with gzip.open(path, "rt") as file:
        records = json.load(file)["traceEvents"]
    kernels = [one for one in records if one.get("cat") == "kernel" and one.get("dur", 0) > 0]
    is_wire = ["nccl" in one["name"].lower() or "rccl" in one["name"].lower() for one in kernels]
    wires = sorted(
        (one["ts"], one["ts"] + one["dur"])
        for one, wire in zip(kernels, is_wire, strict=True) if wire
    )  # fmt: skip
    for one, wire in zip(kernels, is_wire, strict=True):
        if wire or one["dur"] < 5:
            continue
        start, end = one["ts"], one["ts"] + one["dur"]
        shared = sum(max(0.0, min(end, b) - max(start, a)) for a, b in wires)
        about = one.get("args", {})
        key = (one["name"], str(about.get("grid")), str(about.get("block")))
        if shared == 0:
            alone[key].append(one["dur"])
        elif shared >= COVERED * one["dur"]:
            beside[key].append(one["dur"])


def sum_up(alone: dict, beside: dict) -> dict:
    both = [
        key for key in alone
        if len(alone[key]) >= FEWEST and len(beside.get(key, ())) >= FEWEST
    ]  # fmt: skip
    if not both:
        return {"kernels": 0}
    ratios = np.array([np.median(beside[key]) / np.median(alone[key]) for key in both])
    weights = np.array([sum(beside[key]) for key in both])
    return {
        "kernels": len(both),
        "overlapped_calls": int(sum(len(beside[key]) for key in both)),
        "time_weighted_ratio": round(float(np.average(ratios, weights=weights)), 4),
        "quartiles": [round(float(value), 4) for value in np.quantile(ratios, [0.25, 0.5, 0.75])],
    }


if __name__ == "__main__":
    main()
