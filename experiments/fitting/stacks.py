"""Fit the constants of all stacks of a family to measured runs, and score them on sources left out.

    python experiments/fitting/stacks.py ../shared/data/runs transformer [--write]

Predictions follow the constants by one replay a run (see runs.py), so a fit is a small
least-squares problem (see problem.py); `--write` puts constants and evidence into the stack files,
`sustained.yaml` and `spread.yaml`, and another round starts from there. Scores are with publisher,
model and device left out together, with the configuration of a row, and with whole publishers,
which is what README shows.
"""

from __future__ import annotations

import argparse
import math
import pickle
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.figures import MEASURED
from experiments.fitting.problem import OF_CHIP, Problem, build_problem
from experiments.fitting.runs import Case, build_case, choose_rows, list_groups
from experiments.fitting.spreads import Z_90, LeftOut, Spreads, find_spreads, leave_out
from experiments.fitting.writing import (
    SMALL,
    write_chips,
    write_held_out,
    write_spread,
    write_stacks,
)
from perfmodel.extensions.measurements.validation.runs_table import RunRow, load_runs
from perfmodel.prediction.question import PredictOptions

TABLES = {"transformer": "transformer.csv.gz", "dlrm": "dlrm.csv"}
MOST_OF_GROUP = 6
TOLD = {"transformer": "all", "dlrm": "core"}
"""The part that README tells: as many rows of every kind, where the table has sweeps."""
Floats = NDArray[np.float64]
AT_ONCE = 48
"""Rows that are replayed before they are kept."""


def report(problem: Problem, value: Floats, spreads: Spreads, core: set[object]) -> None:
    """Print errors by framework: before, fitted, and left out, with inside and half-width."""
    cases = problem.cases
    before, fitted = problem.now, problem.errors_at(value)
    left = problem.left_out(lambda case: case.group)
    alone = problem.left_out(lambda case: case.configuration)
    sigma = np.array([spreads.sigma(case) for case in cases])
    head = "rows   before  fitted  left out   median  configuration left out: mean  median"
    print(f"{'':34} {head}  inside  half-width")
    for name, rows in _parts(cases, core).items():
        sizes = [100 * np.abs(np.expm1(part[rows])) for part in (before, fitted, left, alone)]
        inside = 100 * np.mean(np.abs(left[rows]) <= Z_90 * sigma[rows])
        half = 100 * np.median(np.sinh(Z_90 * sigma[rows]))
        print(
            f"{name:34} {rows.sum():4} {sizes[0].mean():8.1f} {sizes[1].mean():7.1f} "
            f"{sizes[2].mean():9.1f} {np.median(sizes[2]):8.1f} {sizes[3].mean():29.1f} "
            f"{np.median(sizes[3]):7.1f} {inside:7.0f} {half:11.0f}",
            flush=True,
        )


def report_publishers(errors: LeftOut, core: set[object]) -> dict[str, float | str]:
    """Print errors with whole publishers left out, of constants and of spreads alike.

    What comes back is the line that README tells.
    """
    cases = errors.problem.cases
    told_part = TOLD[cases[0].row.family]
    left, sigma = errors.problem.left_out(lambda case: case.publisher), np.empty(len(cases))
    publishers = np.array([case.publisher for case in cases])
    for publisher in dict.fromkeys(publishers.tolist()):
        spreads = find_spreads(errors, publishers != publisher)
        for place in np.flatnonzero(publishers == publisher):
            sigma[place] = spreads.sigma(cases[place])
    print(f"{'publisher left out':34} rows     mean  median  inside  half-width  correlation")
    told: dict[str, float | str] = {}
    for name, rows in _parts(cases, core).items():
        sizes = 100 * np.abs(np.expm1(left[rows]))
        halves = 100 * np.sinh(Z_90 * sigma[rows])
        inside = 100 * np.mean(np.abs(left[rows]) <= Z_90 * sigma[rows])
        together = np.corrcoef(halves, sizes)[0, 1] if rows.sum() > 2 else math.nan
        print(
            f"{name:34} {rows.sum():4} {sizes.mean():8.1f} {np.median(sizes):7.1f} {inside:7.0f} "
            f"{np.median(halves):11.0f} {together:12.2f}",
            flush=True,
        )
        if name != told_part:
            continue
        told = {
            "held_out": "publisher",
            "rows": int(rows.sum()),
            "mean_pct": round(float(sizes.mean()), 1),
            "median_pct": round(float(np.median(sizes)), 1),
            "p90_pct": f"{np.quantile(sizes, 0.9):.1f} %",
            "inside_pct": round(float(inside)),
            "half_width_pct": round(float(np.median(halves))),
        }
    return told


def _parts(cases: Sequence[Case], core: set[object]) -> dict[str, NDArray[np.bool_]]:
    """Rows by framework and device, and by what they have in common; all of them last."""
    names = np.array([f"{case.row.text('framework')}, {case.device}" for case in cases])
    is_core = np.array([case.row.name in core for case in cases])
    is_far = np.array([case.hosts > 1 for case in cases])
    is_dense = np.array([not case.has_experts for case in cases])
    parts = {name: names == name for name in dict.fromkeys(names.tolist())}
    parts |= {"core": is_core, "core without experts": is_core & is_dense}
    parts |= {"core with experts": is_core & ~is_dense, "without experts": is_dense}
    parts |= {"with experts": ~is_dense, "several hosts": is_far, "one host": ~is_far}
    return {name: rows for name, rows in parts.items() if rows.any()} | {
        "all": np.ones(len(cases), dtype=bool)
    }


def load_cases(rows: Sequence[RunRow], kept: Path | None) -> list[Case]:
    """The cases of *rows*, as *kept* there before, or replayed and kept, some at a time.

    A run that was interrupted goes on where it stopped. Cases kept by another state of the program
    are not recognised: name another file.
    """
    known: dict[str | int, Case | None] = {}
    if kept is not None and kept.is_file():
        known = pickle.loads(kept.read_bytes())
    missing = [row for row in rows if row.name not in known]
    with get_context("spawn").Pool(2) as pool:
        for first in range(0, len(missing), AT_ONCE):
            some = missing[first : first + AT_ONCE]
            asked = [(PredictOptions(is_explained=False), row) for row in some]
            found = pool.starmap(build_case, asked, chunksize=4)
            known |= {row.name: case for row, case in zip(some, found, strict=True)}
            if kept is not None:
                kept.write_bytes(pickle.dumps(known))
            print(f"{len(known)} of {len(rows)} rows replayed", flush=True)
    return [case for row in rows if (case := known[row.name]) is not None]


def main() -> None:
    """Fit, score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("family", type=str)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", type=int, default=MOST_OF_GROUP, help="at most of a group")
    parser.add_argument("--every", type=int, default=1, help="every n-th row, for trials")
    parser.add_argument("--cases", type=Path, help="where to keep replayed runs, or to take them")
    arguments = parser.parse_args()
    table = load_runs(arguments.folder / TABLES[arguments.family])
    core = load_runs(MEASURED / f"core_{arguments.family}.csv")
    rows = choose_rows(table.rows, core.rows, most_of_group=arguments.rows)
    rows = rows[:: arguments.every]
    cases = load_cases(rows, arguments.cases)
    print(f"{len(cases)} of {len(rows)} rows in {len(list_groups(cases))} groups", flush=True)
    problem = build_problem(cases, arguments.family)
    value = problem.solve(np.ones(len(cases), dtype=bool))
    errors = leave_out(problem)
    spreads = find_spreads(errors)
    names: set[object] = {row.name for row in core.rows}
    report(problem, value, spreads, names)
    told = report_publishers(errors, names)
    for key, one in zip(problem.keys, value, strict=True):
        if abs(one) >= SMALL:
            print(f"{' '.join(key):44} {math.exp(one):7.3f}")
    print(spreads)
    if arguments.write:
        write_stacks(problem, value, spreads)
        if OF_CHIP[arguments.family]:
            write_chips(problem, value)
        write_spread(problem, spreads, arguments.family)
        write_held_out(told, arguments.family)


if __name__ == "__main__":
    main()
