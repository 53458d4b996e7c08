"""Fit the few constants of a recommendation profile to measured runs, and score them on others.

    python experiments/dlrm_runs/fit.py ../shared/data/runs hugectr_hash gemm memory keys

Each word is a factor on the times of a family of kernels (`kernel_time_ratio`); `keys` multiplies
`tables.key_time` instead. With eight rows or more outside core_dlrm.csv the factors are fitted on
those and scored on the core rows; otherwise each configuration (model, GPU, number of GPUs,
precision, batch, software) is scored with itself left out. Profiles joined by + share the factors.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfmodel.costs.models import FAMILIES
from perfmodel.costs.pricing import price_job
from perfmodel.engine.steady import find_period
from perfmodel.execution.serial import SerialExecutor
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.interference import settle_interference
from perfmodel.stacks.profiles import load_stack
from perfmodel.validation.runs_question import RunSetting, build_question
from perfmodel.validation.runs_software import RULES, find_rule
from perfmodel.validation.runs_table import RunRow, load_runs

ENOUGH_ROWS = 8
FAMILY_OF = {"keys": "fixed"} | {
    word: word for word in ("gemm", "memory", "embedding", "communication", "copy", "host")
}
CONFIGURATION = ("model", "gpu", "n_gpus", "precision", "gbs", "software")
PENALTY = 0.02
"""Cost of a factor of e, so that what the rows do not tell stays at 1."""

Factors = Mapping[str, float]


class Case:
    """A measured run, priced once; factors are applied to its prices."""

    def __init__(self, setting: RunSetting, row: RunRow) -> None:
        question = build_question(setting, row)
        plain = dataclasses.replace(question.stack, kernel_time_ratio={})
        priced = price_job(question.run.job, cluster=question.cluster, stack=plain)
        self.row = row
        self._folded = fold_costs(priced)

    @property
    def configuration(self) -> tuple[str, ...]:
        """What runs are left out together by."""
        return tuple(self.row.text(name) for name in CONFIGURATION)

    def log_ratio(self, factors: Factors) -> float:
        """How far the prediction is off, as a logarithm."""
        replay = SerialExecutor().replay
        folded = settle_interference(replay, self._scaled(factors)).folded
        steady = find_period(replay, folded.priced.job, folded.priced.durations)
        assert self.row.measured_s is not None
        return float(np.log(int(steady.period_ns[0]) / 1e9 / self.row.measured_s))

    def _scaled(self, factors: Factors) -> FoldedCosts:
        scale = np.ones(len(FAMILIES))
        for word, factor in factors.items():
            scale[FAMILIES.index(FAMILY_OF[word])] = factor
        priced = self._folded.priced
        float_ns = priced.float_ns * scale[priced.family]
        values = np.rint(float_ns).astype(np.int64)[:, None]
        durations = dataclasses.replace(priced.durations, values_ns=values)
        scaled = dataclasses.replace(priced, float_ns=float_ns, durations=durations)
        return dataclasses.replace(self._folded, priced=scaled)


def fit(cases: Sequence[Case], words: Sequence[str], start: Factors | None = None) -> Factors:
    """Coordinate search over the logarithms of the factors, for the least squared error."""
    factors = dict(start or dict.fromkeys(words, 1.0))

    def loss(trial: Factors) -> float:
        ratios = [case.log_ratio(trial) for case in cases]
        penalty = sum(abs(np.log(value)) for value in trial.values())
        return float(np.sqrt(np.mean(np.square(ratios))) + PENALTY * penalty)

    best, step = loss(factors), 0.08 if start else 0.3
    while step > 0.015:
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


def describe(name: str, ratios: Sequence[float]) -> None:
    """Print the score of *ratios*."""
    errors = np.expm1(ratios) * 100
    sizes = np.abs(errors)
    print(
        f"{name:22} rows {len(errors):3} MAPE {sizes.mean():6.1f} median {np.median(sizes):6.1f} "
        f"worst {sizes.max():6.1f} bias {errors.mean():+6.1f} scatter of ln {np.std(ratios):.3f}"
    )


def main(folder: Path, profiles: Sequence[str], words: Sequence[str]) -> None:
    """Fit, score and print."""
    table, core = load_runs(folder / "dlrm.csv"), load_runs(folder / "core_dlrm.csv")
    names = dict.fromkeys(rule.profile for rule in RULES)
    setting = RunSetting(table.family, {name: load_stack(name) for name in names})
    core_names = {row.name for row in core.rows}
    cases = [
        Case(setting, row)
        for row in table.rows
        if row.measured_s is not None and find_rule(row).profile in profiles
    ]
    scored = [case for case in cases if case.row.name in core_names]
    others = [case for case in cases if case.row.name not in core_names]
    describe("core, nothing fitted", [case.log_ratio({}) for case in scored])
    if len(others) >= ENOUGH_ROWS:
        factors = fit(others, words)
        describe("fitted rows", [case.log_ratio(factors) for case in others])
        held = [case.log_ratio(factors) for case in scored]
        describe("core, held out", held)
    else:
        factors = fit(cases, words)
        describe("fitted rows", [case.log_ratio(factors) for case in cases])
        held = []
        for case in scored:
            kept = [one for one in cases if one.configuration != case.configuration]
            held.append(case.log_ratio(fit(kept, words, factors)))
        describe("core, each left out", held)
    print({word: round(value, 3) for word, value in factors.items()})
    for case, ratio in zip(scored, held, strict=True):
        row = case.row
        print(
            f"   {row.name} {row.text('gpu')} x {row.text('n_gpus')} {row.text('precision')[:12]} "
            f"{row.text('gbs')}: {100 * np.expm1(ratio):+.1f}, with its own row "
            f"{100 * np.expm1(case.log_ratio(factors)):+.1f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split("+"), sys.argv[3:])
