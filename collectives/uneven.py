"""Uneven all-to-all: from the whole byte matrix to one end time per rank.

A rank is done when it has sent and received everything, and its NIC has carried the traffic of all
ranks that share it. Messages of a rank run concurrently and share its wires equally, so a busy rank
also delays its partners. The even matrix gives exactly the even cost.

Lean kernels of a framework write directly into the memory of other GPUs and of their NICs, so they
pay one crossing, and a message to every other host, and keep the wires busy from the start. Their
constants are assumed, not fitted: there are no published times of these kernels alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collectives.calibration import Calibration, Call, predict_call_ns
from collectives.collective import (
    FREE,
    Collective,
    CollectiveAlgorithm,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
    Protocol,
    bus_bandwidth,
)
from collectives.group import Ranks, wiring_of
from collectives.movement import FloatArray, Movement
from collectives.wiring import Wiring
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from topologies import Cluster

WIRE_RATIO = 0.85
"""What kernels reach of the datasheet of a wire."""
CALL_NS = 8_000.0
"""Starting the kernel and agreeing that all data are there."""
MESSAGE_NS = 2_000.0
"""Writing to one more host and seeing its flag: messages of a rank start one after the other."""
RELATIVE_SIGMA = 0.25
_STEPS = {
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.ALL_REDUCE: 2,
}
"""How often reductions by lean kernels move their bytes: out, and back where all get the sum."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What is moved, in bytes, until each rank has sent and received everything.

    *inside_bytes* go through the wires of the rank or of a partner in its host, the busier of them;
    *nic_bytes* through the NIC of the rank or of a partner, by all ranks that share it.
    """

    inside_bytes: FloatArray
    local_bytes: FloatArray
    nic_bytes: FloatArray
    mean_slice_bytes: FloatArray


def build_rank_load(
    byte_matrix: Sequence[Sequence[int]], ranks: Ranks, cluster: Cluster
) -> RankLoad:
    """Sum up *byte_matrix* by rank, host and NIC of the group *ranks*."""
    matrix = np.array(byte_matrix, dtype=np.float64)
    members = np.asarray(ranks, dtype=np.int64)
    host, _ = cluster.seats_of(members)
    own = np.diag(matrix)
    is_inside = host[:, None] == host[None, :]
    inside = np.where(is_inside, matrix, 0.0)
    sent, received = inside.sum(axis=1) - own, inside.sum(axis=0) - own
    away_sent = matrix.sum(axis=1) - own - sent
    away_received = matrix.sum(axis=0) - own - received
    nic = _by_nic(cluster.nics_of(members), np.stack([away_sent, away_received]))
    is_partner = ((matrix > 0) | (matrix.T > 0)) & ~is_inside
    held = np.empty(len(matrix))
    for members_of_host in (np.flatnonzero(host == one) for one in np.unique(host)):
        held[members_of_host] = _held_bytes(matrix[np.ix_(members_of_host, members_of_host)])
    return RankLoad(
        inside_bytes=np.maximum(held, np.maximum(sent, received)),
        local_bytes=own.copy(),
        nic_bytes=np.maximum(nic, (nic[:, None] * is_partner).max(axis=0)),
        mean_slice_bytes=np.maximum(matrix.sum(axis=1), matrix.sum(axis=0)) / len(matrix),
    )


def _held_bytes(matrix: FloatArray) -> FloatArray:
    """What the busiest partner of each rank has carried when their message is through."""
    sent = matrix - np.diag(np.diag(matrix))
    held = np.maximum(_carried_bytes(sent), _carried_bytes(sent.T))
    busiest: FloatArray = held.max(axis=0)
    return busiest


def _carried_bytes(sizes: FloatArray) -> FloatArray:
    """What the wire of a row has carried when each of its messages is through.

    They share it equally: a small one is done when every other has sent as much, or all it has.
    """
    order = np.argsort(sizes, axis=1, kind="stable")
    ordered = np.take_along_axis(sizes, order, axis=1)
    longer = np.arange(sizes.shape[1])[::-1]
    carried = np.empty_like(sizes)
    np.put_along_axis(carried, order, np.cumsum(ordered, axis=1) + ordered * longer, axis=1)
    return np.where(sizes > 0, carried, 0.0)


def _by_nic(nics: npt.NDArray[np.int64], away: FloatArray) -> FloatArray:
    """What the NIC of each rank carries of what ranks send and receive *away*."""
    if not nics.size:
        return np.zeros(away.shape[1])
    _, place = np.unique(nics, return_inverse=True)
    totals = np.stack([np.bincount(place, weights=way) for way in away])
    busier: FloatArray = totals.max(axis=0)[place]
    return busier


def price_uneven(
    load: RankLoad,
    *,
    wiring: Wiring,
    software: CollectiveSoftware,
    calibration: Calibration,
    even: CollectiveCost,
) -> CollectiveCost:
    """Predict when each rank of an all-to-all by byte matrix is done.

    Leaves out: packets of different sizes that wait for each other inside a NIC.
    Source: the pairwise cost with the bytes of each rank put in; that partners wait follows from
    messages that share a wire equally. Only one uneven measurement is public, so the spread between
    ranks could not be verified. *even* is the cost of the same
    bytes spread evenly: algorithm, provenance and uncertainty are taken from it.
    """
    movement = Movement(
        gpu_bytes=load.inside_bytes,
        local_bytes=load.local_bytes,
        nic_bytes=load.nic_bytes * max(wiring.nic_count, 1),
        chunk_bytes=load.mean_slice_bytes,
        message_bytes=load.mean_slice_bytes,
        peers=wiring.ranks_per_host - 1,
        net_peers=wiring.rank_count - wiring.ranks_per_host,
    )
    per_rank = predict_call_ns(
        Call(CollectiveKind.ALL_TO_ALL, software),
        movement,
        (CollectiveAlgorithm.PAIRWISE, Protocol.SIMPLE),
        wiring,
        calibration.constants(wiring),
    )
    if wiring.sound is not None:
        sound = price_uneven(
            load, wiring=wiring.sound, software=software, calibration=calibration, even=even
        )
        assert sound.per_rank_ns is not None
        per_rank = np.maximum(per_rank, sound.per_rank_ns)
    worst = float(per_rank.max())
    return replace(
        even,
        duration_ns=worst,
        per_rank_ns=per_rank,
        latency_ns=min(even.latency_ns, worst),
        bus_bandwidth_bytes_per_s=bus_bandwidth(
            CollectiveKind.ALL_TO_ALL,
            size_bytes=float(load.mean_slice_bytes.max()) * wiring.rank_count,
            rank_count=wiring.rank_count,
            duration_ns=worst,
        ),
    )


def price_lean(collective: Collective, *, cluster: Cluster, ranks: Ranks) -> CollectiveCost:
    """Predict an all-to-all or a reduction of *ranks* by lean kernels.

    An all-reduce runs inside the host first, then along the rails, then inside the host again; a
    reduce-scatter is its first half, and an all-gather its second.

    Leaves out: everything that makes a collective library slower at small sizes.
    """
    wiring = wiring_of(ranks, cluster)
    count = wiring.rank_count
    if count == 1:
        return FREE
    gpu_ns_per_byte = NS_PER_S / (WIRE_RATIO * wiring.pair_bandwidth_bytes_per_s)
    nic_ns_per_byte = 0.0
    if wiring.host_count > 1:
        nic_ns_per_byte = NS_PER_S / (WIRE_RATIO * wiring.nic_bandwidth_bytes_per_s)
    latency_ns = CALL_NS + wiring.net_latency_ns
    hosts_ns = MESSAGE_NS * (wiring.host_count - 1)
    if collective.byte_matrix is not None:
        load = build_rank_load(collective.byte_matrix, ranks, cluster)
        gpu_ns = load.inside_bytes * gpu_ns_per_byte
        nic_ns = load.nic_bytes * max(wiring.nic_count, 1) * nic_ns_per_byte
        per_rank_ns = latency_ns + hosts_ns + np.maximum(gpu_ns, nic_ns)
    elif steps := _STEPS.get(collective.kind):
        inside, hosts = wiring.ranks_per_host, wiring.host_count
        moved = float(steps) * collective.size_bytes
        gpu_ns = np.array([moved * (inside - 1) / inside * gpu_ns_per_byte])
        nic_ns = np.array([moved * (hosts - 1) / hosts * nic_ns_per_byte])
        per_rank_ns = (steps + 1) * latency_ns + steps * hosts_ns + gpu_ns + nic_ns
    else:
        raise InputError(
            f"{collective.kind.value}: lean kernels support only reductions and all-to-all by "
            f"byte matrix."
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
