"""Time and bus bandwidth of collectives against size: predicted, measured, and the paper's curve.

python experiments/collective_curves/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from scipy.optimize import curve_fit

from collectives.collective import CollectiveKind, bus_bandwidth
from collectives.measurements import CollectiveMeasurement, load_measurements, wiring_of_run
from collectives.pricing import price_sizes
from experiments.figures import (
    BLACK,
    COLOURS,
    GREY,
    MARKERS,
    MEASURED,
    PAGE,
    Wishes,
    legend_above,
    legend_below,
    new_figure,
    read_measured,
    read_wishes,
)
from perfmodel.extensions.measurements.calibration.collectives import assign_folds, cross_validate
from perfmodel.extensions.measurements.validation.tables import validate_collectives


def main() -> None:
    """Draw machines and the paper's figure; compare held-out rows with the paper's curve."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    measurements = load_measurements([MEASURED / "collectives.csv"])
    results = {"curves": draw_machines(wishes, scenario["machines"], measurements)}
    results["four_v100"] = draw_paper(wishes, scenario["paper"])
    if scenario["folds"]:
        results["held_out"] = compare_with_paper(scenario, measurements)
    wishes.write_results(results)


def bus_factor(kind: CollectiveKind, ranks: int) -> float:
    """Bus bandwidth in GB/s of one byte in one microsecond."""
    return bus_bandwidth(kind, size_bytes=1.0, rank_count=ranks, duration_ns=1e3) / 1e9


def draw_machines(
    wishes: Wishes, machines: list[dict[str, Any]], rows: tuple[CollectiveMeasurement, ...]
) -> dict[str, Any]:
    """Curves of every machine: time above, bus bandwidth below."""
    figure, axes = new_figure(2, len(machines), width=PAGE, height=3.6)
    found = {}
    for (above, below), machine in zip(axes.T, machines, strict=True):
        for number, (word, hosts, ranks) in enumerate(machine["groups"]):
            kind = CollectiveKind(word)
            points = [
                row
                for row in rows
                if (row.topology, row.hosts, row.ranks, row.kind)
                == (machine["topology"], hosts, ranks, kind)
                and row.dtype.size_bytes > 1
                and (row.nccl_version or (2, 27))[:2] >= (2, 24)
            ]
            size = np.array([float(row.size_bytes) for row in points])
            time_us = np.array([row.duration_ns / 1e3 for row in points])
            sizes = np.exp2(np.arange(9, np.log2(size.max()) + 0.1, 0.25))
            wiring = wiring_of_run(machine["topology"], hosts, ranks)
            costs = price_sizes(kind, sizes, wiring=wiring)
            predicted_us = np.array([cost.duration_ns / 1e3 for cost in costs])
            label = f"{word.replace('_', '-')} {hosts} x {ranks // hosts}"
            factor, colour = bus_factor(kind, ranks), COLOURS[number]
            above.plot(sizes, predicted_us, color=colour, label=label)
            below.plot(sizes, factor * sizes / predicted_us, color=colour)
            dots = {"ls": "", "marker": MARKERS[number], "color": colour, "mec": BLACK, "mew": 0.2}
            above.plot(size, time_us, markersize=2.2, **dots)
            below.plot(size, factor * size / time_us, markersize=2.2, **dots)
            score = validate_collectives(points).overall
            assert score is not None
            found[f"{machine['topology']} {label}"] = {
                "rows": score.rows, "mean_pct": score.mape_pct, "median_pct": score.median_pct
            }  # fmt: skip
        above.set(xscale="log", yscale="log", title=machine["title"] + "\n\n\n\n\n")
        below.set(xscale="log", xlabel="size (bytes)", ylim=(0, None))
        legend_above(above, 1)
    axes[0][0].set_ylabel("time (us)")
    axes[1][0].set_ylabel("bus bandwidth (GB/s)")
    wishes.save(figure, "machines.png")
    return found


class PaperCurve:
    """Latency, then a sigmoid of the logarithm of bandwidth, then a line: eight parameters."""

    def __init__(self, *, low: float, high: float, peak: float, start_us: float, shape: Any):
        self.low, self.high, self.peak, self.start_us, self.shape = low, high, peak, start_us, shape

    @classmethod
    def published(cls, row: dict[str, str]) -> PaperCurve:
        """As a line of the published parameters states it."""
        shape = [float(row[key]) for key in ("sig_L", "sig_x0", "sig_k", "sig_b")]
        values = (float(row[key]) for key in ("ln_p_log2B", "sats_p_log2B", "max_bw_GBps"))
        low, high, peak = values
        return cls(low=low, high=high, peak=peak, start_us=float(row["overhead_us"]), shape=shape)

    @classmethod
    def fitted(cls, sizes: Any, times_us: Any, factor: float) -> PaperCurve:
        """As the paper describes its fit."""
        order = np.argsort(sizes)
        sizes, times_us = sizes[order], times_us[order]
        powers, bandwidth = np.log2(sizes), factor * sizes / times_us
        start_us, peak = times_us[: max(1, len(sizes) // 4)].min(), bandwidth.max()
        logs = np.log10(bandwidth)
        guess = (np.ptp(logs), powers.mean(), 0.4, logs.min())
        try:
            shape, _ = curve_fit(sigmoid, powers, logs, p0=guess, maxfev=20000)
        except (RuntimeError, TypeError):  # flat as a line, or too few points: the guess is left
            shape = guess
        low = powers[times_us <= 1.15 * start_us].max()
        high = powers[bandwidth >= 0.95 * peak].min()
        return cls(low=low, high=high, peak=peak, start_us=start_us, shape=shape)

    def times_us(self, sizes: Any, factor: float) -> Any:
        """The curve at *sizes*."""
        powers = np.log2(sizes)
        middle = factor * sizes / 10 ** sigmoid(powers, *self.shape)
        last = np.where(powers <= self.high, middle, factor * sizes / self.peak + self.start_us)
        return np.where(powers <= self.low, self.start_us, last)


def sigmoid(x: Any, height: float, centre: float, slope: float, base: float) -> Any:
    """The shape of the middle region."""
    return height / (1 + np.exp(-slope * (x - centre))) + base


def draw_paper(wishes: Wishes, paper: dict[str, Any]) -> dict[str, Any]:
    """The paper's figure: 4 x V100, three regions, its curve and ours."""
    measured = read_measured("paper/collectives_4xV100_digitized.csv")
    parameters = {
        (row["curve"], row["gpus"]): row
        for row in read_measured("paper/bandwidth_curve_params.csv")
    }
    figure, axes = new_figure(2, 2, height=3.2, sharex=True)
    found = {}
    for (above, below), (word, line) in zip(axes.T, paper["curves"].items(), strict=True):
        kind = CollectiveKind(word)
        rows = [row for row in measured if row["collective"] == word]
        size = np.array([float(row["size_bytes_per_rank"]) for row in rows])
        time_us = np.array([float(row["latency_us_from_latency_plot"]) for row in rows])
        theirs, factor = PaperCurve.published(parameters[tuple(line)]), bus_factor(kind, 4)
        fine = np.exp2(np.arange(4, 31.1, 0.1))
        costs = price_sizes(kind, fine, wiring=wiring_of_run(paper["topology"], 1, 4))
        ours = np.array([cost.duration_ns / 1e3 for cost in costs])
        for axis, of in ((above, lambda t, _: t), (below, lambda t, s, f=factor: f * s / t)):
            axis.plot(size, of(time_us, size), "o", color=BLACK, ms=2.4, label="measured")
            axis.plot(fine, of(theirs.times_us(fine, factor), fine), "--", color=COLOURS[1],
                      label="the paper's curve")  # fmt: skip
            axis.plot(fine, of(ours, fine), color=COLOURS[0], label="perfmodel, NCCL alone")
            axis.axvspan(2**theirs.low, 2**theirs.high, color=GREY, alpha=0.15, lw=0)
            axis.set(xscale="log", yscale="log")
        above.set_title(f"{word.replace('_', '-')}, 4 x V100")
        below.set(xlabel="bytes a rank", ylim=(1e-3, None))
        large = size >= paper["large_bytes"]
        errors = np.interp(np.log(size), np.log(fine), ours)[large] / time_us[large] - 1
        found[word] = {"mean_error_of_large_pct": 100 * float(np.abs(errors).mean())}
    legend_below(figure, axes[0][0])
    axes[0][0].set_ylabel("time (us)")
    axes[1][0].set_ylabel("bus bandwidth (GB/s)")
    wishes.save(figure, "paper.png")
    return found


def compare_with_paper(
    scenario: dict[str, Any], measurements: tuple[CollectiveMeasurement, ...]
) -> dict[str, Any]:
    """Errors on sizes that were left out, of the paper's curves and ours, machine by machine."""
    rows = [
        row for row in measurements if row.hosts == 1 and row.topology in scenario["held_out_of"]
    ]
    count = scenario["folds"]
    folds = np.array(assign_folds(rows, count))
    ours = {
        one.measurement.row: 100 * abs(one.predicted_ns / one.measurement.duration_ns - 1)
        for one in cross_validate(rows, folds=count)
    }
    alike = defaultdict(list)
    for place, row in enumerate(rows):
        alike[row.topology, row.kind, row.ranks, row.dtype, row.nccl_version].append(place)
    machines = defaultdict(lambda: ([], [], []))
    for (topology, kind, ranks, _, _), places in alike.items():
        size = np.array([float(rows[place].size_bytes) for place in places])
        time_us = np.array([rows[place].duration_ns / 1e3 for place in places])
        factor, found = bus_factor(kind, ranks), np.zeros(len(places))
        for fold in set(folds[places]):
            inside = folds[places] != fold
            curve = PaperCurve.fitted(size[inside], time_us[inside], factor)
            found[~inside] = curve.times_us(size[~inside], factor)
        theirs, mine, curves = machines[f"{topology} {kind.value}"]
        theirs.extend(np.abs(found / time_us - 1) * 100)
        mine.extend(ours[rows[place].row] for place in places)
        curves.append(1)
    return {
        name: {
            "rows": len(mine), "constants_of_the_paper": 8 * len(curves),
            "paper_mean_pct": float(np.mean(theirs)), "our_mean_pct": float(np.mean(mine)),
            "paper_median_pct": float(np.median(theirs)), "our_median_pct": float(np.median(mine)),
        }
        for name, (theirs, mine, curves) in machines.items()
    }  # fmt: skip


if __name__ == "__main__":
    main()
