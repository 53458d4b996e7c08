"""Networks: fitting small corrections and spreads with torch; numpy evaluates them.

A weight of an ordered network is the square of a free number, so it stays positive and small ones
decay to zero. The spread is a quantile, learned from errors on rows not fitted: nine in ten of
them are in the interval that it makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.optim.adamw import adamw

from perfmodel.costs.corrections import (
    LARGEST_STEP,
    Correction,
    Matrix,
    Network,
    OrderedCorrection,
    OrderedNetwork,
)
from perfmodel.costs.estimates import INTERVAL_SIGMAS

SECOND_HIDDEN_SHARE = 2
"""The second layer has this many times fewer units than the first."""
INNER_FOLDS = 2
SPREAD_RATE = 1e-2
USUAL_ORDERED_ERROR = 0.02
"""The loss turns from square to linear at this error of the logarithm."""


def range_of(features: Matrix) -> dict[str, Matrix]:
    """The fields of the range of *features*."""
    return {
        "mean": features.mean(axis=0),
        "scale": features.std(axis=0) + 1e-6,
        "low": features.min(axis=0),
        "high": features.max(axis=0),
    }


def fit_ordered(features: Matrix, log_time: Matrix, plan: TrainingPlan) -> OrderedCorrection:
    """The ordered network that gives *log_time* of *features*, and its spread."""
    found = range_of(features)
    inputs = (features - found["mean"]) / found["scale"]
    with on_one_thread():
        errors = _held_out_errors(inputs, log_time, plan)
        is_known = np.isfinite(errors)
        return OrderedCorrection(
            **found,
            order=train_ordered(inputs, log_time, plan),
            spread=fit_spread(
                inputs[is_known],
                np.abs(errors[is_known]),
                replace(plan, learning_rate=SPREAD_RATE),
            ),
        )


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Limit torch to one thread: for networks this small, several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _held_out_errors(inputs: Matrix, log_time: Matrix, plan: TrainingPlan) -> Matrix:
    """Errors of rows by networks that did not see their shapes; NaN for the others."""
    shape_of_row = np.unique(inputs, axis=0, return_inverse=True)[1].ravel()
    chooser = np.random.default_rng(plan.seed)
    fold = (chooser.permutation(int(shape_of_row.max()) + 1) % INNER_FOLDS)[shape_of_row]
    errors = np.full(len(log_time), np.nan)
    for number in range(min(INNER_FOLDS, plan.inner_parts)):
        is_out = fold == number
        network = train_ordered(inputs[~is_out], log_time[~is_out], plan)
        errors[is_out] = log_time[is_out] - network.answer(inputs[is_out])
    return errors


class _Trained(nn.Module):
    """The network while it is being trained."""

    def __init__(self, inputs: int, hidden: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        later = max(1, hidden // SECOND_HIDDEN_SHARE)
        self.first = nn.Parameter(torch.rand(inputs, hidden) * (2 / inputs) ** 0.5)
        self.first_bias = nn.Parameter(5 * torch.rand(hidden) - 2.5)
        self.second = nn.Parameter(torch.rand(hidden, later) * (2 / hidden) ** 0.5)
        self.second_bias = nn.Parameter(4 * torch.rand(later) - 2)
        self.last = nn.Parameter(0.3 * torch.rand(later))
        straight = 0.1 * torch.rand(inputs)
        straight[0] = 0.9
        self.straight = nn.Parameter(straight)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(inputs @ self.first**2 + self.first_bias)
        hidden = torch.tanh(hidden @ self.second**2 + self.second_bias)
        return hidden @ self.last**2 + inputs @ self.straight**2 + self.bias


def train_ordered(
    inputs: Matrix, log_time: Matrix, plan: TrainingPlan, *, weight: Matrix | None = None
) -> OrderedNetwork:
    """The ordered network that gives *log_time* of *inputs*, errors counted by *weight*."""
    share = _tensor(np.ones(len(inputs)) if weight is None else weight)
    centre, width = float(log_time.mean()), float(log_time.std()) + 1e-6
    network = _Trained(inputs.shape[1], plan.hidden, plan.seed)
    rows, wanted = _tensor(inputs), _tensor((log_time - centre) / width)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        error = share[chosen] * width * (network(rows[chosen]) - wanted[chosen])
        return _size_of(error, usual=USUAL_ORDERED_ERROR)

    _train(network, loss, len(rows), plan, steps=plan.steps)
    free = {name: one.detach().numpy().astype(np.float64) for name, one in
            network.named_parameters()}  # fmt: skip
    return OrderedNetwork(
        first=free["first"] ** 2,
        first_bias=free["first_bias"],
        second=free["second"] ** 2,
        second_bias=free["second_bias"],
        last=width * free["last"] ** 2,
        straight=width * free["straight"] ** 2,
        bias=width * free["bias"] + centre,
    )


INTERVAL_SHARE = 0.87
WARM_SHARE = 0.3
"""How much of the training raises the learning rate."""
USUAL_ERROR = 0.01
"""The loss turns from square to linear at this error of the logarithm."""
FEWEST_SPREAD_ROWS = 1000
"""With fewer rows all share one spread: a network would only learn their noise."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a correction is trained.

    *inner_parts* is how many parts of the rows are held out in turn to learn the spread.
    """

    hidden: int = 48
    steps: int = 4000
    batch: int = 1024
    learning_rate: float = 5e-3
    weight_decay: float = 1e-4
    spread_hidden: int = 24
    inner_parts: int = 3
    seed: int = 0


def fit_steps(features: Matrix, log_ratio: Matrix, plan: TrainingPlan) -> Correction:
    """The correction that comes closest to *log_ratio*, within the limit of corrections."""
    found = range_of(features)
    network = _build(features.shape[1], plan.hidden, plan.seed)
    rows = _tensor((features - found["mean"]) / found["scale"])
    wanted = _tensor(np.clip(log_ratio, -LARGEST_STEP, LARGEST_STEP))

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        return _size_of(network(rows[chosen]).squeeze(1) - wanted[chosen], usual=USUAL_ERROR)

    _train(network, loss, len(rows), plan, steps=plan.steps)
    return Correction(**found, shift=_to_network(network))


def _build(inputs: int, hidden: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
        nn.Linear(hidden, 1),
    )  # fmt: skip


def _size_of(error: torch.Tensor, *, usual: float) -> torch.Tensor:
    """How large *error* is: its square up to the *usual* one, itself beyond."""
    return nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=usual)


def fit_spread(inputs: Matrix, sizes: Matrix, plan: TrainingPlan) -> Network:
    """The network for the logarithm of sigma, from the *sizes* of errors on rows not fitted.

    Quantile regression of the log of the error's size: the pinball loss.
    """
    network = _build(inputs.shape[1], plan.spread_hidden, plan.seed)
    wanted = _tensor(np.log(np.maximum(sizes, 1e-4) / INTERVAL_SIGMAS))
    with torch.no_grad():
        last = network[-1]
        assert isinstance(last, nn.Linear)
        last.weight.zero_()
        last.bias.fill_(float(torch.quantile(wanted, INTERVAL_SHARE)))
    rows = _tensor(inputs)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        error = wanted[chosen] - network(rows[chosen]).squeeze(1)
        return torch.maximum(INTERVAL_SHARE * error, (INTERVAL_SHARE - 1) * error).mean()

    steps = plan.steps // 3 if len(sizes) >= FEWEST_SPREAD_ROWS else 0
    _train(network, loss, len(rows), plan, steps=steps)
    return _to_network(network)


def _train(
    network: nn.Module,
    loss: Callable[[torch.Tensor], torch.Tensor],
    row_count: int,
    plan: TrainingPlan,
    *,
    steps: int,
) -> None:
    """Lower the *loss* of rows that are redrawn in each of *steps*.

    AdamW over one cycle. torch's optimizer objects would import its compiler, which takes longer
    than a small fit; their functions do not.
    """
    chooser = torch.Generator().manual_seed(plan.seed)
    weights: list[torch.Tensor] = list(network.parameters())
    means, squares = ([torch.zeros_like(one) for one in weights] for _ in range(2))
    counts = [torch.tensor(0.0) for _ in weights]
    for step in range(steps):
        chosen = torch.randint(0, row_count, (min(plan.batch, row_count),), generator=chooser)
        gradients = list(torch.autograd.grad(loss(chosen), weights))
        rate, momentum = one_cycle(step, plan)
        with torch.no_grad():
            adamw(
                weights, gradients, means, squares, [], counts, foreach=False, amsgrad=False,
                beta1=momentum, beta2=0.999, lr=rate, weight_decay=plan.weight_decay, eps=1e-8,
                maximize=False,
            )  # fmt: skip


def one_cycle(step: int, plan: TrainingPlan) -> tuple[float, float]:
    """Learning rate and momentum in *step*: up and down in three tenths, back in the rest.

    Source: Smith and Topin, "Super-Convergence", 2018; figures as in torch's OneCycleLR.
    """
    turn, end = WARM_SHARE * plan.steps - 1, plan.steps - 1
    least, most = plan.learning_rate / 25, plan.learning_rate
    rates, momenta, share = (least, most), (0.95, 0.85), step / turn
    if step > turn:
        rates, momenta, share = (most, least / 1e4), (0.85, 0.95), (step - turn) / (end - turn)
    bend = math.cos(math.pi * share) + 1
    rate, momentum = (to + (since - to) / 2.0 * bend for since, to in (rates, momenta))
    return rate, momentum


def _tensor(values: Matrix) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _to_network(network: nn.Sequential) -> Network:
    return Network(
        tuple(
            (np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy())
            for layer in network
            if isinstance(layer, nn.Linear)
        )
    )
