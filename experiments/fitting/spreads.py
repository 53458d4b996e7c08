"""Spreads: what runs with whole sources left out say of intervals.

A run's spread is that of its stack and chip, beside parts for what is known of it: experts and
their host, formats, guesses, and the errors of its kernels (`FamilySpread.features`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import t as student_t

from experiments.fitting.problem import Problem
from experiments.fitting.runs import Case

FEATURES: dict[str, tuple[str, ...]] = {
    "transformer": ("kernels", "experts", "host of experts", "four_bits", "guesses"),
    "dlrm": (),
}
SEEN = {"transformer": 1.1, "dlrm": 1.1}
"""Capabilities of stacks were chosen with these rows in view: others are further off by so much,
an allowance."""
UNSURE = 0.3
"""What kernels make unsure where it is not known how GPUs of a host reach each other."""
Z_90 = 1.645
DRAWN = 4
"""As many groups as what all stacks have in common counts for."""
TAILS = 3.0
"""Degrees of freedom of errors beside their spread: some runs are three times off."""
MOST_OF_FEATURE = 0.6
INSIDE = 0.905
OF_FEW, Z_OF_FEW = 0.75, 1.15
"""What few runs tell apart: where most of them are, not what single ones are off."""
OnChip = tuple[str, str]
"""A stack and a generation of chips."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spreads:
    """Spreads of a family: of stacks on chips, where there is no evidence, and by feature."""

    of_stack: Mapping[OnChip, float]
    other_chip: float
    no_runs: float
    per_doubling: float
    features: Mapping[str, float]
    hosts: Mapping[str, int] = field(default_factory=dict)

    def rest(self, case: Case) -> float:
        """The part of a case's spread that its features make, and its kernels."""
        parts = (one * case.features[name] for name, one in self.features.items())
        return math.hypot(case.kernel_sigma, *parts)

    def sigma(self, case: Case) -> float:
        """The whole spread of a case, as predictions have it."""
        own = self.of_stack.get((case.stack, case.architecture))
        of_others = [one for (stack, _), one in self.of_stack.items() if stack == case.stack]
        if own is None:
            own = max(self.other_chip, *of_others) if of_others else self.no_runs
        beyond = max(math.log2(case.hosts / self.hosts.get(case.stack, 1)), 0.0)
        return math.hypot(own, self.per_doubling * beyond, self.rest(case))


@dataclass(frozen=True)
class LeftOut:
    """Errors of the cases of *problem* with what is alike left out of the constants."""

    problem: Problem
    group: Floats
    chip: Floats
    stack: Floats
    scale: Floats


def leave_out(problem: Problem) -> LeftOut:
    """Errors with publisher, model and device left out; a stack's chip; a stack; its scale."""
    return LeftOut(
        problem,
        problem.left_out(lambda case: case.group),
        problem.left_out(lambda case: (case.stack, case.architecture)),
        problem.left_out(lambda case: case.stack),
        problem.left_out(lambda case: (case.stack, case.hosts > 4)),
    )


def find_spreads(errors: LeftOut, kept: NDArray[np.bool_] | None = None) -> Spreads:
    """What *errors* of sources left out say of intervals, from the *kept* cases; by default all."""
    problem, left = errors.problem, errors.group
    cases, family = problem.cases, problem.cases[0].row.family
    kept = np.ones(len(cases), dtype=bool) if kept is None else kept
    features = fit_features(cases, left, kept)
    bare = Spreads({}, 0.0, 0.0, 0.0, features)
    rest = np.array([bare.rest(case) for case in cases])
    common = _beyond(left[kept], rest[kept])
    of_stack = _of_stacks(cases, left, rest, kept, common)
    other, none = (
        max(_beyond(one[kept], rest[kept]), common) for one in (errors.chip, errors.stack)
    )
    # Few publishers do not show how far another may be off.
    publishers = {case.publisher for case, is_kept in zip(cases, kept, strict=True) if is_kept}
    none *= float(student_t.ppf(0.95, max(len(publishers) - 1, 1))) / Z_90
    # Frameworks that nobody described, or that one source speaks for, are further off than others.
    unknown = kept & (problem.weights() < 1) & np.array([not one.has_experts for one in cases])
    if unknown.any():
        none = max(none, SEEN[family] * _beyond(left[unknown], rest[unknown]))
    far = np.array([case.hosts > 4 for case in cases]) & kept
    doublings = np.array([math.log2(max(case.hosts / 4, 1)) for case in cases])
    growth = 0.0
    if far.sum() >= 5:
        wider = _beyond(errors.scale[far], rest[far]) ** 2 - common**2
        growth = math.sqrt(max(wider, 0.0)) / float(np.mean(doublings[far]))
    growth = min(max(growth, 0.03), 0.15)
    hosts: dict[str, int] = {}
    for case, is_kept in zip(cases, kept, strict=True):
        if is_kept:
            hosts[case.stack] = max(hosts.get(case.stack, 1), case.hosts)
    return Spreads(of_stack, other, max(none, other), growth, features, hosts)


def fit_features(cases: Sequence[Case], left: Floats, kept: NDArray[np.bool_]) -> dict[str, float]:
    """The parts of features that make the *kept* of the errors *left* out likeliest.

    Errors have heavy tails, and each publisher counts as the root of its rows.
    """
    names = FEATURES[cases[0].row.family]
    if not names:
        return {}
    publishers = np.array([case.publisher for case in cases])[kept]
    counts = dict(zip(*np.unique(publishers, return_counts=True), strict=True))
    weights = np.array([1 / math.sqrt(counts[one]) for one in publishers])
    has = np.array([[case.features[name] for name in names] for case in cases])[kept] ** 2
    errors = left[kept] ** 2

    def cost(logs: Floats) -> float:
        parts = np.exp(2 * logs)
        squares = parts[0] + has @ parts[1:]
        tails = (TAILS + 1) / 2 * np.log1p(errors / (TAILS * squares))
        return float(np.sum(weights * (np.log(squares) / 2 + tails)))

    start = np.full(len(names) + 1, math.log(0.05))
    bounds = [(math.log(0.005), math.log(MOST_OF_FEATURE))] * len(start)
    found = np.exp(minimize(cost, start, method="L-BFGS-B", bounds=bounds).x)
    squares = found[0] ** 2 + has @ found[1:] ** 2
    ratio = float(np.quantile(np.sqrt(errors / squares), INSIDE)) / Z_90
    ratio *= SEEN[cases[0].row.family]
    return {name: ratio * float(one) for name, one in zip(names, found[1:], strict=True)}


def _of_stacks(
    cases: Sequence[Case],
    left: Floats,
    rest: Floats,
    kept: NDArray[np.bool_],
    common: float,
) -> dict[OnChip, float]:
    """Spreads by stack and chip of the *kept* cases, beside the *rest* of theirs.

    Few groups say little: their spread is drawn towards what all stacks have in *common*.
    """
    found, family = {}, cases[0].row.family
    for key in dict.fromkeys((case.stack, case.architecture) for case in cases):
        rows = np.array([(case.stack, case.architecture) == key for case in cases]) & kept
        if not rows.any() or key[0].startswith("generic"):
            continue
        groups = len({case.group for case, is_one in zip(cases, rows, strict=True) if is_one})
        is_told = groups > 1 or cases[0].is_transformer
        of_few = (OF_FEW, Z_OF_FEW) if cases[0].is_transformer else (0.9, Z_90)
        own = _beyond(left[rows], rest[rows], *of_few) if is_told else common
        drawn = math.sqrt((groups * own**2 + DRAWN * common**2) / (groups + DRAWN))
        found[key] = SEEN[family] * drawn
    return found


def _beyond(errors: Floats, rest: Floats, share: float = 0.9, z: float = Z_90) -> float:
    """The spread that, beside the *rest*, has a *share* of *errors* within *z* of it.

    Rows whose machine nobody knows well enough to price it say nothing about the others.
    """
    sure = rest < UNSURE
    errors, rest = (errors[sure], rest[sure]) if sure.any() else (errors, rest)
    low, high = 0.02, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        inside = np.mean(np.abs(errors) <= z * np.hypot(middle, rest))
        low, high = (low, middle) if inside >= share else (middle, high)
    return high
