"""How well predictions order layouts: pairs of runs that differ in nothing else.

python experiments/runs_scoreboard/layout_order.py ../shared/data/runs
Prints the spread for perfmodel/planning/layouts/order.yaml, and how often the order was right.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

TABLE = "core_transformer.csv"
SAME = ("source", "framework", "model", "device", "n_gpus", "seq_len", "precision", "gbs")
GAPS = (0.02, 0.05, 0.1, 0.2, 0.5, math.inf)


def main() -> None:
    """Print the spread and the shares."""
    stored = json.loads(Path(__file__).with_name("results.json").read_text("utf-8"))[TABLE]["rows"]
    groups = defaultdict(list)
    with next(Path(sys.argv[1]).rglob(TABLE)).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["id"] in stored:
                measured, predicted = (math.log(value) for value in stored[row["id"]][:2])
                groups[tuple(row[key] for key in SAME)].append((measured, predicted))
    apart, sources, is_right = [], set(), defaultdict(list)
    for key, runs in groups.items():
        for (m1, p1), (m2, p2) in combinations(runs, 2):
            apart.append(abs((p1 - m1) - (p2 - m2)))
            sources.add(key[0])
            gap = next(limit for limit in GAPS if abs(p1 - p2) <= limit)
            is_right[gap].append((m1 < m2) == (p1 < p2))
    print(f"pair_sigma: {statistics.median(apart) / 0.6745:.2g}")
    print(f"pairs: {len(apart)}\nsources: {len(sources)}")
    for gap in GAPS:
        share = statistics.mean(is_right[gap])
        print(f"predicted up to {gap:g} apart: {share:.0%} of {len(is_right[gap])} in order")


if __name__ == "__main__":
    main()
