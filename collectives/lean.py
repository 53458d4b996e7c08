"""Lean exchanges: collectives that a framework carries out with kernels of its own.

Such kernels write straight into the memory of other GPUs and of their NICs, so that they pay
one crossing and keep the wires busy from the start. An all-reduce goes through the host first,
then along the rails, then back.

Leaves out: everything that makes a collective library slower at small sizes. Constants are
assumed, not fitted: nobody published times of these kernels alone.
"""

from __future__ import annotations

import numpy as np

from collectives.collective import FREE, Collective, CollectiveCost, CollectiveKind, bus_bandwidth
from collectives.group import wiring_of
from collectives.pricing import Ranks
from collectives.uneven import build_rank_load
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from topologies import Cluster

WIRE_RATIO = 0.85
"""What kernels reach of the datasheet of a wire."""
CALL_NS = 8_000.0
"""Starting the kernel and agreeing that all data are there."""
RELATIVE_SIGMA = 0.25


def price_lean(collective: Collective, *, cluster: Cluster, ranks: Ranks) -> CollectiveCost:
    """Predict an all-to-all or an all-reduce of *ranks* that is done by lean kernels."""
    wiring = wiring_of(ranks, cluster)
    count = wiring.rank_count
    if count == 1:
        return FREE
    gpu_ns_per_byte = NS_PER_S / (WIRE_RATIO * wiring.pair_bandwidth_bytes_per_s)
    nic_ns_per_byte = 0.0
    if wiring.host_count > 1:
        nic_ns_per_byte = NS_PER_S / (WIRE_RATIO * wiring.nic_bandwidth_bytes_per_s)
    latency_ns = CALL_NS + wiring.net_latency_ns
    if collective.byte_matrix is not None:
        load = build_rank_load(collective.byte_matrix, ranks, cluster)
        gpu_ns = load.inside_bytes * gpu_ns_per_byte
        nic_ns = load.nic_bytes * max(wiring.nic_count, 1) * nic_ns_per_byte
        per_rank_ns = latency_ns + np.maximum(gpu_ns, nic_ns)
    elif collective.kind is CollectiveKind.ALL_REDUCE:
        inside, hosts = wiring.ranks_per_host, wiring.host_count
        moved = 2.0 * collective.size_bytes
        gpu_ns = np.array([moved * (inside - 1) / inside * gpu_ns_per_byte])
        nic_ns = np.array([moved * (hosts - 1) / hosts * nic_ns_per_byte])
        per_rank_ns = 3 * latency_ns + gpu_ns + nic_ns
    else:
        raise InputError(
            f"{collective.kind.value}: lean kernels do all-reduces and all-to-alls by byte matrix."
        )
    worst_ns = float(per_rank_ns.max())
    return CollectiveCost(
        duration_ns=worst_ns,
        relative_sigma=RELATIVE_SIGMA,
        provenance=Provenance.ASSUMED,
        algorithm="lean",
        protocol="direct",
        busiest_link=wiring.nic_link if nic_ns.max() > gpu_ns.max() else wiring.host_link,
        latency_ns=min(latency_ns, worst_ns),
        bus_bandwidth_bytes_per_s=bus_bandwidth(
            collective.kind,
            size_bytes=collective.size_bytes,
            rank_count=count,
            duration_ns=worst_ns,
        ),
        gpu_busy_ns=float(gpu_ns.max()),
        nic_busy_ns=float(nic_ns.max()),
        per_rank_ns=per_rank_ns if collective.byte_matrix is not None else None,
    )
