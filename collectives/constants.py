"""Constants: what a generation of GPUs and a fabric reach of their datasheets, as fitted.

Times are nanoseconds, ratios are of the datasheet's bandwidth, so that constants carry over
to a machine of the same generation with other wires. A calibration file has one entry per class
of hosts and per network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from collectives.collective import CollectiveKind, Protocol
from collectives.wiring import HostLinkClass
from perfmodel.base.fields import Constant, Count, Line, Switch, Words
from perfmodel.base.forms import KEEPS_UNITS, Form

WholeBytes = Annotated[int, Field(strict=True, ge=0, le=2**60)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConstants(Form):
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

    __pydantic_config__ = KEEPS_UNITS

    launch_ns: Constant
    spread_ns: Constant
    spread_bytes: Constant
    ll_hop_ns: Constant
    ll_ratio: Constant
    ll_overlap: Constant
    ll128_hop_ns: Constant
    ll128_ratio: Constant
    simple_launch_ns: Constant
    simple_hop_ns: Constant
    simple_ratio: Constant
    copy_ratio: Constant
    fill_ns: Constant
    crowding: Constant
    root_launch_ns: Constant
    nvls_launch_ns: Constant
    nvls_ratio: Constant
    nvls_fill_ns: Constant
    pair_launch_ns: Constant
    pair_peer_ns: Constant
    pair_ratio: Constant
    pair_fill_ns: Constant
    pair_crowding: Constant
    plateau_ns: Constant
    plateau_bytes: Constant

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
class FabricConstants(Form):
    """Between hosts, for one kind of network with its NCCL plugin.

    *spread_ns* a hop is what messages well above *spread_bytes* cost over the smallest ones;
    *step_ns* is what a step of a ring in Simple takes at least once each NIC has more than
    *step_bytes* to send: proxies handle messages one by one. *proxy_ns* is what a proxy needs for
    any step of a ring, by as much as NCCL counts for the processor, and *ll_bytes_per_s* how fast
    the proxy of a rank hands over LL. *fill_ns* a level is what waiting for the first chunk costs
    once messages exceed *fill_bytes*, in LL128
    *ll128_fill_ns* once they exceed *ll128_fill_bytes*. *nic_crowding* is the share of its
    time by which each further rank on a NIC slows the others down beyond its bandwidth. A pairwise
    exchange pays *pair_peer_ns* for each partner on another host, *pair_ll_peer_ns* where it goes
    by LL; its slices feel an oversubscribed spine once they exceed *pair_burst_bytes*, which
    switches hold.
    """

    __pydantic_config__ = KEEPS_UNITS

    launch_ns: Constant
    ll_hop_ns: Constant
    ll128_hop_ns: Constant
    simple_hop_ns: Constant
    spread_ns: Constant
    spread_bytes: Constant
    step_ns: Constant
    step_bytes: Constant
    proxy_ns: Constant
    ll_bytes_per_s: Constant
    ll128_ratio: Constant
    simple_ratio: Constant
    fill_ns: Constant
    fill_bytes: Constant
    ll128_fill_ns: Constant
    ll128_fill_bytes: Constant
    nic_crowding: Constant
    nvls_tree_fill_ns: Constant
    pair_launch_ns: Constant
    pair_peer_ns: Constant
    pair_ratio: Constant
    pair_fill_ns: Constant
    pair_ll_peer_ns: Constant
    pair_burst_bytes: Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareConstants(Form):
    """What the release of NCCL and the number format change, as factors.

    Steps, the plateau and the cost of a peer are those of the host constants.
    """

    __pydantic_config__ = KEEPS_UNITS

    before_2_24_step_ratio: Constant
    before_2_24_plateau_ratio: Constant
    before_2_24_peer_ratio: Constant
    byte_reduction_ratio: Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry(Form):
    """Constants inside a host; with *machines* only for hosts of these names.

    An *is_odd* host is unlike others of its name: its constants are for its own table, not for
    other machines.
    """

    name: Line
    architecture: Line
    link_class: HostLinkClass
    machines: tuple[Words, ...]
    is_odd: Switch = False
    constants: HostConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricEntry(Form):
    """Constants between hosts, for the networks of *machines*.

    *protocols* are those the network plugin leaves NCCL; *tree_reach* is how much of the network
    NCCL expects a tree to use. A pairwise exchange with slices up to *pair_ll_bytes* goes by LL.
    """

    __pydantic_config__ = KEEPS_UNITS

    name: Line
    machines: tuple[Words, ...]
    protocols: tuple[Protocol, ...]
    pair_ll_bytes: WholeBytes
    tree_reach: Constant
    constants: FabricConstants


@dataclass(frozen=True, slots=True)
class MeasuredSpan:
    """A curve that was in the fit: one machine, kind and group, over a span of sizes."""

    topology: Words
    kind: CollectiveKind
    hosts: Count
    ranks: Count
    low_bytes: WholeBytes
    high_bytes: WholeBytes

    def holds(self, hosts: int, ranks: int, size_bytes: float) -> bool:
        """Whether the curve covers a call of that group and size."""
        same_group = (hosts, ranks) == (self.hosts, self.ranks)
        return same_group and self.low_bytes <= size_bytes <= self.high_bytes
