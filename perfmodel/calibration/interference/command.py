"""Calibrating interference: from recorded jobs to the file of constants."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from perfmodel.base.errors import CalibrationError
from perfmodel.calibration.interference.fit import Cell, FittedLoss, fit_losses, slowdown_of
from perfmodel.calibration.interference.samples import KernelLoss, collect_losses
from perfmodel.costs.interference import BESIDE, SLOWED_FAMILIES
from topologies import list_devices, load_device
from traces.job_trace import JobTrace, load_job_traces

_HEADING = """\
# How many times longer kernels take beside a collective that waits for other ranks, or moves bytes.
# `slowdown` is used; `measured` is the mean over the kernels seen so, by time, and `low` and `high`
# the middle 90 % of means of kernels drawn again. Without `kernels` a value is assumed: the mean of
# other generations, or that of products for attention and of memory-bound kernels for lookups.
# Made by the command below; do not edit by hand.
"""


@dataclass(frozen=True, slots=True, eq=False)
class FittedInterference:
    """Constants by architecture, the kernels they rest on, and what was recorded where."""

    of_architecture: dict[str, dict[Cell, FittedLoss]]
    losses: tuple[KernelLoss, ...]
    hardware: tuple[str, ...]
    jobs: tuple[str, ...]


def fit_interference(paths: Sequence[Path], *, device: str | None) -> FittedInterference:
    """Constants from the recorded jobs at *paths*; *device* is that of traces that name none."""
    jobs = [job for path in paths for job in load_job_traces(path)]
    devices = [_device_of(job, device) for job in jobs]
    architectures = [_architecture_of(name, job) for name, job in zip(devices, jobs, strict=True)]
    losses = collect_losses(zip(jobs, architectures, strict=True))
    if not losses:
        raise CalibrationError(
            f"{', '.join(str(path) for path in paths)}: no kernel was recorded both alone and "
            "beside a collective. Take traces of several steps of a job that overlaps them."
        )
    return FittedInterference(
        of_architecture=fit_losses(losses),
        losses=tuple(losses),
        hardware=tuple(dict.fromkeys(devices)),
        jobs=tuple(job.name for job in jobs),
    )


def _device_of(job: JobTrace, fallback: str | None) -> str:
    named = [name for trace in job.ranks for name in trace.device_names]
    if named:
        return named[0]
    if fallback is None:
        raise CalibrationError(
            f"job {job.name!r}: the traces do not name their GPU. Say it with --device, such as "
            "mi300x; it is taken for all traces without one."
        )
    return fallback


def _architecture_of(recorded: str, job: JobTrace) -> str:
    """The architecture of the device that a trace calls *recorded*, from the devices we know."""
    word = recorded.lower()
    known = [name.split("_") for name in list_devices() if name.split("_")[0] in word]
    if known:
        # Of devices that begin alike (RTX cards) the one with most of its words in the text.
        best = max(known, key=lambda parts: sum(part in word for part in parts))
        return load_device("_".join(best)).architecture.value
    raise CalibrationError(
        f"job {job.name!r}: GPU {recorded!r} is none of the devices known: "
        f"{', '.join(list_devices())}."
    )


def to_text(fitted: FittedInterference, *, about: dict[str, str]) -> str:
    """A calibration file; *about* is its header."""
    generations = {
        name: _generation(cells) for name, cells in sorted(fitted.of_architecture.items())
    }
    document = {**about, "generations": generations}
    return _HEADING + yaml.safe_dump(document, sort_keys=False, width=100, default_flow_style=None)


def _generation(cells: dict[Cell, FittedLoss]) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        family: {phase.word: _entry(cells[family, phase]) for phase in BESIDE}
        for family in SLOWED_FAMILIES
    }


def _entry(fitted: FittedLoss) -> dict[str, Any]:
    entry: dict[str, Any] = {"slowdown": round(fitted.slowdown, 3)}
    if fitted.seen is not None:
        entry |= {
            "measured": round(slowdown_of(fitted.seen.mean_ratio), 3),
            "low": round(slowdown_of(fitted.seen.low_ratio), 3),
            "high": round(slowdown_of(fitted.seen.high_ratio), 3),
            "kernels": fitted.seen.kernels,
        }
    return entry


def about_traces(
    fitted: FittedInterference, *, command: str, licence: str, day: datetime.date
) -> dict[str, str]:
    """Where the constants come from."""
    return {
        "source": f"kernels recorded in {', '.join(fitted.jobs)}",
        "hardware": ", ".join(fitted.hardware),
        "software": "releases of PyTorch and NCCL or RCCL as recorded, 2022 to 2025",
        "date": day.isoformat(),
        "licence": licence,
        "command": command,
    }
