"""Uneven all-to-all: the whole byte matrix in, one end time a rank out.

A rank is done when it has sent and received everything, and not before its NIC has
carried what all ranks that share it move. Messages of a rank travel side by side and share
its wires alike, so what a busy rank sends or takes reaches its partners late, and ends late for
them, too. The even matrix gives exactly the even cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collectives.applied import host_constants_for, wire_speeds
from collectives.calibration import Calibration
from collectives.collective import CollectiveKind
from collectives.cost import CollectiveCost, bus_bandwidth
from collectives.movement import FloatArray, Movement
from collectives.software import CollectiveAlgorithm, CollectiveSoftware, Protocol
from collectives.timing import predict_duration_ns
from collectives.wiring import Wiring
from topologies import Cluster


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What each rank moves, in bytes, the larger of sending and receiving.

    *nic_bytes* is what goes through the NIC of the rank, by all ranks that share it. *matrix* is
    what each sends each, where partners are to wait for each other.
    """

    inside_bytes: FloatArray
    local_bytes: FloatArray
    nic_bytes: FloatArray
    mean_slice_bytes: FloatArray
    matrix: FloatArray | None = None


def build_rank_load(
    byte_matrix: Sequence[Sequence[int]],
    ranks: Sequence[int] | npt.NDArray[np.int64],
    cluster: Cluster,
) -> RankLoad:
    """Sum up *byte_matrix* by rank, host and NIC of the group *ranks*."""
    matrix = np.array(byte_matrix, dtype=np.float64)
    members = np.asarray(ranks, dtype=np.int64)
    host, _ = cluster.seats_of(members)
    own = np.diag(matrix)
    inside = np.where(host[:, None] == host[None, :], matrix, 0.0)
    sent, received = inside.sum(axis=1) - own, inside.sum(axis=0) - own
    away_sent = matrix.sum(axis=1) - own - sent
    away_received = matrix.sum(axis=0) - own - received
    return RankLoad(
        inside_bytes=np.maximum(sent, received),
        local_bytes=own.copy(),
        nic_bytes=_by_nic(cluster.nics_of(members), np.stack([away_sent, away_received])),
        mean_slice_bytes=np.maximum(matrix.sum(axis=1), matrix.sum(axis=0)) / len(matrix),
        matrix=matrix,
    )


def wait_for_partners(own_ns: FloatArray, matrix: FloatArray) -> FloatArray:
    """When ranks are done that would be after *own_ns*, were all partners as fast as they are.

    A message is through when the busier of its two ends has carried it beside all its others.
    """
    sent = matrix - np.diag(np.diag(matrix))
    held = np.maximum(_carried_ratio(sent), _carried_ratio(sent.T))
    done: FloatArray = np.maximum(own_ns, (own_ns[:, None] * held).max(axis=0))
    return done


def shared_bytes(sizes: FloatArray) -> FloatArray:
    """Bytes that a wire has carried when each of the messages in the last axis is through.

    Messages share it alike: a small one is through when every other has sent as much or all.
    """
    order = np.argsort(sizes, axis=-1, kind="stable")
    ordered = np.take_along_axis(sizes, order, axis=-1)
    left = np.arange(sizes.shape[-1])[::-1]
    carried = np.empty_like(sizes)
    np.put_along_axis(carried, order, np.cumsum(ordered, axis=-1) + ordered * left, axis=-1)
    return carried


def _carried_ratio(sizes: FloatArray) -> FloatArray:
    """The part of a row's bytes that is carried when each of its messages is through."""
    total = sizes.sum(axis=1, keepdims=True)
    ratio: FloatArray = np.where(sizes > 0, shared_bytes(sizes) / np.maximum(total, 1.0), 0.0)
    return ratio


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
    messages that share a wire alike. Only one uneven measurement is public, so the spread between
    ranks could not be verified. *even* is the cost of the same
    bytes spread evenly: algorithm, provenance and uncertainty are taken from it.
    """
    per_rank = predict_duration_ns(
        _movement_of(load, wiring),
        algorithm=CollectiveAlgorithm.PAIRWISE,
        protocol=Protocol.SIMPLE,
        wires=wire_speeds(wiring),
        host=host_constants_for(software, calibration, wiring),
        fabric=calibration.fabric_constants(wiring),
    )
    if load.matrix is not None:
        per_rank = wait_for_partners(per_rank, load.matrix)
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


def _movement_of(load: RankLoad, wiring: Wiring) -> Movement:
    return Movement(
        gpu_bytes=load.inside_bytes,
        local_bytes=load.local_bytes,
        nic_bytes=load.nic_bytes * max(wiring.nic_count, 1),
        chunk_bytes=load.mean_slice_bytes,
        message_bytes=load.mean_slice_bytes,
        peers=wiring.ranks_per_host - 1,
        net_peers=wiring.rank_count - wiring.ranks_per_host,
    )
