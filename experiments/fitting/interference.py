"""Calibration of interference: how much kernels of a family slow down in a phase, by generation.

A few kernels of a few jobs are little evidence. The loss of a generation is pulled towards the
mean of all generations, more so with fewer kernels (a random effect per generation, weighted by
inverse variance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from experiments.fitting.interference_samples import (
    KernelLoss,
    collect_losses,
)
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.interference import OVERLAPPING, SLOWED_FAMILIES, Phase
from topologies import list_devices, load_device, name_devices
from traces.job_trace import JobTrace, load_job_traces

RELATIVES = {"attention": "gemm", "embedding": "memory"}
"""Which family lends its loss to one without recordings: by what bounds their kernels."""
MOST_LOSS_RATIO = 0.6
DRAWS = 2000
COMMON_KERNELS = 2.0
"""So many kernels of a generation weigh as much for its scatter as the pooled scatter."""
Floats = NDArray[np.float64]
Cell = tuple[str, Phase]
"""A family in a phase."""
_HEADING = """\
# How many times longer kernels take during a collective that waits for other ranks, or moves bytes.
# `slowdown` is used; `measured` is the mean over the kernels seen so, by time, and `low` and `high`
# the middle 90 % of means of kernels drawn again. Without `kernels` a value is assumed: the mean of
# other generations, or that of products for attention and of memory-bound kernels for lookups.
# Made by the command below; do not edit by hand.
"""


@dataclass(frozen=True, slots=True)
class SeenLoss:
    """The mean loss of the kernels recorded on one generation, weighted by covered time.

    Shapes of one kernel lose the same and count as one. *low_ratio* and *high_ratio* are the middle
    90 % of bootstrap means; *effective_kernels* is the count at equal weights.
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
        """How many times longer a fully covered kernel takes."""
        return slowdown_of(self.loss_ratio)


@dataclass(frozen=True, slots=True, eq=False)
class FittedInterference:
    """Constants by architecture, the kernels they rest on, and the recorded hardware and jobs."""

    of_architecture: dict[str, dict[Cell, FittedLoss]]
    losses: tuple[KernelLoss, ...]
    hardware: tuple[str, ...]
    jobs: tuple[str, ...]


def fit_interference(paths: Sequence[Path], *, device: str | None) -> FittedInterference:
    """Constants from the recorded jobs at *paths*; *device* is that of traces that name none."""
    jobs = [job for path in paths for job in load_job_traces(path)]
    devices = [_device_of(job, device) for job in jobs]
    architectures = [load_device(name).generation for _, name in devices]
    losses = collect_losses(zip(jobs, architectures, strict=True))
    if not losses:
        raise CalibrationError(
            f"{', '.join(str(path) for path in paths)}: no kernel was recorded both alone and "
            "while a collective ran. Record traces of several steps of a job that overlaps them."
        )
    return FittedInterference(
        of_architecture=fit_losses(losses),
        losses=tuple(losses),
        hardware=tuple(dict.fromkeys(recorded for recorded, _ in devices)),
        jobs=tuple(job.name for job in jobs),
    )


def _device_of(job: JobTrace, fallback: str | None) -> tuple[str, str]:
    """What the traces of *job* call their GPU, and a device of its architecture that we know."""
    named = next((name for trace in job.ranks for name in trace.device_names), fallback)
    if named is None:
        raise CalibrationError(
            f"job {job.name!r}: the traces do not name their GPU. Name it with --device, such as "
            "mi300x; it applies to all traces that do not name one."
        )
    known = name_devices(named)
    if not known:
        raise CalibrationError(
            f"job {job.name!r}: GPU {named!r} must be a known device, one of "
            f"{', '.join(list_devices())}."
        )
    return named, known[-1]


def slowdown_of(loss_ratio: float) -> float:
    """How many times longer a kernel takes that loses this share of its time."""
    return 1 / (1 - loss_ratio)


def fit_losses(losses: Sequence[KernelLoss]) -> dict[str, dict[Cell, FittedLoss]]:
    """The loss of every family and phase, by the device names in *losses*."""
    devices = sorted({loss.device for loss in losses})
    cells: dict[Cell, dict[str, FittedLoss]] = {}
    for family in SLOWED_FAMILIES:
        for phase in OVERLAPPING:
            chosen: dict[str, list[KernelLoss]] = {device: [] for device in devices}
            for loss in losses:
                if (loss.family, loss.phase) == (family, phase):
                    chosen[loss.device].append(loss)
            seen = {device: _see_loss(one) for device, one in chosen.items() if one}
            if seen:
                cells[family, phase] = _shrink(seen, devices)
    return {device: _complete(device, cells) for device in devices}


def _see_loss(losses: Sequence[KernelLoss]) -> SeenLoss:
    """The mean of *losses*, all of one cell and device, and how sure it is."""
    names = list(dict.fromkeys(loss.kernel for loss in losses))
    weights, totals = np.zeros(len(names)), np.zeros(len(names))
    for loss in losses:
        weights[names.index(loss.kernel)] += loss.covered_ns
        totals[names.index(loss.kernel)] += loss.covered_ns * loss.loss_ratio
    values = totals / weights
    picks = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
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


def _shrink(seen: Mapping[str, SeenLoss], devices: Sequence[str]) -> dict[str, FittedLoss]:
    """The loss of each of *devices*: those *seen* are pulled to their common mean, others get it.

    The scatter of kernels is partly pooled, so that a generation with one kernel is not taken as
    certain. Between generations: the estimate of DerSimonian and Laird.
    """
    means, counts, scatter = np.array(
        [(one.mean_ratio, one.effective_kernels, one.variance) for one in seen.values()]
    ).T
    pooled = float((scatter * counts).sum() / max((counts - 1).sum(), 1.0))
    scatter = (scatter * counts + pooled * COMMON_KERNELS) / (counts - 1 + COMMON_KERNELS)
    own = np.maximum(scatter / counts, 1e-6)
    between = _between_variance(means, own)
    common = float(np.average(means, weights=1 / (own + between)))
    trust = between / (between + own)
    shrunk = trust * means + (1 - trust) * common
    fitted = {
        name: FittedLoss(_bounded(float(value)), one)
        for (name, one), value in zip(seen.items(), shrunk, strict=True)
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
    """Every family and phase of *device*.

    A collective that moves bytes costs at least as much as one that waits: both hold
    multiprocessors.
    """
    complete: dict[Cell, FittedLoss] = {}
    for family in SLOWED_FAMILIES:
        floor = 0.0
        for phase in OVERLAPPING:
            if (family, phase) in cells:
                found = cells[family, phase][device]
            else:
                relative = complete.get((RELATIVES.get(family, family), phase))
                found = FittedLoss(0.0 if relative is None else relative.loss_ratio, None)
            floor = max(found.loss_ratio, floor)
            complete[family, phase] = FittedLoss(floor, found.seen)
    return complete


def to_text(fitted: FittedInterference, about: Mapping[str, str]) -> str:
    """A calibration file; *about* is its header."""

    def entry(cell: FittedLoss) -> dict[str, Any]:
        numbers: dict[str, Any] = {"slowdown": round(cell.slowdown, 3)}
        if cell.seen is not None:
            seen = cell.seen
            ratios = {"measured": seen.mean_ratio, "low": seen.low_ratio, "high": seen.high_ratio}
            numbers |= {name: round(slowdown_of(ratio), 3) for name, ratio in ratios.items()}
            numbers["kernels"] = seen.kernels
        return numbers

    generations = {
        name: {
            family: {phase.word: entry(cells[family, phase]) for phase in OVERLAPPING}
            for family in SLOWED_FAMILIES
        }
        for name, cells in sorted(fitted.of_architecture.items())
    }
    document = {**about, "generations": generations}
    return _HEADING + yaml.safe_dump(document, sort_keys=False, width=100, default_flow_style=None)


def about_traces(fitted: FittedInterference) -> dict[str, str]:
    """Where the constants come from."""
    return {
        "source": f"kernels recorded in {', '.join(fitted.jobs)}",
        "hardware": ", ".join(fitted.hardware),
        "software": "as recorded",
    }
