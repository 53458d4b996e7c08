"""Embedding kernels: fitted, held out and by the paper's heuristic, against measurements.

python experiments/embedding_kernels/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from embeddings.table import EmbeddingTable, Lookup
from experiments.figures import (
    BLACK,
    MEASURED,
    Wishes,
    legend_below,
    new_figure,
    plot_bars,
    read_measured,
    read_wishes,
)
from perfmodel.costs.embedding import LookupPricer, lookups_terms
from perfmodel.costs.embedding_constants import load_constants
from perfmodel.extensions.measurements.calibration.embedding import CaseError, fit_embedding
from perfmodel.extensions.measurements.calibration.embedding_cases import EmbeddingCase, load_cases
from perfmodel.graph.ops import Pass
from topologies import load_device

SAMPLES_IN_FILE, SAMPLES_IN_BATCH = 65536, 512
_SHAPE = re.compile(r"B=(\d+);E=(\d+);T=(\d+);L=(\d+);D=(\d+)")


def main() -> None:
    """Fit, compare, draw."""
    wishes = read_wishes(__file__, __doc__)
    cases = measured_cases(wishes.folder / "cases.yaml")
    fit = fit_embedding(cases)
    constants = load_constants()
    for name, found in fit.generations.items():
        if found != constants[name]:
            print(f"{name}: the committed constants are not those of this fit. Calibrate again.")
    skewed = next(case for case in cases if case.name.startswith("skewed"))
    wishes.write_results(
        {
            "errors": [_row(error) for error in fit.errors],
            "skewed_forward_us_with_the_histogram_of_the_whole_set": _whole_set_us(skewed),
            "not_fitted_microbenchmarks": _microbenchmarks(),
        }
    )
    draw(wishes, fit.errors)


def measured_cases(path: Path) -> tuple[EmbeddingCase, ...]:
    """The cases of *path*, their times from the compact table instead of recordings."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for case in document["cases"]:
        case.pop("kernel_table", None)
        case.pop("recording", None)
        case["figures"] = {
            row["part"]: f"{row['measured_us']} us"
            for row in read_measured("embeddings/kernels.csv")
            if row["case"] == case["name"]
        }
    with tempfile.TemporaryDirectory() as folder:
        stated = Path(folder) / "cases.yaml"
        stated.write_text(yaml.safe_dump(document), encoding="utf-8")
        return load_cases(stated, data=MEASURED)[0]


def _row(error: CaseError) -> dict[str, Any]:
    rounded = {
        key: round(value, 1) if isinstance(value, float) else value
        for key, value in asdict(error).items()
    }
    other = error.heuristic_pct
    return {
        **rounded,
        "error_pct": round(error.error_pct, 1),
        "held_out_pct": round(error.held_out_pct, 1),
        "heuristic_pct": None if other is None else round(other, 1),
    }


def _time_us(lookup: Lookup, direction: Pass, device: str) -> float:
    machine = load_device(device)
    terms = lookups_terms([lookup], machine)
    times, _ = LookupPricer(machine).times(terms, direction, lookup.kernel)
    return round(float(times[0]) / 1e3, 1)


def _whole_set_us(case: EmbeddingCase) -> float:
    """The forward pass if the histogram counted reuse over the whole file, not in a batch."""
    table = case.lookup.tables[0]
    draws = case.lookup.lookup_count(table) * SAMPLES_IN_FILE / SAMPLES_IN_BATCH
    changed = EmbeddingTable(
        table.name,
        table.rows,
        table.width,
        table.pooling_factor,
        distribution=table.distribution.scaled(draws),
    )
    tables = (changed,) * len(case.lookup.tables)
    return _time_us(
        Lookup(tables, case.lookup.batch_size, kernel=case.lookup.kernel),
        Pass.FORWARD,
        "v100_sxm2_16gb",
    )


def _microbenchmarks() -> list[dict[str, Any]]:
    """Lookups and in-place updates of a V100 that no constant was fitted to."""
    rows = []
    for row in read_measured("paper/microbench_samples_V100.csv"):
        match = _SHAPE.fullmatch(row["shape"])
        if match is None or "(smem)" in row["kernel"]:
            continue
        batch, height, count, pooling, width = map(int, match.groups())
        direction = Pass.FORWARD if " fwd " in row["kernel"] else Pass.BACKWARD
        table = EmbeddingTable("t", height, width, float(pooling))
        # The benchmark repeats a call, so what fits in the L2 is there.
        lookup = Lookup((table,) * count, batch, kernel="table_batched", is_repeated=True)
        predicted = _time_us(lookup, direction, "v100_sxm2_16gb")
        measured = float(row["kernel_us"])
        rows.append(
            {
                "pass": direction.value,
                "shape": row["shape"],
                "measured_us": measured,
                "predicted_us": predicted,
                "error_pct": 100 * (predicted / measured - 1),
            }
        )
    return rows


def draw(wishes: Wishes, errors: tuple[CaseError, ...]) -> None:
    """Errors of every part of every case."""
    figure, axes = new_figure(height=0.22 * len(errors) + 0.8)
    nothing = float("nan")
    bars = {
        "fitted": [error.error_pct for error in errors],
        "held out": [error.held_out_pct for error in errors],
        "the paper's heuristic": [error.heuristic_pct or nothing for error in errors],
    }
    labels = [f"{error.case}, {error.part}" for error in errors]
    plot_bars(axes, labels, bars, horizontal=True)
    axes.tick_params(axis="y", labelsize=5)
    axes.axvline(0, color=BLACK, linewidth=0.6)
    axes.set_xscale("symlog", linthresh=20)
    axes.set_xticks([-20, 0, 20, 100, 500], ["-20", "0", "20", "100", "500"])
    axes.set_xlabel("error of kernel time (%)")
    legend_below(figure, axes)
    wishes.save(figure, "errors.png")


if __name__ == "__main__":
    main()
