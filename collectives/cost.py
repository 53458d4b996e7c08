"""Cost: what a collective takes, why, and how well we know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectives.collective import CollectiveKind
from perfmodel.base.provenance import Provenance

_PASSES = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """The predicted cost of one call, the same on every rank unless *per_rank_ns* is given.

    *latency_ns* is the share that a call of no bytes would take as well. *busiest_link* names
    the link that decides; *gpu_busy_ns* and *nic_busy_ns* say how long the call keeps the links
    of a GPU and a NIC busy.
    """

    duration_ns: float
    relative_sigma: float
    provenance: Provenance
    algorithm: str
    protocol: str
    busiest_link: str
    latency_ns: float
    bus_bandwidth_bytes_per_s: float
    gpu_busy_ns: float = 0.0
    nic_busy_ns: float = 0.0
    per_rank_ns: npt.NDArray[np.float64] | None = None

    @property
    def latency_ratio(self) -> float:
        """The share of latency in the duration."""
        return self.latency_ns / self.duration_ns if self.duration_ns > 0 else 1.0

    @property
    def algorithm_word(self) -> str:
        """Algorithm and protocol together, such as `ring/ll128`."""
        return f"{self.algorithm}/{self.protocol}"


FREE = CollectiveCost(
    duration_ns=0.0,
    relative_sigma=0.0,
    provenance=Provenance.ANALYTIC,
    algorithm="none",
    protocol="none",
    busiest_link="",
    latency_ns=0.0,
    bus_bandwidth_bytes_per_s=0.0,
)


def bus_bandwidth(
    kind: CollectiveKind, *, size_bytes: float, rank_count: int, duration_ns: float
) -> float:
    """Bytes per second as nccl-tests reports them: what each GPU's wire carried."""
    if duration_ns <= 0:
        return 0.0
    passes = _PASSES.get(kind)
    factor = 1.0 if passes is None else passes * (rank_count - 1) / rank_count
    return factor * size_bytes * 1e9 / duration_ns
