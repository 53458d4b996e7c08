"""What is fitted for collectives: which block of constants learns from which machines.

Every constant starts from a prior and is pulled to it weakly, so that a block without rows for,
say, LL128 keeps the value of its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collectives.collective import Protocol
from collectives.constants import FabricConstants, HostConstants, SoftwareConstants
from collectives.wiring import HostLinkClass

ALL_PROTOCOLS = tuple(Protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host block: learns from one-host rows of *learns_from*.

    *prior* names the block it starts from; *frozen* are constants kept at the prior;
    *is_odd* keeps what was learnt for that host alone.
    """

    name: str
    architecture: str
    link_class: HostLinkClass
    learns_from: tuple[str, ...]
    prior: str = ""
    machines: tuple[str, ...] = ()
    is_odd: bool = False
    # NVLS was measured above 2 MiB only, which does not tell its launch from its filling; LL128
    # below 25 MiB only, so its bandwidth stays at what it is by design, 120 of 128 bytes.
    frozen: tuple[str, ...] = ("crowding", "nvls_launch_ns", "ll128_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """A fabric block: learns from rows of *learns_from* on several hosts, applies to *machines*."""

    name: str
    machines: tuple[str, ...]
    learns_from: tuple[str, ...]
    protocols: tuple[Protocol, ...] = ALL_PROTOCOLS
    tree_protocols: tuple[Protocol, ...] = ALL_PROTOCOLS
    pair_ll_bytes: int = 0


HOST_SPECS = (
    HostSpec(
        name="hopper_nvswitch",
        architecture="hopper",
        link_class=HostLinkClass.NVSWITCH,
        learns_from=("dgx_h100", "aws_p5"),
    ),
    HostSpec(
        name="ampere_nvswitch",
        architecture="ampere",
        link_class=HostLinkClass.NVSWITCH,
        learns_from=("dgx_a100",),
    ),
    # A cloud's virtual machines: latencies of their own, which a DGX does not share.
    HostSpec(
        name="ampere_cloud",
        architecture="ampere",
        link_class=HostLinkClass.NVSWITCH,
        learns_from=("azure_nd_a100_v4",),
        prior="ampere_nvswitch",
        machines=("azure_nd_a100_v4",),
    ),
    HostSpec(
        name="blackwell_nvswitch",
        architecture="blackwell",
        link_class=HostLinkClass.NVSWITCH,
        learns_from=("dgx_b200", "gb200_nvl72"),
        prior="hopper_nvswitch",
    ),
    HostSpec(
        name="hopper_nvlink_mesh",
        architecture="hopper",
        link_class=HostLinkClass.NVLINK_MESH,
        learns_from=("alps_gh200",),
        prior="hopper_nvswitch",
    ),
    HostSpec(
        name="volta_nvlink_mesh",
        architecture="volta",
        link_class=HostLinkClass.NVLINK_MESH,
        learns_from=("dgx1_v100",),
        prior="ampere_nvswitch",
    ),
    HostSpec(
        name="l40s_pcie",
        architecture="ada",
        link_class=HostLinkClass.PCIE_HOST,
        learns_from=("l40s_pcie",),
        machines=("l40s_pcie",),
        is_odd=True,  # eight ranks get a fourteenth of the bandwidth of two
        frozen=(),
    ),
)

FABRIC_SPECS = (
    FabricSpec(
        name="infiniband",
        machines=("dgx_a100", "dgx_h100", "hgx_h200", "dgx_b200"),
        learns_from=("dgx_a100", "dgx_h100"),
    ),
    FabricSpec(
        name="slingshot_alps",
        machines=("alps_gh200",),
        learns_from=("alps_gh200",),
        # The libfabric plugin switches LL128 off on this network.
        protocols=(Protocol.LL, Protocol.SIMPLE),
    ),
    FabricSpec(
        name="slingshot_polaris",
        machines=("polaris",),
        learns_from=("polaris",),
        protocols=(Protocol.LL, Protocol.SIMPLE),
        # Its logs show the bandwidth of a ring on two hosts, and slow exchanges of tiny slices.
        tree_protocols=(Protocol.LL,),
        pair_ll_bytes=192,
    ),
    FabricSpec(
        name="efa_sendrecv",
        machines=("aws_p4d",),
        learns_from=("aws_p4d",),
        # The EFA plugin forces Simple on p4d (aws/aws-ofi-nccl issue 76).
        protocols=(Protocol.SIMPLE,),
    ),
    # From p5 on EFA writes in order, and the plugin leaves all protocols (aws/aws-ofi-nccl pull
    # request 280). Nobody measured it here: latencies follow the datasheet, bandwidth is taken
    # halfway between the first EFA and InfiniBand.
    FabricSpec(name="efa_rdma", machines=("aws_p5", "aws_p5en"), learns_from=()),
    FabricSpec(
        name="infiniband_cloud",
        machines=("azure_nd_a100_v4",),
        learns_from=("azure_nd_a100_v4",),
    ),
)

HOST_PRIOR = HostConstants(
    launch_ns=5_000.0,
    spread_ns=2_000.0,
    spread_bytes=4_000.0,
    ll_hop_ns=900.0,
    ll_ratio=0.25,
    ll_overlap=2.0,
    ll128_hop_ns=1_900.0,
    ll128_ratio=0.78,
    simple_launch_ns=8_000.0,
    simple_hop_ns=3_000.0,
    simple_ratio=0.85,
    copy_ratio=0.45,
    fill_ns=6_000.0,
    crowding=0.0,
    root_launch_ns=1_000.0,
    nvls_launch_ns=17_000.0,
    nvls_ratio=0.63,
    nvls_fill_ns=20_000.0,
    pair_launch_ns=2_000.0,
    pair_peer_ns=500.0,
    pair_ratio=0.9,
    pair_fill_ns=12_000.0,
    pair_crowding=0.05,
    plateau_ns=3_000.0,
    plateau_bytes=20_000.0,
)

PCIE_PRIOR = replace(
    HOST_PRIOR,
    launch_ns=3_000.0,
    ll_hop_ns=1_400.0,
    ll_ratio=0.35,
    ll128_hop_ns=2_500.0,
    ll128_ratio=0.6,
    simple_hop_ns=5_000.0,
    simple_ratio=0.75,
    copy_ratio=0.1,
    crowding=1.0,
    pair_ratio=0.75,
    pair_fill_ns=6_000.0,
    pair_crowding=1.0,
)

# Ranks that share a NIC reach a third of it on hosts with one NIC for eight GPUs (1 + 7/4 = 2.75),
# and four fifths where two share one (Polaris). Where all rows of a network share alike, its
# bandwidth could not be told from this.
FABRIC_FROZEN = ("nic_crowding",)

FABRIC_PRIOR = FabricConstants(
    launch_ns=6_000.0,
    ll_hop_ns=4_000.0,
    ll128_hop_ns=7_000.0,
    simple_hop_ns=14_000.0,
    spread_ns=2_500.0,
    spread_bytes=2_000.0,
    ll_ratio=0.07,
    ll128_ratio=0.6,
    simple_ratio=0.93,
    fill_ns=15_000.0,
    fill_bytes=200_000.0,
    ll128_fill_ns=40_000.0,
    ll128_fill_bytes=8_000_000.0,
    nic_crowding=0.25,
    ring_hop_ratio=1.0,
    nvls_tree_fill_ns=100_000.0,
    pair_launch_ns=6_000.0,
    pair_peer_ns=6_000.0,
    pair_ratio=0.88,
    pair_fill_ns=20_000.0,
    pair_ll_peer_ns=12_000.0,
    pair_burst_bytes=100_000.0,
)

SOFTWARE_PRIOR = SoftwareConstants(
    before_2_24_step_ratio=1.1,
    before_2_24_plateau_ratio=0.4,
    before_2_24_peer_ratio=1.5,
    byte_reduction_ratio=1.03,
)
