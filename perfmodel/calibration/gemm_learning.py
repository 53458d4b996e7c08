"""GEMM learning: the corrections on top of the physics, and how sure they are.

First the part that keeps the order of work, then what libraries do against it.
A third of the rows is held out once to see how far both are off on such rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from perfmodel.calibration.networks import TrainingPlan, fit_spread, fit_steps
from perfmodel.calibration.ordered_fit import train_ordered
from perfmodel.costs.correction import Correction, Matrix
from perfmodel.costs.gemm import TENSOR, VECTOR
from perfmodel.costs.ordered_correction import OrderedCorrection, OrderedNetwork

HELD_OUT_EVERY = 3


@dataclass(frozen=True, slots=True)
class Learning:
    """How the networks of one kind of arithmetic are trained."""

    ordered: TrainingPlan
    steps: TrainingPlan | None
    spread: TrainingPlan


LEARNING = {
    TENSOR: Learning(
        ordered=TrainingPlan(hidden=96, steps=3000, learning_rate=2e-2),
        steps=TrainingPlan(hidden=32, steps=2500, learning_rate=8e-3),
        spread=TrainingPlan(steps=3000, learning_rate=1e-2, spread_hidden=12),
    ),
    # Few rows: what goes against the order would be learned from noise.
    VECTOR: Learning(
        ordered=TrainingPlan(
            hidden=48, steps=2000, batch=512, learning_rate=2e-2, weight_decay=1e-3
        ),
        steps=None,
        spread=TrainingPlan(steps=2000, batch=512, learning_rate=1e-2, spread_hidden=8),
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """The corrections of one device."""

    ordered: OrderedCorrection
    steps: Correction | None


def fit_learned(rising: Matrix, free: Matrix, log_time: Matrix, learning: Learning) -> Learned:
    """Corrections from features that are *rising* with the work and such that are *free*.

    One thread: the networks are so small that several only wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mean, scale = rising.mean(axis=0), rising.std(axis=0) + 1e-6
        inputs = (rising - mean) / scale
        order = np.random.default_rng(learning.ordered.seed).permutation(len(log_time))
        is_out = order % HELD_OUT_EVERY == 0
        trial = _fit(inputs[~is_out], free[~is_out], log_time[~is_out], learning)
        errors = log_time[is_out] - trial.answer(inputs[is_out], free[is_out])
        whole = _fit(inputs, free, log_time, learning)
        ordered = OrderedCorrection(
            mean=mean,
            scale=scale,
            low=rising.min(axis=0),
            high=rising.max(axis=0),
            order=whole.order,
            spread=fit_spread(inputs[is_out], np.abs(errors), learning.spread),
        )
        return Learned(ordered, whole.steps)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """An ordered network and the steps on top of it."""

    order: OrderedNetwork
    steps: Correction | None

    def answer(self, inputs: Matrix, free: Matrix) -> Matrix:
        log_time = self.order.answer(inputs)
        return log_time if self.steps is None else log_time + self.steps.log_ratio(free)


def _fit(inputs: Matrix, free: Matrix, log_time: Matrix, learning: Learning) -> _Pair:
    order = train_ordered(inputs, log_time, learning.ordered)
    if learning.steps is None:
        return _Pair(order, None)
    left = log_time - order.answer(inputs)
    return _Pair(order, fit_steps(free, left, learning.steps))
