"""Networks: fitting small corrections and spreads with torch; they are evaluated with numpy.

The spread is a quantile: nine errors in ten of rows not fitted lie in the
interval that it makes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from perfmodel.costs.correction import LARGEST_STEP, Correction, Layer, Matrix, Network
from perfmodel.costs.estimates import INTERVAL_SIGMAS

INTERVAL_SHARE = 0.87
USUAL_ERROR = 0.01
"""The loss turns from square to linear at this error of the logarithm."""
FEWEST_SPREAD_ROWS = 1000
"""With fewer rows one spread stands for all: a network would only learn their noise."""


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
    """The correction that comes closest to *log_ratio*, as far as corrections go."""
    mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
    wanted = np.clip(log_ratio, -LARGEST_STEP, LARGEST_STEP)
    return Correction(
        mean=mean,
        scale=scale,
        low=features.min(axis=0),
        high=features.max(axis=0),
        shift=_to_network(_train((features - mean) / scale, wanted, plan)),
    )


def fit_spread(inputs: Matrix, sizes: Matrix, plan: TrainingPlan) -> Network:
    """The network for the logarithm of sigma, from the *sizes* of errors on rows not fitted."""
    return _to_network(_train_spread(inputs, sizes, plan))


def _build(inputs: int, hidden: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
        nn.Linear(hidden, 1),
    )  # fmt: skip


def _train(inputs: Matrix, target: Matrix, plan: TrainingPlan) -> nn.Sequential:
    network = _build(inputs.shape[1], plan.hidden, plan.seed)
    rows, wanted = _tensor(inputs), _tensor(target)
    chooser = torch.Generator().manual_seed(plan.seed)
    optimizer, schedule = _optimizer(network, plan)
    for _ in range(plan.steps):
        chosen = torch.randint(0, len(rows), (min(plan.batch, len(rows)),), generator=chooser)
        error = network(rows[chosen]).squeeze(1) - wanted[chosen]
        loss = nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=USUAL_ERROR)
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
