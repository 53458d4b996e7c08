"""Spreads: what runs with whole sources left out say of intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.fitting.problem import Problem
from experiments.fitting.runs import Case

SEEN = {"transformer": 1.03, "dlrm": 1.1}
"""Capabilities of stacks were chosen with these rows in view: others are further off by so much,
an allowance."""
UNSURE = 0.4
"""What kernels make unsure where it is not known how GPUs of a host reach each other."""
Z_90 = 1.645
DRAWN = 4
"""As many groups as what all stacks have in common counts for."""
OnChip = tuple[str, str]
"""A stack and a generation of chips."""


@dataclass(frozen=True)
class Spreads:
    """Spreads of a family: of stacks on chips, and where there is no evidence."""

    of_stack: Mapping[OnChip, float]
    other_chip: float
    no_runs: float
    per_doubling: float
    experts: float

    def sigma(self, case: Case) -> float:
        """The whole width of a case of a stack with evidence."""
        own = self.of_stack[case.stack, case.architecture]
        return math.hypot(max(own, self.experts if case.has_experts else 0.0), case.kernel_sigma)


def find_spreads(problem: Problem) -> Spreads:
    """What sources left out say of intervals, kernels' own doubt taken off.

    Experts have a spread of their own, which says nothing of dense models.
    """
    cases = problem.cases
    kernels = np.array([case.kernel_sigma for case in cases])
    is_dense = np.array([not case.has_experts for case in cases])
    left = problem.left_out(lambda case: case.group)
    common = _beyond(left[is_dense], kernels[is_dense])
    of_stack = _of_stacks(problem, left, is_dense, common)
    experts = 0.0
    if not is_dense.all():
        experts = SEEN[cases[0].row.family] * _beyond(left[~is_dense], kernels[~is_dense])
    chip = problem.left_out(lambda case: (case.stack, case.architecture))
    stack = problem.left_out(lambda case: case.stack)
    other, none = (max(_beyond(one[is_dense], kernels[is_dense]), common) for one in (chip, stack))
    # Frameworks that nobody described, or that one source speaks for, are further off than others.
    unknown = is_dense & (problem.weights() < 1)
    if unknown.any():
        none = max(none, SEEN[cases[0].row.family] * _beyond(left[unknown], kernels[unknown]))
    far = np.array([case.hosts > 4 for case in cases]) & is_dense
    beyond = problem.left_out(lambda case: (case.stack, case.hosts > 4))
    doublings = np.array([math.log2(max(case.hosts / 4, 1)) for case in cases])
    growth = 0.0
    if far.sum() >= 5:
        wider = _beyond(beyond[far], kernels[far]) ** 2 - common**2
        growth = math.sqrt(max(wider, 0.0)) / float(np.mean(doublings[far]))
    growth = min(max(growth, 0.03), 0.15)
    return Spreads(of_stack, other, max(none, other), growth, experts)


def _of_stacks(
    problem: Problem, left: NDArray[np.float64], asked: NDArray[np.bool_], common: float
) -> dict[OnChip, float]:
    """Spreads by stack and chip of the *asked* cases, whose errors *left* out are given.

    Few groups say little: their spread is drawn towards what all stacks have in *common*.
    """
    cases = problem.cases
    kernels = np.array([case.kernel_sigma for case in cases])
    found = {}
    for key in dict.fromkeys((case.stack, case.architecture) for case in cases):
        rows = np.array([(case.stack, case.architecture) == key for case in cases]) & asked
        groups = len({case.group for case, is_one in zip(cases, rows, strict=True) if is_one})
        is_told = rows.any() and (groups > 1 or cases[0].is_transformer)
        own = _beyond(left[rows], kernels[rows]) if is_told else common
        drawn = math.sqrt((groups * own**2 + DRAWN * common**2) / (groups + DRAWN))
        found[key] = SEEN[cases[0].row.family] * drawn
    return found


def _beyond(errors: NDArray[np.float64], kernels: NDArray[np.float64]) -> float:
    """The spread that, beside what kernels make unsure, leaves a tenth of *errors* outside.

    Rows whose machine nobody knows well enough to price it say nothing about the others.
    """
    sure = kernels < UNSURE
    errors, kernels = (errors[sure], kernels[sure]) if sure.any() else (errors, kernels)
    low, high = 0.02, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        inside = np.mean(np.abs(errors) <= Z_90 * np.hypot(middle, kernels))
        low, high = (low, middle) if inside >= 0.9 else (middle, high)
    return high
