"""Constants: what a generation of GPUs and a fabric reach of their datasheets, as fitted.

Times are nanoseconds, ratios are of the datasheet's bandwidth, so that constants carry over
to a machine of the same generation with other wires.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from perfmodel.base.errors import CalibrationError


def _check_positive(owner: str, constants: object) -> None:
    for field in fields(constants):  # type: ignore[arg-type]  # a dataclass instance
        value = getattr(constants, field.name)
        if not (isinstance(value, float) and math.isfinite(value) and value >= 0):
            raise CalibrationError(
                f"{owner}.{field.name}: must be a number of zero or more, got {value!r}. "
                "Fit the calibration again."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConstants:
    """Inside a host, for one GPU generation on one class of links.

    *spread_ns* is the cost of using all channels, reached when a chunk is much larger than
    *spread_bytes*. *ll_overlap* is the exponent by which waiting and sending hide each other in LL
    and LL128 (1: not at all). *copy_ratio* is how much of a link step the copy inside the GPU's
    own memory costs. *fill_ns* is the time constant of filling the pipeline of chunks, whose cost
    grows with the square root of the transfer. *crowding* is the power by which bandwidth
    falls with the number of ranks beyond what shared links explain. *plateau_ns* is what
    spreading a pairwise exchange over all channels costs once a slice exceeds *plateau_bytes*.
    *root_launch_ns* is what a broadcast or reduction to one root pays more at the start.
    """

    launch_ns: float
    spread_ns: float
    spread_bytes: float
    ll_hop_ns: float
    ll_ratio: float
    ll_overlap: float
    ll128_hop_ns: float
    ll128_ratio: float
    simple_launch_ns: float
    simple_hop_ns: float
    simple_ratio: float
    copy_ratio: float
    fill_ns: float
    crowding: float
    root_launch_ns: float
    nvls_launch_ns: float
    nvls_ratio: float
    nvls_fill_ns: float
    pair_launch_ns: float
    pair_peer_ns: float
    pair_ratio: float
    pair_fill_ns: float
    pair_crowding: float
    plateau_ns: float
    plateau_bytes: float

    def __post_init__(self) -> None:
        _check_positive("host constants", self)

    def before_2_24(self, software: SoftwareConstants) -> HostConstants:
        """The same for older releases of NCCL: dearer steps, other costs of pairwise exchanges."""
        steps = ("launch_ns", "spread_ns", "ll_hop_ns", "ll128_hop_ns", "simple_launch_ns")
        slower = {name: getattr(self, name) * software.before_2_24_step_ratio for name in steps}
        return replace(
            self,
            **slower,
            plateau_ns=self.plateau_ns * software.before_2_24_plateau_ratio,
            pair_peer_ns=self.pair_peer_ns * software.before_2_24_peer_ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricConstants:
    """Between hosts, for one kind of network with its NCCL plugin.

    *spread_ns* a hop is what messages well above *spread_bytes* cost over the smallest ones;
    *ring_hop_ratio* how much dearer a hop of a ring is than one of a tree; *fill_ns* a level what
    waiting for the first chunk costs once messages exceed *fill_bytes*, in LL128
    *ll128_fill_ns* once they exceed *ll128_fill_bytes*. *nic_crowding* is the share of its
    time by which each further rank on a NIC slows the others down beyond its bandwidth. A pairwise
    exchange pays *pair_peer_ns* for each partner on another host, *pair_ll_peer_ns* where it goes
    by LL; its slices feel an oversubscribed spine once they exceed *pair_burst_bytes*, which
    switches hold.
    """

    launch_ns: float
    ll_hop_ns: float
    ll128_hop_ns: float
    simple_hop_ns: float
    spread_ns: float
    spread_bytes: float
    ll_ratio: float
    ll128_ratio: float
    simple_ratio: float
    fill_ns: float
    fill_bytes: float
    ll128_fill_ns: float
    ll128_fill_bytes: float
    nic_crowding: float
    ring_hop_ratio: float
    nvls_tree_fill_ns: float
    pair_launch_ns: float
    pair_peer_ns: float
    pair_ratio: float
    pair_fill_ns: float
    pair_ll_peer_ns: float
    pair_burst_bytes: float

    def __post_init__(self) -> None:
        _check_positive("fabric constants", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareConstants:
    """What the release of NCCL and the number format change, as factors.

    Steps, the plateau and the cost of a peer are those of the host constants.
    """

    before_2_24_step_ratio: float
    before_2_24_plateau_ratio: float
    before_2_24_peer_ratio: float
    byte_reduction_ratio: float

    def __post_init__(self) -> None:
        _check_positive("software constants", self)
