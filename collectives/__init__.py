"""What a group of ranks does together: collectives, and how long they take on a cluster."""

from collectives.calibration import Calibration, load_calibration, load_default_calibration
from collectives.collective import (
    Collective,
    CollectiveAlgorithm,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
    Protocol,
)
from collectives.group import GroupShape, group_shape, wiring_of
from collectives.pricing import CollectiveCall, price_collective, price_sizes, share_links
from collectives.wiring import HostLinkClass, Wiring

__all__ = [
    "Calibration",
    "Collective",
    "CollectiveAlgorithm",
    "CollectiveCall",
    "CollectiveCost",
    "CollectiveKind",
    "CollectiveSoftware",
    "GroupShape",
    "HostLinkClass",
    "Protocol",
    "Wiring",
    "group_shape",
    "load_calibration",
    "load_default_calibration",
    "price_collective",
    "price_sizes",
    "share_links",
    "wiring_of",
]
