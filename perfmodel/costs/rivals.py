"""Rivals: groups that do the same at the same time and send through the same NIC.

Ranks run the same program in step, so that the groups behind one slot make
their collectives together. Where GPUs share a NIC, as on Polaris, each gets
its share of it only.
"""

from __future__ import annotations

import numpy as np

from perfmodel.graph.job import NO_GROUP, JobGraph
from topologies import Cluster

NO_NIC = -1


def find_rivals(job: JobGraph, cluster: Cluster) -> list[tuple[int, ...]]:
    """For every group of *job*, the others behind its slot that share a NIC with it."""
    rivals: list[set[int]] = [set() for _ in job.groups]
    nic_of_rank = _nics(cluster)
    hosts = np.asarray(cluster.host_of_rank)
    crosses = np.array([len(np.unique(hosts[list(group.ranks)])) > 1 for group in job.groups])
    for slot in range(job.rank_group.shape[1]):
        ranks = np.flatnonzero(job.rank_group[:, slot] != NO_GROUP)
        groups = job.rank_group[ranks, slot]
        sends = crosses[groups] & (nic_of_rank[ranks] != NO_NIC)
        pairs = np.unique(np.column_stack([nic_of_rank[ranks], groups])[sends], axis=0)
        # Sorted by NIC: groups that share one stand together.
        for sharers in np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1):
            if len(sharers) > 1:
                for group in sharers:
                    rivals[group].update(int(other) for other in sharers if other != group)
    return [tuple(sorted(of_group)) for of_group in rivals]


def _nics(cluster: Cluster) -> np.ndarray:
    """The NIC of every rank, numbered through all hosts."""
    nics = np.asarray(cluster.topology.nic_of_gpu, dtype=np.int64)
    if not len(nics):
        return np.full(cluster.rank_count, NO_NIC, dtype=np.int64)
    place = np.asarray(cluster.gpu_of_rank)
    numbered: np.ndarray = np.asarray(cluster.host_of_rank) * len(nics) + nics[place]
    return numbered
