"""Sharing: collectives that run at the same time and share a link slow each other down.

A link gives every collective on it an equal share until one is done. Latency is not
shared: it is paid by each and keeps no wire busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collectives.collective import CollectiveCost
from collectives.pricing import CollectiveCall
from perfmodel.base.errors import InputError
from topologies import Cluster


def share_links(
    calls: Sequence[CollectiveCall], costs: Sequence[CollectiveCost], *, cluster: Cluster
) -> list[CollectiveCost]:
    """The costs of *calls* when all start at once; those that share no link keep theirs.

    On one link with equal shares, a call that keeps it busy for w ends when every other
    call on it has had min(w, its own) of wire time. The worst link of a call decides.

    Leaves out: PCIe switches and CPU links that different groups of one host share.
    Source: processor sharing of a link.
    """
    if len(calls) != len(costs):
        raise InputError(f"sharing: got {len(calls)} calls and {len(costs)} costs. Give one each.")
    # A rank has a GPU of its own; NICs are numbered through all hosts.
    gpus = [np.asarray(call.ranks, dtype=np.int64) for call in calls]
    nics = [np.unique(cluster.nics_of(ranks)) for ranks in gpus]
    gpu_wait = _shared_ns(gpus, [cost.gpu_busy_ns for cost in costs])
    nic_wait = _shared_ns(nics, [cost.nic_busy_ns for cost in costs])
    return [
        _slowed(cost, float(max(gpu, nic)))
        for cost, gpu, nic in zip(costs, gpu_wait, nic_wait, strict=True)
    ]


def _shared_ns(
    links_of_call: Sequence[npt.NDArray[np.int64]], busy_ns: Sequence[float]
) -> npt.NDArray[np.float64]:
    """For each call, when its worst link has served it."""
    count = len(links_of_call)
    every = np.unique(np.concatenate([*links_of_call, np.zeros(0, dtype=np.int64)]))
    uses = np.zeros((len(every), count))
    for number, links in enumerate(links_of_call):
        uses[np.searchsorted(every, links), number] = 1.0
    busy = np.asarray(busy_ns, dtype=np.float64)
    served = uses @ np.minimum(busy[:, None], busy[None, :])
    worst: npt.NDArray[np.float64] = np.max(served * uses, axis=0, initial=0.0)
    return worst


def _slowed(cost: CollectiveCost, shared_ns: float) -> CollectiveCost:
    alone = max(cost.gpu_busy_ns, cost.nic_busy_ns)
    if shared_ns <= alone:
        return cost
    duration = cost.duration_ns + shared_ns - alone
    slower = cost.duration_ns / duration
    return replace(
        cost,
        duration_ns=duration,
        bus_bandwidth_bytes_per_s=cost.bus_bandwidth_bytes_per_s * slower,
        per_rank_ns=None if cost.per_rank_ns is None else cost.per_rank_ns / slower,
    )
