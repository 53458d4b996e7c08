"""Cases: measured runs as jobs, with what each family of kernels adds to the iteration.

The question, its prices, the interference and the search for the period are those of
`perfmodel validate runs`; one replay more shows how the period follows each family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.costs.attention import is_sustained
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.sustained import ARITHMETIC, chip_factor, hot_shares
from perfmodel.extensions.measurements.calibration.anchors import Kind
from perfmodel.extensions.measurements.calibration.observing import observe
from perfmodel.extensions.measurements.validation.runs_question import read_setting
from perfmodel.extensions.measurements.validation.runs_table import RunRow
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Attention, Gemm, GroupedGemm
from perfmodel.prediction.predict import price
from perfmodel.prediction.question import PredictOptions, Question, build_question
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

DRAWS = {"dlrm": 16}
"""Draws of kernels, for families without features that say what they make unsure."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run: how far its prediction is off, and how it follows each family of kernels.

    *error* is the logarithm of predicted over measured; *shares* the derivative of the logarithm
    of the prediction by that of a family's times; *hot* the derivative of the logarithm of its
    products' times by that of the chip's factor, *fused* the share of attention in kernels of its
    own, *grouped* that of GEMMs in grouped ones; *kernel_sigma* what kernels alone make unsure,
    *features* what else widens its interval, *kind* how much it says of other runs.
    """

    row: RunRow
    stack: str
    architecture: str
    device: str
    hosts: int
    is_tensor: bool
    is_narrow: bool
    error: float
    shares: tuple[float, ...]
    hot: float
    fused: float
    grouped: float
    kernel_sigma: float
    features: Mapping[str, float]
    kind: Kind

    @property
    def publisher(self) -> str:
        """Who published it: releases of one summary are one source."""
        return re.sub(r"[\d.]+.*", "", self.row.text("source")).strip()

    @property
    def is_transformer(self) -> bool:
        """Whether a Transformer was trained."""
        return self.row.family == "transformer"

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
    device, found = setting.cluster.device, observe(question, draws=DRAWS.get(row.family, 0))
    assert row.measured_s is not None
    return Case(
        row=row,
        stack=setting.stack.name,
        architecture=device.generation,
        device=device.name,
        hosts=setting.cluster.host_count,
        is_tensor=row.text("compute_precision") != "fp32",
        is_narrow=row.text("compute_precision").endswith("fp8"),
        error=float(np.log(found.period_ns / 1e9 / row.measured_s)),
        shares=tuple(found.shares.tolist()),
        hot=_hotness(question.job, device, setting.stack),
        fused=_fused_share(question.job, device, setting.stack),
        grouped=_grouped_share(question),
        kernel_sigma=found.kernel_sigma,
        features=found.features,
        kind=found.kind,
    )


def _hotness(job: JobGraph, device: Device, stack: SoftwareStack) -> float:
    """How products of the first rank follow the chip's factor, by the operations they have."""
    counts = np.bincount(job.program_of(0).op, minlength=len(job.ops))
    factor = chip_factor(ARITHMETIC, device)
    total = followed = 0.0
    for kind in (Gemm, GroupedGemm):
        places = [place for place, op in enumerate(job.ops) if counts[place] and type(op) is kind]
        ops = [job.ops[place] for place in places]
        shares = hot_shares(ops, device, stack)  # type: ignore[arg-type]  # all of one kind
        work = counts[places] * np.array([op.flops for op in ops])
        total += float(work.sum())
        followed += float(np.sum(work * factor * shares / (1 + (factor - 1) * shares)))
    return followed / total if total else 0.0


def _fused_share(job: JobGraph, device: Device, stack: SoftwareStack) -> float:
    ops = [op for op in job.ops if isinstance(op, Attention)]
    fused = sum(op.flops for op in ops if is_sustained(op, device, stack))
    return fused / sum(op.flops for op in ops) if ops else 0.0


def _grouped_share(question: Question) -> float:
    """The share of the time of GEMMs that grouped ones take, on the first rank."""
    [priced] = price(question, [question.job])
    rows, ops = priced.rows_of_rank(0), question.job.ops
    times_ns = np.where(priced.family[rows] == FAMILIES.index("gemm"), priced.float_ns[rows], 0.0)
    is_grouped = np.array([isinstance(op, GroupedGemm) for op in ops])
    if not is_grouped.any():
        return 0.0
    mine = times_ns[is_grouped[question.job.program_of(0).op]].sum()
    return float(mine / max(times_ns.sum(), 1.0))


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
