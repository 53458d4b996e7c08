"""Anchors: runs that a user measured, and what they say of other runs on the same GPUs.

The logarithm of measured over predicted is a sum: for each family of kernels, the share of the run
that it carries times how far off it is on this machine; errors that runs of one machine, stack,
model and number format have in common; and an error of the run itself. All are normal and
independent. `perfmodel/stacks/anchors.yaml` says how large they are. They grow with the spread that
a prediction has without anchors, those of the run itself with its root, and never below what is
stated. Conditioning on the anchors gives a factor for each family, and what is left of it.

Errors of single runs have heavy tails: a row far from what the others say loses weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import perfmodel.stacks
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Count, Duration, Line, Positive, Ratio
from perfmodel.base.forms import CalibrationHeader, Form, load_document
from perfmodel.base.provenance import Provenance
from perfmodel.costs.models import FAMILIES, family_of
from perfmodel.costs.priced_job import PricedJob
from perfmodel.extensions.measurements.calibration.own_kernels import (
    KINDS,
    Learning,
    Spot,
    files_of,
    learn_calls,
    learning_of,
    name_kernel,
    spot_of,
)
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.ops import Communication, Gemm, GroupedGemm, Op
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
    them, of their collectives by *links_per_doubling* more, because those use other links, and
    *other_model* times as much of another model. Jobs *with_op* are of this family, the first that
    says so or says nothing; runs of one that is *apart* say nothing of other families.
    """

    machine: Mapping[str, _Sigma]
    common: _Sigma
    stack: _Sigma
    model: _Sigma
    dtype: _Sigma
    run: Mapping[str, _Sigma]
    whole_run: _Sigma
    per_doubling: _Sigma = 0.0
    links_per_doubling: _Sigma = 0.0
    other_model: Ratio = 1.0
    with_op: str = ""
    apart: bool = False

    def variances(self, kind: Kind, spread: float) -> Variances:
        """The variances of a run of *kind*; *spread* is what these deviations are stated at."""
        scale = kind.spread / spread
        own = max(scale, 1.0)
        return Variances(
            np.array([self.machine[name] * scale for name in FACTORS]) ** 2,
            _shared(kind, kind, self) * scale**2,
            np.array([self.run[name] for name in FACTORS]) ** 2 * own,
            self.whole_run**2 * own,
        )


class Variances(NamedTuple):
    """Of the logarithm of a run: families on its machine, in common, its own, and the rest."""

    machine: Floats
    common: float
    run: Floats
    whole_run: float

    def total(self, shares: Floats, left: float | Floats = 1.0) -> float:
        """That of a run with *shares*, where of each family *left* is unknown."""
        return float((self.machine + self.run) @ (shares**2 * left)) + self.common + self.whole_run


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
    of_target = prior.variances(target, file.spread)
    own_shares = np.array([[one.shares.get(name, 0.0) for name in FACTORS] for one in anchors])
    errors = np.array([one.error for one in anchors])
    machine = np.array([prior.machine[name] for name in FACTORS]) ** 2
    scale = np.array([one.spread for one in anchors]) / file.spread
    target_scale = target.spread / file.spread
    everyone = [*anchors, target]
    near = np.array([[_nearness(one, other, prior) for other in everyone] for one in anchors])
    near *= np.outer(scale, np.append(scale, target_scale))
    hosts = np.log2([one.hosts for one in everyone])
    links = np.exp(-prior.links_per_doubling * np.abs(hosts[:-1, None] - hosts))
    shared = np.array([[_shared(one, other, prior) for other in everyone] for one in anchors])
    # By anchor, family (last: all costs) and other run.
    said = np.repeat((own_shares * machine)[:, :, None], len(everyone), axis=2)
    said[:, FACTORS.index("communication")] *= links
    said = np.concatenate([said, shared[:, None, :]], axis=1) * near[:, None, :]
    of_all = np.column_stack([own_shares, np.ones(len(anchors))])
    among = np.einsum("afb,bf->ab", said[:, :, :-1], of_all)
    towards = said[:, :, -1].T
    of_runs = [prior.variances(one, file.spread) for one in anchors]
    noise = np.array(
        [of.run @ own**2 + of.whole_run for of, own in zip(of_runs, own_shares, strict=True)]
    )
    inverse = _downweighted(among, noise, errors, file.tails)
    whole, before = np.append(shares, 1.0), of_target.total(shares)
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
    found = {type(op).__name__ for op in ops}
    families = load_priors().families
    family = next(name for name, one in families.items() if one.with_op in (*found, ""))
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
    priced, timed = _narrow_by_kernels(priced, cluster, stack)
    files = [path for path in files if path not in timed]
    if not files:
        return priced
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


def _narrow_by_kernels(
    priced: PricedJob, cluster: Cluster, stack: SoftwareStack
) -> tuple[PricedJob, tuple[Path, ...]]:
    """*priced*, whose prices know timed kernels, with the interval that they leave; their files."""
    files = files_of(cluster.device)
    if not files:
        return priced, files
    ratio = Parts.of(priced, cluster, stack).ratio(*learnt_of(cluster, stack))
    names = ", ".join(map(str, files))
    if ratio == 1.0:
        return _said(priced, f"{names}: no kernel of this job and GPU is in it."), files
    spread = replace(priced.spread, relative_sigma=priced.spread.relative_sigma * ratio)
    said = f"Times of {names} count, and the interval has {ratio:.0%} of its width without them."
    return _said(replace(priced, spread=spread), said), files


def learnt_of(cluster: Cluster, stack: SoftwareStack) -> tuple[Learning, Learning]:
    """What the timed kernels and collectives of *cluster* say."""
    return learning_of(cluster.device, stack), learn_calls(cluster)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a job is made of: distinct kernels and collectives, with time and family of each.

    *sigmas* are their own relative errors. *shares* is what each of FACTORS carries, *variances*
    are those of the job, of a *kind*.
    """

    kind: Kind
    calls: tuple[TimedCall, ...]
    spots: tuple[Spot, ...]
    times_ns: Floats
    sigmas: Floats
    families: NDArray[np.str_]
    shares: Floats
    variances: Variances

    @classmethod
    def of(cls, priced: PricedJob, cluster: Cluster, stack: SoftwareStack) -> Parts:
        """The parts of the job of *priced*."""
        file, kind = load_priors(), kind_of(priced, cluster, stack)
        found: dict[Spot, TimedCall] = {}
        sums: dict[Spot, Floats] = {}
        for call, time_ns, unsure_ns in iter_kernels(priced, cluster):
            op = name_kernel(call.op, cluster.device, stack)
            spot = spot_of(op, ranks=call.ranks, hosts=call.hosts)
            found.setdefault(spot, call._replace(op=op))
            sums[spot] = sums.get(spot, np.zeros(2)) + np.array([time_ns, unsure_ns])
        times, unsure = np.array([*sums.values()]).reshape(-1, 2).T
        return cls(
            kind,
            tuple(found.values()),
            tuple(found),
            times,
            unsure / np.maximum(times, 1.0),
            np.array([family_of(type(call.op)) for call in found.values()]),
            _time_shares(priced),
            file.families[kind.family].variances(kind, file.spread),
        )

    def ratio(self, *learnt: Learning) -> float:
        """What all of *learnt* leave of the spread that costs have in common."""
        left = self._left(learnt)
        of_family = np.ones(len(FACTORS))
        for place, name in enumerate(FACTORS):
            rows = self.families == name
            if (whole := float(self.times_ns[rows].sum())) > 0:
                of_family[place] = left[rows] @ self.times_ns[rows] / whole
        total = self.variances.total
        return float(np.sqrt(total(self.shares, of_family) / total(self.shares)))

    def width(self, known: Sequence[Learning], *more: Learning) -> float:
        """The relative error of the job once *more* is learnt than what prices know already."""
        fewer = np.sqrt(self._left((*known, *more)) / self._left(known))
        spread = self.kind.spread * self.ratio(*known, *more) / self.ratio(*known)
        unsure = fewer * self.sigmas * self.times_ns / max(float(self.times_ns.sum()), 1.0)
        of_family = [unsure[self.families == name].sum() for name in FACTORS]
        return float(np.hypot(spread, np.linalg.norm(of_family)))

    def _left(self, learnt: Sequence[Learning]) -> Floats:
        return np.asarray(np.min([one.answer(self.spots)[1] for one in learnt], axis=0))


class TimedCall(NamedTuple):
    """An op that can be timed, and among how many ranks and hosts where it is a collective."""

    op: Op
    ranks: int
    hosts: int


def iter_kernels(priced: PricedJob, cluster: Cluster) -> Iterator[tuple[TimedCall, float, float]]:
    """Every op of a distinct rank that can be timed, its time in all, and how much is unsure."""
    job = priced.job
    starts = zip(job.rank_program.tolist(), priced.durations.rank_offset.tolist(), strict=True)
    first = {start: rank for rank, start in reversed([*enumerate(starts)])}
    for (number, start), rank in first.items():
        program = job.programs[number]
        rows = slice(start, start + program.task_count)
        slots = np.maximum(program.slot, -1) + 1
        code = program.op.astype(np.int64) * (slots.max(initial=0) + 1) + slots
        _, place, count = np.unique(code, return_index=True, return_inverse=True)
        times = np.bincount(count, priced.float_ns[rows])
        unsure = np.bincount(count, priced.float_ns[rows] * priced.relative_sigma[rows])
        for task, *sums in zip(place.tolist(), times.tolist(), unsure.tolist(), strict=True):
            op = job.ops[int(program.op[task])]
            if isinstance(op, Communication):
                group = int(job.rank_group[rank, int(program.slot[task])])
                ranks = job.groups[group].ranks
                hosts = len(np.unique(cluster.seats_of(np.array(ranks))[0]))
                yield TimedCall(op, len(ranks), hosts), *sums
            elif type(op) in KINDS.values():
                yield TimedCall(op, 1, 1), *sums


def _is_related(one: Anchor, target: Kind) -> bool:
    families = load_priors().families
    is_apart = families[one.family].apart or families[target.family].apart
    return one.family == target.family or not is_apart


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
