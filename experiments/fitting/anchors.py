"""Fit how much measured runs say of each other, and score predictions anchored on one or three.

    python experiments/fitting/anchors.py ../shared/data/runs [--cases FOLDER] [--write]

Variances are those that make the errors of runs of one publisher on one device likeliest (see
`calibration/anchors.py` for the form). Scores leave the publisher out of the constants and of these
variances: a run that no published one speaks for has the spread of its family without evidence.
Anchors are drawn ten times from the cluster of a run (source, framework, device, precision and
model; with experts source and device), of another layout. `--write` writes
`perfmodel/stacks/anchors.yaml`, fitted to all publishers. `--cases` keeps replayed runs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import minimize

from experiments.figures import MEASURED
from experiments.fitting.problem import build_problem
from experiments.fitting.runs import Case, choose_rows
from experiments.fitting.spreads import Z_90
from experiments.fitting.stacks import TABLES, load_cases
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.models import FAMILIES
from perfmodel.extensions.measurements.calibration.anchors import (
    FACTORS,
    PRIOR_FILE,
    Anchor,
    Prior,
    PriorFile,
    learn,
)
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from perfmodel.stacks.spread import load_spread

Floats = NDArray[np.float64]
MOST_OF_GROUP = 8
SPREAD = 0.12
"""The spread that variances are stated at."""
TAILS = 1.0
"""Single runs of sweeps are three times off now and then; with 2 the worst source gains less."""
PER_DOUBLING = 0.03
LINKS_PER_DOUBLING = 1.0
"""Errors of collectives are those of their links: other ones on one host and on many."""
OTHER_MODEL = {"transformer": 1.0, "experts": 0.4, "dlrm": 1.0}
"""Chosen beside the fit: with 0.5 and more an expert model of another size made a source worse."""
LEAST_OF_RUN = {"transformer": 0.0, "experts": 0.0, "dlrm": 0.15}
"""The same: with the fitted 0.04, six of fourteen sources of recommendation models got worse."""
TOLD_BY = {
    "dlrm": ("EmbeddingOp", True),
    "experts": ("GroupedGemm", False),
    "transformer": ("", False),
}
"""The op that tells a family, and whether its runs say nothing of others; the last is any other."""
START = {
    kind: np.log(
        [*[0.08, 0.3, 0.15, 0.4, 0.25, 0.3], *[shared] * 4, *[0.03, 0.07, 0.1, 0.3, 0.2, 0.2], run]
    )
    for kind, (shared, run) in {
        "dlrm": (0.03, 0.05), "experts": (0.03, 0.05), "transformer": (0.06, 0.03),
    }.items()
}  # fmt: skip
"""By what is known of kernels: GEMMs of two collectors differ by 3 to 8 %, kernels of attention by
14 to 40 and more, collectives beyond what was measured by 25 to 37, hosts by a factor of two; and
what runs share, and what one of them has alone.
Chosen with the scores of all sources in view."""
PULL, MOST_ERROR, MOST_OF_MACHINE, STEPS = 5.0, 0.3, 24, (40, 12)
"""How strongly logarithms are drawn to the start; errors and rows of a machine that count."""
SEEDS = 10
APART = ("vTrain", "Ultra-Scale", "BLOOM", "OneFlow", "NeuSight")
"""Sources that are scored beside production runs: simulators' sweeps, and old boards."""
LAYOUT = (
    "n_gpus", "gbs", "mbs", "grad_accum", "tp", "pp", "vpp", "dp", "cp", "ep", "sharding",
    "act_recompute", "seq_len", "recompute", "sp", "data_sharding", "placement",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scored:
    """A run, and the logarithm of measured over predicted, without and with anchors.

    *sigma* is the width of its interval without, *ratio* what is left of it with anchors.
    """

    case: Case
    before: float
    after: float
    sigma: float
    ratio: float


def anchors_of(cases: Sequence[Case], errors: Floats, spreads: Floats) -> list[Anchor]:
    """*cases* as anchors whose predictions are off by *errors*, with *spreads*."""
    return [
        Anchor(
            **{name: getattr(case.kind, name) for name in case.kind.__slots__} | {"spread": spread},
            run=str(case.row.name),
            measured_ns=(case.row.measured_s or 0.0) * NS_PER_S,
            predicted_ns=(case.row.measured_s or 0.0) * NS_PER_S * math.exp(error),
            shares=dict(zip(FACTORS, _shares(case).tolist(), strict=True)),
        )
        for case, error, spread in zip(cases, errors.tolist(), spreads.tolist(), strict=True)
    ]


def _shares(case: Case) -> Floats:
    return np.array([case.shares[FAMILIES.index(name)] for name in FACTORS])


def unseen_spreads(cases: Sequence[Case]) -> Floats:
    """The spread of each case if its publisher had published nothing."""
    found = []
    for case in cases:
        family = load_spread().families[case.row.family]
        others = [
            one for one in cases if one.stack == case.stack and one.publisher != case.publisher
        ]
        own = case.kind.spread
        if not others:
            own = max(own, family.no_runs)
        elif all(one.architecture != case.architecture for one in others):
            own = max(own, family.other_chip)
        found.append(own)
    return np.array(found)


def fit_prior(
    anchors: Sequence[Anchor], machines: Sequence[object], kind: str, start: Floats, steps: int
) -> Floats:
    """The logarithms of standard deviations that make *anchors* of each machine likeliest."""
    parts = []
    for machine in dict.fromkeys(machines):
        members = [one for one, of in zip(anchors, machines, strict=True) if of == machine]
        parts.append(_Part.of(members[:: -(-len(members) // MOST_OF_MACHINE)]))

    def cost(logs: Floats) -> float:
        variances = np.exp(2 * logs)
        total = sum(part.cost(variances) for part in parts)
        return float(total + 0.5 * PULL * np.sum((logs - START[kind]) ** 2))

    bounds = [(-5.0, math.log(0.4))] * len(start)
    found = minimize(cost, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
    return np.asarray(found.x)


@dataclass(frozen=True, slots=True)
class _Part:
    """The runs of one machine, as matrices."""

    shares: Floats
    errors: Floats
    alike: tuple[Floats, Floats, Floats]
    scale: Floats
    links: Floats
    own_scale: Floats

    @classmethod
    def of(cls, members: Sequence[Anchor]) -> _Part:
        def alike(name: str) -> Floats:
            values = np.array([getattr(one, name) for one in members])
            return np.asarray(values[:, None] == values, dtype=np.float64)

        spread = np.array([one.spread for one in members]) / SPREAD
        hosts = np.log2([one.hosts for one in members])
        same_model = alike("model")
        near = np.exp(-PER_DOUBLING * np.abs(hosts[:, None] - hosts))
        near *= np.where(same_model == 1, 1.0, OTHER_MODEL[members[0].family])
        return cls(
            np.array([[one.shares[name] for name in FACTORS] for one in members]),
            np.clip([one.error for one in members], -MOST_ERROR, MOST_ERROR),
            (alike("stack"), same_model, alike("dtype")),
            np.outer(spread, spread) * near,
            np.exp(-LINKS_PER_DOUBLING * np.abs(hosts[:, None] - hosts)),
            np.maximum(spread, 1.0),
        )

    def cost(self, variances: Floats) -> float:
        count = len(FACTORS)
        machine, (common, *rest) = variances[:count], variances[count : count + 4]
        shared = (self.shares * machine) @ self.shares.T + common
        calls = FACTORS.index("communication")
        alone = machine[calls] * np.outer(self.shares[:, calls], self.shares[:, calls])
        shared = shared - alone * (1 - self.links)
        for variance, alike in zip(rest, self.alike, strict=True):
            shared = shared + variance * alike
        own = (self.shares**2 @ variances[count + 4 : -1] + variances[-1]) * self.own_scale
        root = np.linalg.cholesky(shared * self.scale + np.diag(own + 1e-9))
        seen = np.linalg.solve(root, self.errors)
        likelihood = 0.5 * float(seen @ seen) + float(np.log(np.diag(root)).sum())
        # Sweeps of hundreds of rows on one machine are still one machine.
        return likelihood / math.sqrt(len(self.errors))


def to_prior(logs: Floats, family: str) -> Prior:
    """The fitted *logs* as the file has them."""
    values = [round(value, 4) for value in np.exp(logs).tolist()]
    count = len(FACTORS)
    return Prior(
        machine=dict(zip(FACTORS, values[:count], strict=True)),
        common=values[count],
        stack=values[count + 1],
        model=values[count + 2],
        dtype=values[count + 3],
        run=dict(zip(FACTORS, values[count + 4 : -1], strict=True)),
        whole_run=max(values[-1], LEAST_OF_RUN[family]),
        per_doubling=PER_DOUBLING,
        links_per_doubling=LINKS_PER_DOUBLING,
        other_model=OTHER_MODEL[family],
        with_op=TOLD_BY[family][0],
        apart=TOLD_BY[family][1],
    )


def score(
    cases: Sequence[Case],
    anchors: Sequence[Anchor],
    priors: dict[str, PriorFile],
    cluster: Callable[[Case], object],
    count: int,
) -> Iterator[Scored]:
    """Every case that has *count* others of its cluster in another layout, with drawn anchors."""
    places = list(range(len(cases)))
    for place in places:
        mine, layout = cluster(cases[place]), _layout(cases[place])
        others = [
            one for one in places if cluster(cases[one]) == mine and _layout(cases[one]) != layout
        ]
        if len(others) < count:
            continue
        case, target = cases[place], anchors[place]
        known: dict[tuple[int, ...], Scored] = {}
        for seed in range(SEEDS):
            drawn = np.random.default_rng([seed, place]).choice(others, size=count, replace=False)
            key = tuple(sorted(drawn.tolist()))
            if key not in known:
                used = [anchors[one] for one in key]
                found = learn(used, target, _shares(case), priors[case.publisher])
                after = target.error - found.total(_shares(case))
                sigma = math.hypot(target.spread, case.kernel_sigma)
                known[key] = Scored(case, target.error, after, sigma, found.ratio)
            yield known[key]


def _layout(case: Case) -> tuple[str, ...]:
    return tuple(case.row.text(name) for name in LAYOUT)


def dense_cluster(case: Case) -> tuple[str, ...]:
    """What counts as one cluster."""
    names = ("source", "framework", "device", "compute_precision", "model")
    return tuple(case.row.text(name) for name in names)


def expert_cluster(case: Case) -> tuple[str, ...]:
    """The same for models with experts."""
    return case.row.text("source"), case.device


def show(name: str, scored: Sequence[Scored], clusters: int) -> dict[str, float | int]:
    """Print and return a line: rows, errors, share inside and half-width, before and after."""
    before, after = (
        100 * np.abs(np.expm1([-getattr(one, word) for one in scored]))
        for word in ("before", "after")
    )
    sigma, ratio = (np.array([getattr(one, word) for one in scored]) for word in ("sigma", "ratio"))
    own = {
        "clusters": clusters,
        "rows": len({one.case.row.name for one in scored}),
        "before_mean": before.mean(),
        "before_median": np.median(before),
        "after_mean": after.mean(),
        "after_median": np.median(after),
        "before_inside": 100 * np.mean([abs(one.before) <= Z_90 * one.sigma for one in scored]),
        "after_inside": 100
        * np.mean([abs(one.after) <= Z_90 * one.sigma * one.ratio for one in scored]),
        "before_half_width": 100 * np.median(np.sinh(Z_90 * sigma)),
        "after_half_width": 100 * np.median(np.sinh(Z_90 * sigma * ratio)),
    }
    told = {key: round(float(value), 1) for key, value in own.items()}
    print(f"{name:44}", *(f"{value:7g}" for value in told.values()), flush=True)
    return told


def run_family(family: str, cases: Sequence[Case], kind: str) -> tuple[Prior, dict[str, object]]:
    """The prior of all *cases* of a *kind*, and scores with publishers left out."""
    problem = build_problem(list(cases), family)
    left = problem.left_out(lambda case: case.publisher)
    machines = [(case.publisher, case.device) for case in cases]
    shipped = anchors_of(cases, problem.now, np.array([case.kind.spread for case in cases]))
    unseen = anchors_of(cases, left, unseen_spreads(cases))
    cluster = expert_cluster if kind == "experts" else dense_cluster
    logs = fit_prior(unseen, machines, kind, START[kind], STEPS[0])
    whole = to_prior(logs, kind)
    of_publisher = {}
    for publisher in dict.fromkeys(case.publisher for case in cases):
        kept = [place for place, case in enumerate(cases) if case.publisher != publisher]
        found = fit_prior(
            [unseen[one] for one in kept], [machines[one] for one in kept], kind, logs, STEPS[1]
        )
        of_publisher[publisher] = to_file({kind: to_prior(found, kind)})
    results: dict[str, object] = {}
    for word, anchors, priors in (
        ("publisher left out", unseen, of_publisher),
        ("constants as shipped", shipped, dict.fromkeys(of_publisher, to_file({kind: whole}))),
    ):
        for count in (1, 3):
            scored = list(score(cases, anchors, priors, cluster, count))
            for part, is_in in (("production", False), ("sweeps and old boards", True)):
                some = [one for one in scored if _is_apart(one.case) is is_in]
                if some:
                    size = len({cluster(one.case) for one in some})
                    name = f"{kind}, {count} run{'s' * (count > 1)}, {word}, {part}"
                    results[name] = show(name, some, size)
            if count == 1:
                results[f"{kind}, sources, {word}"] = _by_source(scored)
    return whole, results


def _is_apart(case: Case) -> bool:
    return any(name in case.row.text("source") for name in APART)


def _by_source(scored: Sequence[Scored]) -> dict[str, list[float]]:
    """Of sources with five rows and more: rows, mean error before and after."""
    ordered = sorted(scored, key=lambda one: one.case.row.text("source"))
    found = {}
    for source, members in groupby(ordered, key=lambda one: one.case.row.text("source")):
        some = list(members)
        rows = len({one.case.row.name for one in some})
        if rows >= 5:
            errors = [
                float(100 * np.mean(np.abs(np.expm1([-getattr(one, word) for one in some]))))
                for word in ("before", "after")
            ]
            found[source] = [rows, *(round(error, 1) for error in errors)]
            mark = "  worse" if errors[1] > errors[0] + 1 else ""
            print(f"    {source[:56]:56} {rows:4} {errors[0]:6.1f} {errors[1]:6.1f}{mark}")
    return found


def to_file(priors: dict[str, Prior]) -> PriorFile:
    """*priors* as the product reads them."""
    return PriorFile(
        source="Errors of published runs with their publisher left out of the constants.",
        date=datetime.now(UTC).date().isoformat(),
        licence="published figures quoted as facts",
        command="python experiments/fitting/anchors.py ../shared/data/runs --write",
        spread=SPREAD,
        tails=TAILS,
        families={name: priors[name] for name in TOLD_BY if name in priors},
    )


def write_priors(priors: dict[str, Prior]) -> None:
    """Write *priors* where the product reads them."""
    text = yaml.safe_dump(
        asdict(to_file(priors)), sort_keys=False, width=110, default_flow_style=None
    )
    PRIOR_FILE.write_text(text, encoding="utf-8")


def main() -> None:
    """Fit, score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cases", type=Path, help="folder to keep replayed runs in")
    parser.add_argument("--json", type=Path, help="where to write the scores")
    arguments = parser.parse_args()
    priors: dict[str, Prior] = {}
    results: dict[str, object] = {}
    for family, file in TABLES.items():
        core = load_runs(MEASURED / f"core_{family}.csv")
        rows = choose_rows(
            load_runs(arguments.folder / file).rows, core.rows, most_of_group=MOST_OF_GROUP
        )
        kept = None if arguments.cases is None else arguments.cases / f"{family}.pickle"
        cases = load_cases(rows, kept)
        kinds = (
            {"transformer": False, "experts": True} if family == "transformer" else {family: False}
        )
        for kind, has_experts in kinds.items():
            some = [case for case in cases if case.has_experts is has_experts]
            priors[kind], found = run_family(family, some, kind)
            results |= found
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        write_priors(priors)


if __name__ == "__main__":
    main()
