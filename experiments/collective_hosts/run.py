"""Bus bandwidth of collectives over hosts, predicted and measured, by hosts and by size.

python experiments/collective_hosts/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.collective import CollectiveKind, bus_bandwidth
from collectives.measurements import (
    CollectiveMeasurement,
    load_measurements,
    wiring_of_run,
)
from collectives.pricing import price_sizes
from experiments.figures import (
    BLACK,
    COLOURS,
    MARKERS,
    MEASURED,
    Wishes,
    legend_below,
    new_figure,
    plain_ticks,
    read_wishes,
)


def main() -> None:
    """Draw both pictures."""
    wishes = read_wishes(__file__, __doc__)
    measurements = load_measurements([MEASURED / "collectives.csv"])
    by_hosts = draw_hosts(wishes, measurements)
    wishes.write_results({"hosts": by_hosts, "sizes": draw_sizes(wishes, measurements)})


def draw_sizes(wishes: Wishes, measurements: Sequence[CollectiveMeasurement]) -> dict[str, Any]:
    """Bus bandwidth over size, one line a number of hosts; crosses where NCCL switches."""
    machines = wishes.scenario()["sizes"]
    figure, axes = new_figure(height=2.4 * len(machines), rows=len(machines))
    results: dict[str, Any] = {}
    for place, (topology, word, hosts_of) in zip(np.ravel(axes), machines, strict=True):
        kind = CollectiveKind(word)
        for number, hosts in enumerate(hosts_of):
            rows = [
                row
                for row in measurements
                if (row.topology, row.kind, row.hosts) == (topology, kind, hosts)
            ]
            sizes = np.array(sorted({float(row.size_bytes) for row in rows}))
            costs = price_sizes(kind, sizes, wiring=rows[0].wiring())
            lines = [one.bus_bandwidth_bytes_per_s / 1e9 for one in costs]
            found = dict(zip(sizes.tolist(), costs, strict=True))
            bus = [
                bus_bandwidth(
                    kind,
                    size_bytes=row.size_bytes,
                    rank_count=row.ranks,
                    duration_ns=row.duration_ns,
                )
                / 1e9
                for row in rows
            ]
            colour, marker = COLOURS[number % 7], MARKERS[number % 8]
            place.plot(sizes, lines, color=colour, lw=1, label=f"{hosts} hosts")
            place.plot([row.size_bytes for row in rows], bus, marker, color=colour, ms=3)
            words = [one.algorithm_word for one in costs]
            switches = [at for at in range(1, len(words)) if words[at] != words[at - 1]]
            place.plot(sizes[switches], np.array(lines)[switches], "kx", ms=5)
            errors = [
                100 * abs(found[row.size_bytes].duration_ns / row.duration_ns - 1) for row in rows
            ]
            results[f"{topology} {word} {hosts}"] = {
                "mean_error_pct": float(np.mean(errors)),
                "median_error_pct": float(np.median(errors)),
                "switches": {int(sizes[at]): words[at] for at in switches},
            }
        place.set(xscale="log", yscale="log", ylabel="bus bandwidth (GB/s)")
        place.set_ylim(1e-3)
        place.set_title(f"{topology}, {word.replace('_', '-')}")
        place.legend(fontsize=6)
        if place is np.ravel(axes)[-1]:
            place.set_xlabel("size (bytes); crosses: NCCL switches algorithm or protocol")
    wishes.save(figure, "sizes.png")
    return results


def draw_hosts(wishes: Wishes, measurements: Sequence[CollectiveMeasurement]) -> dict[str, Any]:
    """One line a machine, collective and number of ranks a host."""
    scenario = wishes.scenario()
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
    return results


if __name__ == "__main__":
    main()
