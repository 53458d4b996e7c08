"""Anchoring: prices as runs that the user measured have them.

`perfmodel calibrate runs` writes such files of constants; what they say is known there.
"""

from __future__ import annotations

from pathlib import Path

from collectives.calibration import holds_anchors
from perfmodel.base.extensions import load_extension
from perfmodel.costs.priced_job import PricedJob
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster

_HOME = "measurements", "calibration.anchors"


def anchor(priced: PricedJob, cluster: Cluster, stack: SoftwareStack) -> PricedJob:
    """*priced* as the files of anchors of the device of *cluster* have it."""
    files = [path for path in map(Path, cluster.device.calibrations) if holds_anchors(path)]
    if not files:
        return priced
    anchored: PricedJob = load_extension(*_HOME).apply_anchors(priced, cluster, stack, files)
    return anchored
