"""Fitting interference: what kernels of a family lose in a phase, generation by generation.

Few kernels of a few jobs are a thin base. The loss of a generation is drawn
towards that of all of them, the more the fewer kernels it rests on (a random
effect a generation, weighted by inverse variance); one job with three kernels
that happen to fill the GPU exactly does not become a law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibration.interference.samples import KernelLoss
from perfmodel.costs.interference import BESIDE, SLOWED_FAMILIES, Phase

RELATIVES = {"attention": "gemm", "embedding": "memory"}
"""Which family stands for one that was never seen: by what bounds their kernels."""
MOST_LOSS_RATIO = 0.6
DRAWS = 2000
COMMON_KERNELS = 2.0
"""As many kernels of its own count as much for a generation's scatter as that of all."""
Floats = NDArray[np.float64]
Cell = tuple[str, Phase]
"""A family in a phase."""


@dataclass(frozen=True, slots=True)
class SeenLoss:
    """The mean loss of the kernels that one generation was seen with, by time covered.

    Shapes of one kernel lose alike and count as one. *low_ratio* and
    *high_ratio* are the middle 90 % of means of kernels drawn again;
    *effective_kernels* counts kernels as if all had weighed the same.
    """

    kernels: int
    effective_kernels: float
    mean_ratio: float
    low_ratio: float
    high_ratio: float
    variance: float


@dataclass(frozen=True, slots=True)
class FittedLoss:
    """The loss that is used, and what was *seen*; None where it is borrowed."""

    loss_ratio: float
    seen: SeenLoss | None

    @property
    def slowdown(self) -> float:
        """How many times longer a kernel takes that is covered all the time."""
        return slowdown_of(self.loss_ratio)


def slowdown_of(loss_ratio: float) -> float:
    """A kernel that loses this share of each moment takes so many times as long."""
    return 1 / (1 - loss_ratio)


def fit_losses(losses: Sequence[KernelLoss]) -> dict[str, dict[Cell, FittedLoss]]:
    """The loss of every family and phase, by device name as the losses say it."""
    devices = sorted({loss.device for loss in losses})
    cells: dict[Cell, dict[str, FittedLoss]] = {}
    for family in SLOWED_FAMILIES:
        for phase in BESIDE:
            seen = {
                device: see_loss(chosen)
                for device in devices
                if (chosen := _chosen(losses, device, family, phase))
            }
            if seen:
                cells[family, phase] = shrink(seen, devices)
    return {device: _complete(device, cells) for device in devices}


def _chosen(
    losses: Sequence[KernelLoss], device: str, family: str, phase: Phase
) -> list[KernelLoss]:
    wanted = (device, family, phase)
    return [loss for loss in losses if (loss.device, loss.family, loss.phase) == wanted]


def see_loss(losses: Sequence[KernelLoss]) -> SeenLoss:
    """The mean of *losses*, all of one cell, and how sure it is."""
    names = list(dict.fromkeys(loss.kernel for loss in losses))
    weights, totals = np.zeros(len(names)), np.zeros(len(names))
    for loss in losses:
        weights[names.index(loss.kernel)] += loss.covered_ns
        totals[names.index(loss.kernel)] += loss.covered_ns * loss.loss_ratio
    values = totals / weights
    chance = np.random.default_rng(0)
    picks = chance.integers(len(values), size=(DRAWS, len(values)))
    means = (values[picks] * weights[picks]).sum(axis=1) / weights[picks].sum(axis=1)
    low, high = np.quantile(means, [0.05, 0.95])
    mean = float(np.average(values, weights=weights))
    return SeenLoss(
        kernels=len(values),
        effective_kernels=float(weights.sum() ** 2 / (weights**2).sum()),
        mean_ratio=mean,
        low_ratio=float(low),
        high_ratio=float(high),
        variance=float(np.average((values - mean) ** 2, weights=weights)),
    )


def shrink(seen: Mapping[str, SeenLoss], devices: Sequence[str]) -> dict[str, FittedLoss]:
    """The loss of each of *devices*, those *seen* drawn to their common mean, others at it.

    The scatter of kernels is pooled in part, so that a generation seen with one
    is not taken for sure. Between generations: DerSimonian and Laird's estimate.
    """
    names = list(seen)
    means = np.array([seen[name].mean_ratio for name in names])
    counts = np.array([seen[name].effective_kernels for name in names])
    scatter = np.array([seen[name].variance for name in names])
    pooled = float((scatter * counts).sum() / max((counts - 1).sum(), 1.0))
    scatter = (scatter * counts + pooled * COMMON_KERNELS) / (counts - 1 + COMMON_KERNELS)
    own = np.maximum(scatter / counts, 1e-6)
    between = _between_variance(means, own)
    weights = 1 / (own + between)
    common = float(np.average(means, weights=weights))
    trust = between / (between + own)
    drawn = trust * means + (1 - trust) * common
    fitted = {
        name: FittedLoss(_bounded(float(value)), seen[name])
        for name, value in zip(names, drawn, strict=True)
    }
    return {device: fitted.get(device, FittedLoss(_bounded(common), None)) for device in devices}


def _between_variance(means: Floats, own: Floats) -> float:
    if len(means) < 2:
        return 0.0
    weights = 1 / own
    common = np.average(means, weights=weights)
    spread = float((weights * (means - common) ** 2).sum()) - (len(means) - 1)
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    return max(spread / scale, 0.0)


def _bounded(loss_ratio: float) -> float:
    return min(max(loss_ratio, 0.0), MOST_LOSS_RATIO)


def _complete(
    device: str, cells: Mapping[Cell, Mapping[str, FittedLoss]]
) -> dict[Cell, FittedLoss]:
    """Every family and phase of *device*; who moves bytes also holds multiprocessors."""
    complete: dict[Cell, FittedLoss] = {}
    for family in SLOWED_FAMILIES:
        floor = 0.0
        for phase in BESIDE:
            cell = (family, phase)
            if cell in cells:
                found = cells[cell][device]
            else:
                relative = complete.get((RELATIVES.get(family, family), phase))
                found = FittedLoss(0.0 if relative is None else relative.loss_ratio, None)
            complete[cell] = FittedLoss(max(found.loss_ratio, floor), found.seen)
            floor = complete[cell].loss_ratio
    return complete
