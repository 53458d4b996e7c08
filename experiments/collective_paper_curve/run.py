"""The paper's curve of eight parameters beside ours, fitted on the same rows and held out alike."""

import json
import os
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import curve_fit

from collectives.collective import CollectiveKind
from collectives.cost import bus_bandwidth
from collectives.measurements import load_measurements, wiring_of_run
from collectives.pricing import price_sizes
from perfmodel.calibration.collectives.command import cross_validate, deal_folds
from perfmodel.cli.collective_sweep import build_curve
from perfmodel.reports.collective_plots import SizeCurve, plot_sizes

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data"))
FOLDS = 5


def sigmoid(x, height, centre, slope, base):
    return height / (1 + np.exp(-slope * (x - centre))) + base


class PaperCurve:
    """Latency region, sigmoid of the logarithm of bandwidth, saturated region."""

    def __init__(self, sizes, times_us, factor):
        order = np.argsort(sizes)
        sizes, times_us = sizes[order], times_us[order]
        powers = np.log2(sizes)
        bandwidth = factor * sizes / times_us / 1e3
        self.factor, self.peak = factor, bandwidth.max()
        self.start_us = times_us[: len(sizes) // 4].min()
        flat = times_us <= 1.15 * self.start_us
        self.low = powers[flat].max()
        full = bandwidth >= 0.95 * self.peak
        self.high = powers[full].min()
        guess = (
            np.log10(bandwidth.max() / bandwidth.min()),
            powers.mean(),
            0.4,
            np.log10(bandwidth.min()),
        )
        try:
            self.shape, _ = curve_fit(sigmoid, powers, np.log10(bandwidth), p0=guess, maxfev=20000)
        except RuntimeError:
            self.shape = guess

    def times_us(self, sizes):
        """The curve at *sizes*."""
        powers = np.log2(sizes)
        middle = self.factor * sizes / 10 ** sigmoid(powers, *self.shape) / 1e3
        large = self.factor * sizes / self.peak / 1e3 + self.start_us
        return np.where(
            powers <= self.low, self.start_us, np.where(powers <= self.high, middle, large)
        )


def held_out_paper(rows, fold_of_row, factor):
    sizes = np.array([float(row.size_bytes) for row in rows])
    times = np.array([row.duration_ns / 1e3 for row in rows])
    found = np.zeros(len(rows))
    for fold in set(fold_of_row):
        inside = fold_of_row != fold
        found[~inside] = PaperCurve(sizes[inside], times[inside], factor).times_us(sizes[~inside])
    return np.abs(found / times - 1) * 100


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    tables = [DATA / "collectives" / name for name in scenario["tables"]]
    measurements = load_measurements(tables)
    folds = np.array(deal_folds(measurements, FOLDS))
    ours = cross_validate(measurements, folds=FOLDS)
    errors = np.array(
        [100 * abs(one.predicted_ns / one.measurement.duration_ns - 1) for one in ours]
    )
    groups = {}
    for place, row in enumerate(measurements):
        key = (row.topology, row.kind, row.ranks, row.dtype, row.nccl_version)
        groups.setdefault(key, []).append(place)
    by_machine = {}
    for (topology, kind, ranks, _, _), places in groups.items():
        factor = bus_bandwidth(kind, size_bytes=1.0, rank_count=ranks, duration_ns=1e9)
        paper = held_out_paper([measurements[place] for place in places], folds[places], factor)
        entry = by_machine.setdefault(f"{topology} {kind.value}", ([], [], [0]))
        entry[0].extend(paper)
        entry[1].extend(errors[places])
        entry[2][0] += 8
    results = {
        name: {
            "rows": len(paper),
            "paper_parameters": count[0],
            "paper_mape_pct": round(float(np.mean(paper)), 1),
            "paper_median_pct": round(float(np.median(paper)), 1),
            "our_mape_pct": round(float(np.mean(mine)), 1),
            "our_median_pct": round(float(np.median(mine)), 1),
        }
        for name, (paper, mine, count) in by_machine.items()
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(scenario["picture"], measurements)


def draw(picture, measurements):
    kind, ranks = CollectiveKind(picture["kind"]), picture["ranks"]
    points = [
        row
        for row in measurements
        if (row.topology, row.kind, row.ranks) == (picture["topology"], kind, ranks)
        and row.dtype.size_bytes == 2
    ]
    sizes = np.exp2(np.arange(9, 30.01, 0.05))
    costs = price_sizes(kind, sizes, wiring=wiring_of_run(picture["topology"], 1, ranks))
    curve = build_curve(kind, "ours", sizes, costs, ranks, points)
    measured = (
        np.array([float(row.size_bytes) for row in points]),
        np.array([row.duration_ns / 1e3 for row in points]),
    )
    paper = PaperCurve(*measured, curve.bus_factor)
    theirs = SizeCurve(
        label="paper, 8 parameters",
        sizes_bytes=list(sizes),
        durations_ns=list(paper.times_us(sizes) * 1e3),
        bus_factor=curve.bus_factor,
        style="--",
    )
    title = f"{picture['topology']}, {kind.value}, {ranks} ranks"
    plot_sizes([curve, theirs], HERE / "paper_curve.png", title=title)


if __name__ == "__main__":
    main()
