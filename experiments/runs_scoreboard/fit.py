"""Fit the few constants of a software profile to measured runs, and score them on others.

    python experiments/runs_scoreboard/fit.py ../shared/data/runs llm_foundry host arithmetic

Fits on the rows of transformer.csv.gz that are not in core_transformer.csv (every n-th of them) and
scores the rows of the core table; a stack without other rows is scored leave-one-configuration-out.
`host` divides `host_speed_ratio`, `arithmetic` multiplies `sustained_slowdown`. The words `memory`,
`attention`, `gemm`, `communication` are factors that profiles cannot state yet: they show what such
a key would bring. Other words keep only rows whose source or GPU contains one of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.costs.stack_files import load_stack
from perfmodel.engine.replay import replay
from perfmodel.engine.steady import find_period
from perfmodel.prediction.folded_costs import fold_costs
from perfmodel.validation.runs_question import RunSetting, build_question
from perfmodel.validation.runs_software import RULES, find_rule
from perfmodel.validation.runs_table import RunRow, load_runs

MOST_ROWS = 36
ENOUGH_ROWS = 8
DLRM_PROFILES = ("hugectr", "torchrec", "ngc_dlrm")
FAMILIES_OF = {
    "host": ("host",),
    "arithmetic": (),
    "gemm": ("gemm",),
    "memory": ("memory", "embedding"),
    "attention": ("attention",),
    "communication": ("communication",),
}


class Case:
    """A measured run; factors are applied to its prices."""

    def __init__(self, setting: RunSetting, row: RunRow) -> None:
        self.question = build_question(setting, row)
        self.row = row
        self.steps = self.question.run.steps
        self._priced: dict[float, list[PricedJob]] = {}

    def priced(self, arithmetic: float) -> list[PricedJob]:
        """The jobs with *arithmetic* times the profile's slow-down; memory passes keep theirs."""
        if arithmetic not in self._priced:
            question = self.question
            base = question.stack.slowdown(question.cluster.device.architecture.value)
            stack = dataclasses.replace(
                question.stack, sustained_slowdown={"default": base * arithmetic}
            )
            jobs = [question.run.job] + ([question.run.larger] if question.run.larger else [])
            self._priced[arithmetic] = [
                fold_costs(price_job(job, cluster=question.cluster, stack=stack)).priced
                for job in jobs
            ]
        return self._priced[arithmetic]

    @property
    def configuration(self) -> tuple[str, ...]:
        """What runs are left out together by."""
        names = ("model", "seq_len", "tp", "pp", "mbs", "precision", "gpu", "n_gpus")
        return tuple(self.row.text(name) for name in names)

    def predict_s(self, factors: dict[str, float]) -> float:
        """The iteration with *factors* applied."""
        rest = {word: factor for word, factor in factors.items() if word != "arithmetic"}
        priced_jobs = self.priced(factors.get("arithmetic", 1.0))
        times = [_period_ns(priced, rest) for priced in priced_jobs]
        total = times[0] + (self.steps * (times[1] - times[0]) if len(times) > 1 else 0.0)
        return total / 1e9

    def log_ratio(self, factors: dict[str, float]) -> float:
        """How far the prediction is off, as a logarithm."""
        return float(np.log(self.predict_s(factors) / self.row.measured_s))


def _period_ns(priced: PricedJob, factors: dict[str, float]) -> int:
    scale = np.ones(len(FAMILIES))
    for word, factor in factors.items():
        for family in FAMILIES_OF[word]:
            scale[FAMILIES.index(family)] *= factor
    values = np.rint(priced.float_ns * scale[priced.family]).astype(np.int64)[:, None]
    durations = dataclasses.replace(priced.durations, values_ns=values)
    run = lambda job, table, iterations: replay(job, table, iterations=iterations)  # noqa: E731
    return int(find_period(run, priced.job, durations).period_ns[0])


def fit(cases: list[Case], words: list[str]) -> dict[str, float]:
    """Coordinate search over the logarithms of the factors, for the least mean |log ratio|."""
    factors = dict.fromkeys(words, 1.0)

    def loss(trial: dict[str, float]) -> float:
        ratios = [case.log_ratio(trial) for case in cases]
        return float(np.mean(np.abs(ratios)) + 0.01 * sum(abs(np.log(v)) for v in trial.values()))

    best, step = loss(factors), 0.5
    while step > 0.02:
        moved = False
        for word in words:
            for sign in (1.0, -1.0):
                trial = {**factors, word: factors[word] * float(np.exp(sign * step))}
                value = loss(trial)
                if value < best - 1e-6:
                    best, factors, moved = value, trial, True
                    break
        if not moved:
            step /= 2.0
    return factors


def describe(name: str, ratios: list[float]) -> None:
    """Print the score of *ratios*."""
    errors = np.expm1(ratios) * 100
    sizes = np.abs(errors)
    print(
        f"{name:22} rows {len(errors):4} MAPE {sizes.mean():6.1f} median {np.median(sizes):6.1f} "
        f"p90 {np.quantile(sizes, 0.9):6.1f} bias {errors.mean():+6.1f}"
    )


def build_cases(
    setting: RunSetting, rows: Iterable[RunRow], profile: str, sources: list[str]
) -> list[Case]:
    """Cases of at most MOST_ROWS of *rows* that ran under *profile*, evenly taken."""

    def is_wanted(row: RunRow) -> bool:
        is_named = not sources or any(word in row.group for word in sources)
        is_scored = row.text("tier") in ("A", "B") and row.measured_s is not None
        known = any(rule.words in row.text("software") for rule in RULES)
        return is_named and is_scored and known and find_rule(row).profile == profile

    wanted = [row for row in rows if is_wanted(row)]
    cases = []
    for row in wanted[:: max(1, -(-len(wanted) // MOST_ROWS))]:
        with contextlib.suppress(InputError):
            cases.append(Case(setting, row))
    return cases


def main(folder: Path, profile: str, words: list[str], sources: list[str]) -> None:
    """Fit, score and print."""
    is_dlrm = profile in DLRM_PROFILES
    table = load_runs(folder / ("dlrm.csv" if is_dlrm else "transformer.csv.gz"))
    core = load_runs(folder / ("core_dlrm.csv" if is_dlrm else "core_transformer.csv"))
    profiles = {rule.profile for rule in RULES}
    setting = RunSetting(table.family, {name: load_stack(name) for name in profiles})
    core_names = {row.name for row in core.rows}
    rest = [row for row in table.rows if row.name not in core_names]
    others = build_cases(setting, rest, profile, sources)
    scored = build_cases(setting, core.rows, profile, sources)
    describe("core before", [case.log_ratio({}) for case in scored])
    if len(others) >= ENOUGH_ROWS:
        factors = fit(others, words)
        describe("fitted rows", [case.log_ratio(factors) for case in others])
        describe("core (held out)", [case.log_ratio(factors) for case in scored])
    else:
        held = []
        for case in scored:
            kept = [one for one in scored if one.configuration != case.configuration]
            held.append(case.log_ratio(fit(kept, words)))
        factors = fit(scored + others, words)
        describe("core (each left out)", held)
    print({word: round(value, 3) for word, value in factors.items()})
    for case in scored:
        print(f"   {case.row.name} {100 * np.expm1(case.log_ratio(factors)):+.1f}")


if __name__ == "__main__":
    arguments = sys.argv[3:]
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        [word for word in arguments if word in FAMILIES_OF],
        [word for word in arguments if word not in FAMILIES_OF],
    )
