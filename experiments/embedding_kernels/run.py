"""Embedding kernels: fitted, held out and by the paper's heuristic, beside what was measured.

python -m experiments.embedding_kernels.run      # needs ../shared/data
"""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from embeddings.table import EmbeddingTable, Lookup
from perfmodel.calibration.embedding.cases import EmbeddingCase, load_cases
from perfmodel.calibration.embedding.fit import CaseError, fit_embedding, format_errors
from perfmodel.costs.embedding.constants import load_constants
from perfmodel.costs.embedding.model import LookupPricer, lookup_terms
from perfmodel.graph.ops import EmbeddingOp, Pass
from topologies import load_device

HERE = Path(__file__).parent
SAMPLES_IN_FILE, SAMPLES_IN_BATCH = 65536, 512
_SHAPE = re.compile(r"B=(\d+);E=(\d+);T=(\d+);L=(\d+);D=(\d+)")


def main() -> None:
    """Fit, compare, write results.json and the picture, and print the table."""
    shared = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[2] / "shared" / "data"))
    cases = load_cases(HERE / "cases.yaml", data=shared).cases
    fit = fit_embedding(cases)
    constants = load_constants()
    for name, found in fit.generations.items():
        if found != constants[name]:
            print(f"{name}: the committed constants are not those of this fit. Calibrate again.")
    skewed = next(case for case in cases if case.name.startswith("skewed"))
    results = {
        "errors": [_row(error) for error in fit.errors],
        "skewed_forward_us_with_the_histogram_of_the_whole_set": _whole_set_us(skewed),
        "not_fitted_microbenchmarks": _microbenchmarks(shared),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(format_errors(fit.errors)))
    print(json.dumps({key: results[key] for key in list(results)[1:]}, indent=1))
    _draw(fit.errors)


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
    terms = lookup_terms(EmbeddingOp(lookup, direction), machine)[None, :]
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


def _microbenchmarks(shared: Path) -> list[dict[str, Any]]:
    """Lookups and in-place updates of a V100 that no constant was fitted to."""
    rows = []
    with (shared / "paper" / "microbench_samples_V100.csv").open() as file:
        for row in csv.DictReader(file):
            match = _SHAPE.fullmatch(row["shape"])
            if match is None or "(smem)" in row["kernel"]:
                continue
            batch, height, count, pooling, width = map(int, match.groups())
            direction = Pass.FORWARD if " fwd " in row["kernel"] else Pass.BACKWARD
            table = EmbeddingTable("t", height, width, float(pooling))
            # The benchmark repeats a call, so what fits in the L2 is there.
            lookup = Lookup((table,) * count, batch, kernel="table_batched", is_repeated=True)
            predicted, measured = (
                _time_us(lookup, direction, "v100_sxm2_16gb"),
                float(row["kernel_us"]),
            )
            rows.append(
                {
                    "pass": direction.value,
                    "shape": row["shape"],
                    "measured_us": measured,
                    "predicted_us": predicted,
                    "error_pct": round(100 * (predicted / measured - 1), 1),
                }
            )
    return rows


def _draw(errors: tuple[CaseError, ...]) -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    places = range(len(errors))
    bars = {
        "fitted": [error.error_pct for error in errors],
        "held out": [error.held_out_pct for error in errors],
        "the paper's heuristic": [error.heuristic_pct or 0.0 for error in errors],
    }
    for number, (label, values) in enumerate(bars.items()):
        axis.barh([place + 0.27 * (number - 1) for place in places], values, 0.27, label=label)
    labels = [f"{error.case}, {error.part}" for error in errors]
    axis.set_yticks(list(places), labels, fontsize=8)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xscale("symlog", linthresh=20)
    axis.set_xlabel("error of kernel time, %")
    axis.legend(fontsize=8)
    figure.savefig(HERE / "errors.png", dpi=110, metadata={"Software": ""})


if __name__ == "__main__":
    main()
