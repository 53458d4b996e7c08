"""Anchoring: prices as runs and kernels that the user measured have them.

`perfmodel calibrate runs` and `calibrate kernels` write such files of constants; what they say is
known there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collectives.calibration import holds_anchors
from perfmodel.base.extensions import load_extension
from perfmodel.costs.estimates import Estimates
from perfmodel.graph.ops import Communication, Op
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster, Device

if TYPE_CHECKING:
    from perfmodel.costs.priced_job import PricedJob


def anchor(priced: PricedJob, cluster: Cluster, stack: SoftwareStack) -> PricedJob:
    """*priced* as the measured runs of the device of *cluster* have it."""
    if not (files := _files(cluster.device)):
        return priced
    module = load_extension("measurements", "calibration.anchors")
    anchored: PricedJob = module.apply_anchors(priced, cluster, stack, files)
    return anchored


def adjust_ops(
    found: Estimates, ops: Sequence[Op], device: Device, stack: SoftwareStack
) -> Estimates:
    """*found*, the prices of *ops*, as the timed kernels of *device* have them."""
    if not ops or not _files(device):
        return found
    adjusted: Estimates = _own_kernels().adjust_ops(found, ops, device, stack)
    return adjusted


class CallFactor(NamedTuple):
    """By what to multiply a collective, and its relative error."""

    time: float = 1.0
    sigma: float = 1.0


class CallFactors:
    """Factors of the collectives of *cluster*, as the timed ones of its device have them."""

    def __init__(self, cluster: Cluster) -> None:
        learnt: Any = _own_kernels().learn_calls(cluster) if _files(cluster.device) else None
        self._learnt = learnt if learnt is not None and learnt.spots else None

    def of(self, op: Communication, ranks: int, hosts: int) -> CallFactor:
        """The factor of *op* among *ranks* ranks of *hosts* hosts."""
        if self._learnt is None:
            return CallFactor()
        spot = _own_kernels().spot_of(op, ranks=ranks, hosts=hosts)
        logs, left = self._learnt.answer([spot])
        return CallFactor(float(np.exp(logs[0])), float(np.sqrt(left[0])))


def _files(device: Device) -> list[Path]:
    return [path for path in map(Path, device.calibrations) if holds_anchors(path)]


def _own_kernels() -> Any:
    return load_extension("measurements", "calibration.own_kernels")
