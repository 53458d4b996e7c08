"""Bus bandwidth of large collectives against the number of hosts, predicted and measured.

python experiments/collective_hosts/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import numpy as np

from collectives.collective import CollectiveKind, bus_bandwidth
from collectives.measurements import load_measurements, wiring_of_run
from collectives.pricing import price_sizes
from experiments.figures import (
    BLACK,
    COLOURS,
    MARKERS,
    MEASURED,
    legend_below,
    new_figure,
    plain_ticks,
    read_wishes,
)


def main() -> None:
    """Draw one line a machine, collective and number of ranks a host."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    measurements = load_measurements([MEASURED / "collectives.csv"])
    figure, axes = new_figure(height=3.2)
    results = {}
    for number, (topology, word, per_host) in enumerate(scenario["lines"]):
        kind = CollectiveKind(word)
        points = {
            row.hosts: bus_bandwidth(
                kind,
                size_bytes=row.size_bytes,
                rank_count=row.ranks,
                duration_ns=row.duration_ns,
            )
            / 1e9
            for row in measurements
            if (row.topology, row.kind) == (topology, kind)
            and row.ranks == row.hosts * per_host
            and abs(row.size_bytes / scenario["size_bytes"] - 1) < 0.01
        }
        found = {}
        for hosts in sorted({*scenario["hosts"], *points}):
            if hosts * per_host == 1:
                continue
            wiring = wiring_of_run(topology, hosts, hosts * per_host)
            [cost] = price_sizes(kind, np.array([float(scenario["size_bytes"])]), wiring=wiring)
            found[hosts] = cost.bus_bandwidth_bytes_per_s / 1e9
        label = f"{topology} {word.replace('_', '-')}, {per_host} ranks a host"
        style = {"color": COLOURS[number % 7], "marker": MARKERS[number % 8]}
        axes.plot(found.keys(), found.values(), color=style["color"], label=label)
        axes.plot(points.keys(), points.values(), ls="", mec=BLACK, mew=0.3, ms=4, **style)
        results[label] = {
            "predicted_gb_per_s": found,
            "error_pct": {hosts: 100 * (one / found[hosts] - 1) for hosts, one in points.items()},
        }
    axes.set(xscale="log", yscale="log", xlabel="hosts", ylabel="bus bandwidth (GB/s)")
    plain_ticks(axes.xaxis, [1, 2, 4, 8, 16, 64, 256])
    plain_ticks(axes.yaxis, [25, 50, 100, 200, 400])
    axes.set_title("collectives of 1 GiB: predicted (lines), measured (markers)")
    legend_below(figure, axes, 1)
    wishes.save(figure, "hosts.png")
    wishes.write_results(results)


if __name__ == "__main__":
    main()
