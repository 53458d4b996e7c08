"""Time and bus bandwidth against size, predicted and measured, on NVLink, PCIe and NICs."""

import json
import os
from pathlib import Path

import numpy as np
import yaml

from collectives.collective import CollectiveKind
from collectives.measurements import load_measurements, wiring_of_run
from collectives.pricing import price_sizes
from perfmodel.cli.collective_sweep import build_curve
from perfmodel.reports.collective_plots import plot_sizes
from perfmodel.validation.collectives import validate_collectives

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data"))


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    measurements = load_measurements(sorted((DATA / "collectives").glob("*.csv")))
    results = {}
    for picture in scenario["pictures"]:
        curves = []
        for group in picture["groups"]:
            kind = CollectiveKind(group["kind"])
            hosts, ranks = group["hosts"], group["ranks"]
            points = [
                row
                for row in measurements
                if (row.topology, row.hosts, row.ranks, row.kind)
                == (picture["topology"], hosts, ranks, kind)
                and row.dtype.size_bytes > 1
                and (row.nccl_version or (2, 27))[:2] >= (2, 24)
            ]
            largest = max((row.size_bytes for row in points), default=2**30)
            sizes = np.exp2(np.arange(3, np.log2(largest) + 0.1, 0.125))
            costs = price_sizes(
                kind, sizes, wiring=wiring_of_run(picture["topology"], hosts, ranks)
            )
            label = f"{kind.value}, {hosts} x {ranks // hosts}"
            curve = build_curve(kind, label, sizes, costs, ranks, points)
            curves.append(curve)
            score = validate_collectives(points).overall
            results[f"{picture['topology']} {label}"] = {
                "rows": score.rows,
                "mape_pct": round(score.mape_pct, 1),
                "median_pct": round(score.median_pct, 1),
                "switches": [[round(size), word] for size, word in curve.switches],
            }
        plot_sizes(curves, HERE / f"{picture['name']}.png", title=picture["title"])
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
