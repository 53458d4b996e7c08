"""Cases: measured runs as jobs, with what each family of kernels adds to the iteration.

The question, its prices, the interference and the search for the period are those of
`perfmodel validate runs`; one replay more shows how the period follows each family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import InputError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import find_period
from perfmodel.execution.executor import SerialExecutor
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.interference import contention_rules, fold_costs, settle_costs
from perfmodel.prediction.loops import replay_samples
from perfmodel.prediction.question import PredictOptions, Question, build_question
from perfmodel.stacks.capabilities import Family
from perfmodel.stacks.spread import NO_SPREAD
from perfmodel.validation.runs_question import read_setting
from perfmodel.validation.runs_table import RunRow

DRAWS = 16
STEP = 0.15
"""How much longer each family is made, as a logarithm, to see what it carries."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run: how far its prediction is off, and how it follows each family of kernels.

    *error* is the logarithm of predicted over measured; *shares* the derivative of the logarithm
    of the prediction by that of a family's times; *kernel_sigma* what kernels alone make unsure.
    """

    row: RunRow
    stack: str
    architecture: str
    device: str
    hosts: int
    is_tensor: bool
    loads_long: bool
    error: float
    shares: tuple[float, ...]
    kernel_sigma: float

    @property
    def publisher(self) -> str:
        """Who published it: releases of one summary are one source."""
        return re.sub(r"[\d.]+.*", "", self.row.text("source")).strip()

    @property
    def is_transformer(self) -> bool:
        """Whether a Transformer was trained."""
        return self.row.family is Family.TRANSFORMER

    @property
    def has_experts(self) -> bool:
        """Whether tokens choose among experts."""
        return self.is_transformer and (self.row.value("experts") or 0) > 1

    @property
    def group(self) -> tuple[str, str, str]:
        """What is left out together."""
        return self.publisher, self.row.text("model"), self.device

    @property
    def configuration(self) -> tuple[str, ...]:
        """Framework, release, machine and GPUs: what else is left out together."""
        return tuple(self.row.text(name) for name in ("framework", "release", "machine", "n_gpus"))


def build_case(asked: PredictOptions, row: RunRow) -> Case | None:
    """The case of *row*, or None where it cannot be predicted."""
    try:
        setting = read_setting(row, asked)
        question = build_question(setting)
    except InputError:
        return None
    times_ns = _times_ns(question, question.job)
    if question.extrapolation is not None:
        larger_ns = _times_ns(question, question.extrapolation.larger)
        times_ns = times_ns + float(question.extrapolation.steps) * (larger_ns - times_ns)
    assert row.measured_s is not None
    logs = np.log(times_ns / times_ns[0])
    device = setting.cluster.device
    return Case(
        row=row,
        stack=setting.stack.name,
        architecture=device.architecture.value,
        device=device.name,
        hosts=setting.cluster.host_count,
        is_tensor=row.text("compute_precision") != "fp32",
        loads_long=setting.stack.loads_long,
        error=float(np.log(times_ns[0] / 1e9 / row.measured_s)),
        shares=tuple((logs[1 : 1 + len(FAMILIES)] / STEP).tolist()),
        kernel_sigma=float(np.std(logs[1 + len(FAMILIES) :])),
    )


def _times_ns(question: Question, job: JobGraph) -> NDArray[np.float64]:
    """The period of *job*, then with each family a step longer, then with kernels drawn."""
    assert question.cluster is not None
    assert question.stack is not None
    replay = SerialExecutor().replay
    priced = price_job(job, cluster=question.cluster, stack=question.stack)
    alone = fold_costs(priced)
    settled = settle_costs(replay, alone, contention_rules(alone.priced)).priced
    steady = find_period(replay, settled.job, settled.durations)
    longer = [np.where(settled.family == code, STEP, 0.0) for code in range(len(FAMILIES))]
    factors = np.exp(np.column_stack([np.zeros(len(settled.float_ns)), *longer]))
    stretched = np.rint(settled.float_ns[:, None] * factors).astype(np.int64)
    samples = replace(settled, spread=NO_SPREAD).sample(DRAWS, seed=0)
    drawn = samples.vectors(0, DRAWS).values_ns
    values_ns = np.ascontiguousarray(np.concatenate([stretched, drawn], axis=1))
    table = DurationTable(values_ns, settled.durations.rank_offset)
    iterations = steady.replay.iteration_count
    return replay_samples(replay, settled.job, table, iterations=iterations)


def choose_rows(
    rows: Iterable[RunRow], core: Iterable[RunRow], *, most_of_group: int
) -> list[RunRow]:
    """All core rows, and others evenly taken until a group has *most_of_group* rows."""
    chosen = {row.name: row for row in core if row.measured_s is not None}
    by_group: dict[tuple[str, ...], list[RunRow]] = {}
    for row in rows:
        if row.measured_s is not None and row.text("tier") in ("A", "B"):
            key = tuple(row.text(name) for name in ("source", "model", "device"))
            by_group.setdefault(key, []).append(row)
    for members in by_group.values():
        missing = most_of_group - sum(row.name in chosen for row in members)
        rest = [row for row in members if row.name not in chosen]
        for row in rest[:: max(1, -(-len(rest) // max(missing, 1)))] if missing > 0 else []:
            chosen[row.name] = row
    return list(chosen.values())


def list_groups(cases: Sequence[Case]) -> list[tuple[str, str, str]]:
    """Everything that is left out together."""
    return list(dict.fromkeys(case.group for case in cases))
