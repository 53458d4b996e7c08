"""Bus bandwidth of large collectives against the number of hosts, predicted and measured."""

import json
import os
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure

from collectives.collective import CollectiveKind
from collectives.cost import bus_bandwidth
from collectives.measurements import load_measurements, wiring_of_run
from collectives.pricing import price_sizes
from perfmodel.reports.collective_plots import COLOURS

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data"))


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    measurements = load_measurements(sorted((DATA / "collectives").glob("several_hosts*.csv")))
    figure = Figure(figsize=(8.5, 6.2), layout="constrained")
    axes = figure.subplots()
    results = {}
    for number, line in enumerate(scenario["lines"]):
        kind, per_host = CollectiveKind(line["kind"]), line["ranks_per_host"]
        label = f"{line['topology']} {kind.value}, {per_host} ranks a host"
        found = {}
        for hosts in line["hosts"]:
            ranks = hosts * per_host
            sizes = np.array([float(scenario["size_bytes"])])
            wiring = wiring_of_run(line["topology"], hosts, ranks)
            [cost] = price_sizes(kind, sizes, wiring=wiring)
            found[hosts] = cost.bus_bandwidth_bytes_per_s / 1e9
        points = {
            row.hosts: bus_bandwidth(
                kind,
                size_bytes=row.size_bytes,
                rank_count=row.ranks,
                duration_ns=row.duration_ns,
            )
            / 1e9
            for row in measurements
            if (row.topology, row.kind) == (line["topology"], kind)
            and row.ranks == row.hosts * per_host
            and abs(row.size_bytes / scenario["size_bytes"] - 1) < 0.01
        }
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(list(found), list(found.values()), "-", color=colour, label=label)
        axes.plot(list(points), list(points.values()), "o", color=colour)
        results[label] = {
            "predicted_gb_per_s": {hosts: round(value, 1) for hosts, value in found.items()},
            "error_pct_where_measured": {
                hosts: round(100 * (value / found[hosts] - 1), 1)
                for hosts, value in sorted(points.items())
                if hosts in found
            },
        }
    axes.set(xscale="log", yscale="log", xlabel="hosts", ylabel="bus bandwidth (GB/s)")
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.set_yticks([25, 50, 100, 200, 400], ["25", "50", "100", "200", "400"])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    axes.set_title("1 GiB collectives  (line: predicted, dots: measured)", fontsize=11)
    figure.savefig(HERE / "hosts.png", dpi=110)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
