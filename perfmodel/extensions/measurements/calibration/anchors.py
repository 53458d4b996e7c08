"""Anchors: runs that a user measured, and what they say of other runs on the same GPUs.

The logarithm of measured over predicted is a sum: for each family of kernels, the share of the run
that it carries times how far off it is on this machine; errors that runs of one machine, stack,
model and number format have in common; and an error of the run itself. All are normal and
independent. `perfmodel/stacks/anchors.yaml` says how large they are; all but those of the run
itself grow with the spread that a prediction has without anchors. Conditioning on the anchors
gives a factor for each family, and what remains of the interval.

Errors of single runs have heavy tails: a row far from what the others say loses weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import perfmodel.stacks
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Count, Duration, Line, Positive, Ratio
from perfmodel.base.forms import CalibrationHeader, Form, load_document
from perfmodel.base.provenance import Provenance
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.ops import EmbeddingOp, Gemm, GroupedGemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster

Floats = NDArray[np.float64]
FACTORS = ("gemm", "attention", "memory", "embedding", "communication", "host")
"""The families that anchors tell apart; `copy` moves with what all have in common."""
PRIOR_FILE = Path(next(iter(perfmodel.stacks.__path__))) / "anchors.yaml"
MOST_ROUNDS = 30
_Sigma = Annotated[float, Field(strict=True, ge=0, le=2)]
_Share = Annotated[float, Field(strict=True, ge=-1, le=3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Form):
    """What decides how much two runs say of each other."""

    device: Line
    stack: Line
    family: Line
    model: str
    dtype: str
    hosts: Count
    spread: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor(Kind):
    """A measured run: what was predicted, and the share of the time that each family carries.

    A share is the derivative of the logarithm of the iteration by that of the family's times.
    """

    run: Line
    measured_ns: Duration
    predicted_ns: Duration
    shares: Mapping[str, _Share]

    @property
    def error(self) -> float:
        """The logarithm of measured over predicted."""
        return float(np.log(self.measured_ns / self.predicted_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorFile(CalibrationHeader):
    """Anchors, the *program* that predicted them, and the constants that it used *beside* its own.

    With other constants the anchors say something else.
    """

    program: Line
    beside: tuple[str, ...] = ()
    anchors: tuple[Anchor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior(Form):
    """Standard deviations of logarithms, by what runs have in common.

    Those of families on a *machine*; of all costs in *common* there, and beyond it with one
    *stack*, *model* or number format (*dtype*); of families in a single *run*, and of all of it
    (*whole_run*). Runs say less of each other by *per_doubling* for every doubling of hosts between
    them, and *other_model* times as much of another model.
    """

    machine: Mapping[str, _Sigma]
    common: _Sigma
    stack: _Sigma
    model: _Sigma
    dtype: _Sigma
    run: Mapping[str, _Sigma]
    whole_run: _Sigma
    per_doubling: _Sigma = 0.0
    other_model: Ratio = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorFile(Form):
    """`anchors.yaml`: priors at a *spread*, by family of models; *tails* are degrees of freedom."""

    source: Line
    date: Line
    licence: Line
    command: Line
    spread: Positive
    tails: Positive
    families: Mapping[str, Prior]


@lru_cache(maxsize=1)
def load_priors() -> PriorFile:
    """The priors that come with perfmodel."""
    return load_document(PRIOR_FILE, CalibrationError).read(PriorFile)


@lru_cache(maxsize=8)
def _load(path: Path, changed_ns: int) -> AnchorFile:
    del changed_ns
    return load_anchors(path)


def load_anchors(path: Path) -> AnchorFile:
    """The anchors in the file at *path*."""
    return load_document(path, CalibrationError).read(AnchorFile)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What anchors say of a run: a logarithm for each of FACTORS and, last, for all of it.

    *ratio* is the width of the interval relative to that without anchors, *sigma* the standard
    deviation that is left by the priors alone.
    """

    logs: Floats
    ratio: float
    sigma: float

    def total(self, shares: Floats) -> float:
        """The logarithm by which a run with these *shares* takes longer than predicted."""
        return float(np.append(shares, 1.0) @ self.logs)


def learn(
    anchors: Sequence[Anchor], target: Kind, shares: Floats, file: PriorFile | None = None
) -> Learnt:
    """What *anchors* of the same device say of *target*, which families carry by *shares*.

    *file* has other priors than those that come with perfmodel.
    """
    file = file or load_priors()
    prior = file.families[target.family]
    own_shares = np.array([[one.shares.get(name, 0.0) for name in FACTORS] for one in anchors])
    errors = np.array([one.error for one in anchors])
    machine = np.array([prior.machine[name] for name in FACTORS]) ** 2
    of_run = np.array([prior.run[name] for name in FACTORS]) ** 2
    scale = np.array([one.spread for one in anchors]) / file.spread
    target_scale = target.spread / file.spread
    among = (own_shares * machine) @ own_shares.T
    among += [[_shared(one, other, prior) for other in anchors] for one in anchors]
    among *= np.outer(scale, scale)
    among *= [[_nearness(one, other, prior) for other in anchors] for one in anchors]
    near = scale * target_scale * [_nearness(one, target, prior) for one in anchors]
    towards = np.vstack(
        [(own_shares * machine).T, [[_shared(one, target, prior) for one in anchors]]]
    )
    towards *= near
    noise = own_shares**2 @ of_run + prior.whole_run**2
    inverse = _downweighted(among, noise, errors, file.tails)
    whole = np.append(shares, 1.0)
    before = float(np.append(machine, _shared(target, target, prior)) @ whole**2) * target_scale**2
    before += float(of_run @ shares**2) + prior.whole_run**2
    covered = whole @ towards
    left = max(before - float(covered @ inverse @ covered), 0.0)
    sigma = float(np.sqrt(left))
    return Learnt(towards @ inverse @ errors, sigma / float(np.sqrt(before)), sigma)


def _shared(one: Kind, other: Kind, prior: Prior) -> float:
    """The variance that both have in common whatever carries their time."""
    return (
        prior.common**2
        + prior.stack**2 * (one.stack == other.stack)
        + prior.model**2 * (one.model == other.model)
        + prior.dtype**2 * (one.dtype == other.dtype)
    )


def _nearness(one: Kind, other: Kind, prior: Prior) -> float:
    near = float(np.exp(-prior.per_doubling * abs(np.log2(one.hosts / other.hosts))))
    return near if one.model == other.model else near * prior.other_model


def _downweighted(among: Floats, noise: Floats, errors: Floats, tails: float) -> Floats:
    """The inverse of the covariance of *errors*.

    The error of a run itself has a t-distribution: its variance is raised until it agrees with
    what it is expected to be.
    """
    raised = np.ones(len(errors))
    for _ in range(MOST_ROUNDS):
        own = noise * raised
        inverse: Floats = np.linalg.inv(among + np.diag(own)).astype(np.float64)
        expected = (own * (inverse @ errors)) ** 2 + own - own**2 * np.diag(inverse)
        before, raised = raised, np.maximum((tails + expected / noise) / (tails + 1), 1.0)
        if np.max(np.abs(raised - before)) < 1e-3:
            break
    return inverse


def kind_of(priced: PricedJob, cluster: Cluster, stack: SoftwareStack) -> Kind:
    """What decides how much other runs say of the job of *priced*."""
    ops, facts = priced.job.ops, priced.job.facts
    family = "transformer"
    if any(isinstance(op, GroupedGemm) for op in ops):
        family = "experts"
    elif any(isinstance(op, EmbeddingOp) for op in ops):
        family = "dlrm"
    counts = np.bincount(priced.job.program_of(0).op, minlength=len(ops))
    flops: dict[str, float] = {}
    for op, count in zip(ops, counts.tolist(), strict=True):
        if isinstance(op, Gemm | GroupedGemm):
            dtype = stack.matmul_dtypes.get(op.dtype, op.dtype).value
            flops[dtype] = flops.get(dtype, 0.0) + count * op.flops
    return Kind(
        device=cluster.device.name,
        stack=stack.name,
        family=family,
        model=facts.model,
        dtype=max(flops, key=lambda name: flops[name], default=""),
        hosts=cluster.host_count,
        spread=priced.spread.relative_sigma,
    )


def apply_anchors(
    priced: PricedJob, cluster: Cluster, stack: SoftwareStack, files: Sequence[Path]
) -> PricedJob:
    """*priced* as the anchors in *files* have it; those of other GPUs say nothing."""
    loaded = [_load(path, path.stat().st_mtime_ns if path.is_file() else 0) for path in files]
    names = ", ".join(map(str, files))
    target = kind_of(priced, cluster, stack)
    anchors = [one for file in loaded for one in file.anchors]
    used = [one for one in anchors if one.device == target.device and _is_related(one, target)]
    if not used:
        others = ", ".join(dict.fromkeys(f"{one.device} ({one.family})" for one in anchors))
        return _said(
            priced, f"{names}: its runs are of {others}, so nothing here is anchored on them."
        )
    learnt = learn(used, target, _time_shares(priced))
    logs = np.full(len(FAMILIES), learnt.logs[-1])
    logs[[FAMILIES.index(name) for name in FACTORS]] += learnt.logs[:-1]
    logs[FAMILIES.index("fixed")] = 0.0
    factors = np.where(priced.provenance == Provenance.RECORDED, 1.0, np.exp(logs)[priced.family])
    float_ns, link_use = priced.float_ns * factors, priced.link_use.copy()
    link_use[:, 2] /= factors
    changed = replace(
        priced,
        durations=DurationTable(
            np.rint(float_ns).astype(np.int64)[:, None], priced.durations.rank_offset
        ),
        float_ns=float_ns,
        link_use=link_use,
        relative_sigma=priced.relative_sigma * learnt.ratio,
        spread=replace(priced.spread, relative_sigma=priced.spread.relative_sigma * learnt.ratio),
    )
    about = _sentence(used, learnt, target, names, [*_stale(loaded, cluster, files)])
    return _said(changed, about)


def _is_related(one: Anchor, target: Kind) -> bool:
    """Whether both are recommendation models, or neither is."""
    return (one.family == "dlrm") == (target.family == "dlrm")


def _said(priced: PricedJob, sentence: str) -> PricedJob:
    told = f"{priced.spread.sentence} {sentence}".strip()
    return replace(priced, spread=replace(priced.spread, sentence=told))


def _time_shares(priced: PricedJob) -> Floats:
    """The share of the time of all kernels and collectives that each family takes."""
    of_family = np.bincount(priced.family, priced.float_ns, minlength=len(FAMILIES))
    found = of_family[[FAMILIES.index(name) for name in FACTORS]]
    # Hosts run ahead of their GPU in almost all jobs.
    found[FACTORS.index("host")] = 0.0
    return np.asarray(found / max(float(found.sum()), 1.0))


def _sentence(
    used: Sequence[Anchor], learnt: Learnt, target: Kind, names: str, more: Sequence[str]
) -> str:
    run = "run" if len(used) == 1 else "runs"
    factors = ", ".join(
        f"{name} {np.exp(log):.3f}"
        for name, log in zip((*FACTORS, "all"), learnt.logs.tolist(), strict=True)
        if abs(np.expm1(log)) >= 5e-4
    )
    near = [
        f"{count} of them with another {word}"
        for word, count in (
            ("stack", sum(one.stack != target.stack for one in used)),
            ("model", sum(one.model != target.model for one in used)),
            ("number format", sum(one.dtype != target.dtype for one in used)),
        )
        if count
    ]
    said = f"Anchored on {len(used)} {run} of {names}{', ' if near else ''}{', '.join(near)}: "
    said += f"times are multiplied ({factors or 'by 1'}), and the interval has {learnt.ratio:.0%} "
    return " ".join((said + "of its width without anchors.", *more))


def _stale(loaded: Sequence[AnchorFile], cluster: Cluster, files: Sequence[Path]) -> list[str]:
    from perfmodel.base.identity import program_identity

    own = {str(path) for path in files}
    beside = tuple(one for one in cluster.device.calibrations if one not in own)
    said = []
    if any(file.program != program_identity() for file in loaded):
        said.append("Another version of perfmodel predicted the anchors: calibrate them again.")
    if any(set(file.beside) != set(beside) for file in loaded):
        said.append(
            "The anchors were predicted with other constants beside them "
            f"({', '.join(loaded[0].beside) or 'none'}): calibrate them again with these."
        )
    return said
