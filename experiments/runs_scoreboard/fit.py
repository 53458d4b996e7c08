"""Fit the few constants of a software profile to measured runs, and score them on others.

    python experiments/runs_scoreboard/fit.py ../shared/data/runs llm_foundry gemm attention A100

Fits on the rows of transformer.csv.gz that are not in core_transformer.csv (at most 40, evenly
taken) and scores the rows of the core table; a stack with fewer than eight other rows is scored
with each configuration left out in turn. `host` divides `host_speed_ratio`, `arithmetic`
multiplies `sustained_slowdown`; `gemm`, `attention`, `memory` and `communication` multiply
`kernel_time_ratio`. Several profiles are joined by commas. Other words keep only rows whose source
or GPU contains one of them; `several-hosts` and `one-host` keep rows by their machines. What is
printed last is what the profile should state for the GPUs of those rows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from cases import CONSTANTS, Case, build_cases
from scipy.optimize import least_squares

from perfmodel.stacks.profiles import load_stack
from perfmodel.validation.runs_question import RunSetting
from perfmodel.validation.runs_software import RULES
from perfmodel.validation.runs_table import load_runs

MOST_ROWS = 40
ENOUGH_ROWS = 8
LEAST, MOST = 0.7, 3.0
"""Bounds of what a profile may state for a ratio; the host is free."""
PRIOR = 0.5
"""Natural logarithm by which a constant may move as easily as one row may be off by ROBUST."""
ROBUST = 0.08
SHIFT = 5.0
"""Keeps unknowns away from zero: steps of the search are in proportion to them."""


def fit(cases: Sequence[Case], words: Sequence[str]) -> dict[str, float]:
    """The factors with the least robust error, drawn a little to what the profile states."""

    def residuals(shifted: np.ndarray) -> np.ndarray:
        logs = shifted - SHIFT
        factors = dict(zip(words, np.exp(logs).tolist(), strict=True))
        off = [case.log_ratio(factors) / ROBUST for case in cases]
        return np.array([*off, *(logs / PRIOR)])

    bounds = np.array([_bounds(cases, word) for word in words])
    start = np.clip(np.zeros(len(words)), bounds[:, 0] + 1e-6, bounds[:, 1] - 1e-6)
    found = least_squares(
        residuals, start + SHIFT, loss="soft_l1", diff_step=0.05 / SHIFT, xtol=1e-3, ftol=1e-3,
        bounds=bounds.T + SHIFT, max_nfev=12,
    )  # fmt: skip
    return dict(zip(words, np.exp(found.x - SHIFT).tolist(), strict=True))


def _bounds(cases: Sequence[Case], word: str) -> tuple[float, float]:
    if word == "host":
        return float(np.log(0.05)), float(np.log(20.0))
    stated = [case.stated(word) for case in cases]
    least = 1.0 if word == "arithmetic" else LEAST
    return float(np.log(least / min(stated))) - 1e-5, float(np.log(MOST / max(stated))) + 1e-5


def describe(name: str, ratios: Sequence[float]) -> None:
    """Print the score of *ratios*."""
    errors = np.expm1(ratios) * 100
    sizes = np.abs(errors)
    print(
        f"{name:22} rows {len(errors):4} MAPE {sizes.mean():6.1f} median {np.median(sizes):6.1f} "
        f"p90 {np.quantile(sizes, 0.9):6.1f} bias {errors.mean():+6.1f}",
        flush=True,
    )


def _score_left_out(cases: Sequence[Case], words: Sequence[str]) -> None:
    """Every configuration scored with the others fitted."""
    held = []
    for configuration in dict.fromkeys(case.configuration for case in cases):
        factors = fit([case for case in cases if case.configuration != configuration], words)
        held += [case.log_ratio(factors) for case in cases if case.configuration == configuration]
    describe("core (each left out)", held)


def _print_statement(cases: Sequence[Case], factors: Mapping[str, float]) -> None:
    for architecture in dict.fromkeys(case.architecture for case in cases):
        case = next(one for one in cases if one.architecture == architecture)
        words = [
            f"{word} {1 / value if word == 'host' else case.stated(word) * value:.3f}"
            for word, value in factors.items()
        ]
        print(f"to state for {architecture}: {', '.join(words)} (host: times what it is now)")


def main(folder: Path, profiles: list[str], words: list[str], kept: list[str]) -> None:
    """Fit, score and print."""
    table = load_runs(folder / "transformer.csv.gz")
    core = load_runs(folder / "core_transformer.csv")
    names = {rule.profile for rule in RULES}
    setting = RunSetting(table.family, {name: load_stack(name) for name in names})
    core_names = {row.name for row in core.rows}
    rest = [row for row in table.rows if row.name not in core_names]
    others = build_cases(setting, rest, profiles, kept, most=MOST_ROWS)
    scored = build_cases(setting, core.rows, profiles, kept)
    describe("core before", [case.log_ratio({}) for case in scored])
    factors: dict[str, float] = {}
    if words and len(others) >= ENOUGH_ROWS:
        factors = fit(others, words)
        describe("fitted rows", [case.log_ratio(factors) for case in others])
        describe("core (held out)", [case.log_ratio(factors) for case in scored])
    elif words:
        _score_left_out(scored, words)
        factors = fit([*scored, *others], words)
        describe("core (in sample)", [case.log_ratio(factors) for case in scored])
    _print_statement(scored, factors)
    for case in scored:
        print(f"   {case.row.name} {100 * np.expm1(case.log_ratio(factors)):+.1f}")


if __name__ == "__main__":
    arguments = sys.argv[3:]
    main(
        Path(sys.argv[1]),
        sys.argv[2].split(","),
        [word for word in arguments if word in CONSTANTS],
        [word for word in arguments if word not in CONSTANTS],
    )
