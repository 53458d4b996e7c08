"""Cases: measured runs as jobs whose prices can be scaled by the constants of a profile.

The question, the interference and the search for the period are those of
`perfmodel validate runs`; only the factors on prices are new.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.pricing import price_job
from perfmodel.engine.steady import find_period
from perfmodel.execution.serial import SerialExecutor
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.interference import settle_interference
from perfmodel.validation.runs_question import RunSetting, build_question
from perfmodel.validation.runs_software import RULES
from perfmodel.validation.runs_table import RunRow

CONSTANTS = ("host", "arithmetic", "gemm", "attention", "memory", "communication")
"""`host` divides host_speed_ratio, `arithmetic` multiplies sustained_slowdown, the others
multiply kernel_time_ratio of their family."""


class Case:
    """A measured run; factors are applied to its prices."""

    def __init__(self, setting: RunSetting, row: RunRow) -> None:
        self.question = build_question(setting, row)
        self.row = row
        self.architecture = self.question.cluster.device.architecture.value
        self._folded: dict[float, list[FoldedCosts]] = {}

    @property
    def configuration(self) -> tuple[str, ...]:
        """What runs are left out together by."""
        names = ("model", "seq_len", "tp", "pp", "precision", "gpu", "n_gpus")
        return tuple(self.row.text(name) for name in names)

    def stated(self, word: str) -> float:
        """What the profile states for *word* on this run's GPU, 1 for the host."""
        stack = self.question.stack
        if word == "arithmetic":
            return stack.slowdown(self.architecture)
        return 1.0 if word == "host" else stack.time_ratio(word, self.architecture)

    def predict_s(self, factors: Mapping[str, float]) -> float:
        """The iteration with *factors* applied."""
        times = [
            _period_ns(folded, factors) for folded in self._prices(factors.get("arithmetic", 1.0))
        ]
        steps = self.question.run.steps
        return (times[0] + (steps * (times[-1] - times[0]) if len(times) > 1 else 0.0)) / 1e9

    def log_ratio(self, factors: Mapping[str, float]) -> float:
        """How far the prediction is off, as a logarithm."""
        assert self.row.measured_s is not None
        return float(np.log(self.predict_s(factors) / self.row.measured_s))

    def _prices(self, arithmetic: float) -> list[FoldedCosts]:
        if arithmetic not in self._folded:
            question = self.question
            slowdown = {"default": question.stack.slowdown(self.architecture) * arithmetic}
            stack = dataclasses.replace(question.stack, sustained_slowdown=slowdown)
            jobs = [job for job in (question.run.job, question.run.larger) if job is not None]
            self._folded[arithmetic] = [
                fold_costs(price_job(job, cluster=question.cluster, stack=stack)) for job in jobs
            ]
        return self._folded[arithmetic]


def _period_ns(folded: FoldedCosts, factors: Mapping[str, float]) -> int:
    scale = np.ones(len(FAMILIES))
    for word, factor in factors.items():
        if word in FAMILIES:
            scale[FAMILIES.index(word)] = factor
    priced = folded.priced
    float_ns = priced.float_ns * scale[priced.family]
    values_ns = np.rint(float_ns).astype(np.int64)[:, None]
    scaled = dataclasses.replace(
        priced,
        float_ns=float_ns,
        durations=dataclasses.replace(priced.durations, values_ns=values_ns),
    )
    replay = SerialExecutor().replay
    settled = settle_interference(replay, dataclasses.replace(folded, priced=scaled)).folded.priced
    return int(find_period(replay, settled.job, settled.durations).period_ns[0])


def build_cases(
    setting: RunSetting,
    rows: Iterable[RunRow],
    profiles: Sequence[str],
    kept: Sequence[str],
    *,
    most: int | None = None,
) -> list[Case]:
    """Cases of *rows* that ran under *profiles*, at most *most* of them, evenly taken.

    *kept* are words of sources and GPUs; `several-hosts` and `one-host` choose by machines.
    """
    wanted = [row for row in rows if _is_wanted(row, profiles, kept)]
    cases = []
    for row in wanted[:: max(1, -(-len(wanted) // (most or len(wanted) or 1)))]:
        with contextlib.suppress(InputError):
            cases.append(Case(setting, row))
    return cases


def _is_wanted(row: RunRow, profiles: Sequence[str], kept: Sequence[str]) -> bool:
    words = [word for word in kept if not word.endswith(("-host", "-hosts"))]
    is_named = not words or any(word in row.group for word in words)
    hosts = row.hosts or 1
    is_placed = ("several-hosts" not in kept or hosts > 1) and ("one-host" not in kept or hosts < 2)
    is_scored = row.text("tier") in ("A", "B") and row.measured_s is not None
    rule = next((rule for rule in RULES if rule.fits(row)), None)
    return is_named and is_placed and is_scored and rule is not None and rule.profile in profiles
