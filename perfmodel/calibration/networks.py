"""Networks: fitting the small corrections with torch; they are evaluated with numpy.

The fit may be given ordered pairs, a smaller and a larger piece of work: a
prediction that says the larger one is faster is punished, so that the
corrected time keeps the order of the physics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from perfmodel.costs.correction import Correction, Layer, Matrix, Network
from perfmodel.costs.estimates import INTERVAL_SIGMAS

ORDER_WEIGHT = 4.0
ORDER_EVERY = 4
"""The order of pairs is looked at every so many steps."""
INTERVAL_SHARE = 0.87
INNER_FOLDS = 2
FEWEST_SPREAD_ROWS = 1000
"""With fewer rows one spread stands for all: a network would only learn their noise."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a correction is trained.

    The spread is learned from rows held out in turn: so many of three parts.
    """

    hidden: int = 48
    steps: int = 4000
    batch: int = 1024
    learning_rate: float = 5e-3
    weight_decay: float = 1e-4
    spread_hidden: int = 24
    inner_parts: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class OrderedPairs:
    """Features of smaller and larger work, and log(physics larger / physics smaller)."""

    smaller: Matrix
    larger: Matrix
    log_step: Matrix


def fit_correction(
    features: Matrix, log_ratio: Matrix, plan: TrainingPlan, pairs: OrderedPairs | None = None
) -> Correction:
    """The correction that makes *log_ratio* of *features*, with its spread on rows not fitted.

    One thread: the networks are so small that several only wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _fit(features, log_ratio, plan, pairs)
    finally:
        torch.set_num_threads(threads)


def _fit(
    features: Matrix, log_ratio: Matrix, plan: TrainingPlan, pairs: OrderedPairs | None
) -> Correction:
    mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
    inputs = (features - mean) / scale
    bounds = features.min(axis=0), features.max(axis=0)
    scaled = None if pairs is None else _scaled_pairs(pairs, mean, scale, bounds)
    errors = _held_out_errors(inputs, log_ratio, plan, scaled)
    shift = _train(inputs, log_ratio, plan, scaled)
    return Correction(
        mean=mean,
        scale=scale,
        low=bounds[0],
        high=bounds[1],
        shift=_to_network(shift),
        spread=fit_spread(inputs, np.abs(errors), plan),
    )


def fit_spread(inputs: Matrix, sizes: Matrix, plan: TrainingPlan) -> Network:
    """The network for the logarithm of sigma, from the *sizes* of errors on rows not fitted."""
    return _to_network(_train_spread(inputs, sizes, plan))


def _scaled_pairs(
    pairs: OrderedPairs, mean: Matrix, scale: Matrix, bounds: tuple[Matrix, Matrix]
) -> OrderedPairs:
    low, high = bounds
    return OrderedPairs(
        smaller=(np.clip(pairs.smaller, low, high) - mean) / scale,
        larger=(np.clip(pairs.larger, low, high) - mean) / scale,
        log_step=pairs.log_step,
    )


def _held_out_errors(
    inputs: Matrix, target: Matrix, plan: TrainingPlan, pairs: OrderedPairs | None
) -> Matrix:
    """Errors of every row by a network that did not see it."""
    shorter = replace(plan, steps=plan.steps // 2)
    fold = np.random.default_rng(plan.seed).permutation(len(target)) % INNER_FOLDS
    errors = np.empty(len(target))
    for number in range(INNER_FOLDS):
        is_out = fold == number
        network = _to_network(_train(inputs[~is_out], target[~is_out], shorter, pairs))
        errors[is_out] = target[is_out] - network.answer(inputs[is_out])
    return errors


def _build(inputs: int, hidden: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
        nn.Linear(hidden, 1),
    )  # fmt: skip


def _train(
    inputs: Matrix, target: Matrix, plan: TrainingPlan, pairs: OrderedPairs | None
) -> nn.Sequential:
    network = _build(inputs.shape[1], plan.hidden, plan.seed)
    rows, wanted = _tensor(inputs), _tensor(target)
    order = None if pairs is None else [
        _tensor(part) for part in (pairs.smaller, pairs.larger, pairs.log_step)
    ]  # fmt: skip
    chooser = torch.Generator().manual_seed(plan.seed)
    optimizer, schedule = _optimizer(network, plan)
    for number in range(plan.steps):
        chosen = torch.randint(0, len(rows), (min(plan.batch, len(rows)),), generator=chooser)
        error = network(rows[chosen]).squeeze(1) - wanted[chosen]
        loss = nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.02)
        if order is not None and number % ORDER_EVERY == 0:
            few = torch.randint(0, len(order[0]), (256,), generator=chooser)
            step = network(order[1][few]) - network(order[0][few])
            loss = loss + ORDER_WEIGHT * torch.relu(-(step.squeeze(1) + order[2][few])).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        schedule.step()
    return network


def _train_spread(inputs: Matrix, sizes: Matrix, plan: TrainingPlan) -> nn.Sequential:
    """A network for the logarithm of sigma, such that nine errors in ten lie in the interval.

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
    chooser = torch.Generator().manual_seed(plan.seed)
    optimizer, schedule = _optimizer(network, plan)
    steps = plan.steps // 3 if len(sizes) >= FEWEST_SPREAD_ROWS else 0
    for _ in range(steps):
        chosen = torch.randint(0, len(rows), (min(plan.batch, len(rows)),), generator=chooser)
        error = wanted[chosen] - network(rows[chosen]).squeeze(1)
        loss = torch.maximum(INTERVAL_SHARE * error, (INTERVAL_SHARE - 1) * error).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        schedule.step()
    return network


def _optimizer(
    network: nn.Sequential, plan: TrainingPlan
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.OneCycleLR]:
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.learning_rate, total_steps=plan.steps
    )
    return optimizer, schedule


def _tensor(values: Matrix) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _to_network(network: nn.Sequential) -> Network:
    return Network(
        tuple(
            Layer(
                weight=np.ascontiguousarray(layer.weight.detach().numpy().T),
                bias=layer.bias.detach().numpy(),
            )
            for layer in network
            if isinstance(layer, nn.Linear)
        )
    )
