"""Pricing: from a collective and a group on a cluster to a cost.

Calls with equal kind on groups of equal wiring are priced together as arrays; a group of one is
free. An uneven all-to-all is priced by its byte matrix, alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from collectives.calibration import (
    Calibration,
    build_tuner,
    byte_factor,
    calibration_for,
    host_constants_for,
    load_default_calibration,
    wire_speeds,
)
from collectives.collective import (
    FREE,
    Collective,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
    bus_bandwidth,
)
from collectives.group import Ranks, wiring_of
from collectives.movement import FloatArray, build_movement
from collectives.timing import predict_duration_ns
from collectives.tuner import Choice
from collectives.uneven import RankLoad, build_rank_load, price_uneven
from collectives.wiring import ByIdentity, Wiring
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_S
from topologies import Cluster

DEFAULT_SOFTWARE = CollectiveSoftware()


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective and the ranks that make it."""

    collective: Collective
    ranks: Ranks


def price_collective(
    collective: Collective,
    *,
    cluster: Cluster,
    ranks: Ranks,
    software: CollectiveSoftware = DEFAULT_SOFTWARE,
    calibration: Calibration | None = None,
    wiring: Wiring | None = None,
) -> CollectiveCost:
    """Predict how long *collective* takes for the group *ranks* on *cluster*.

    *wiring* is what the group sees, where the caller has it already. Equal calls on equal
    wirings are priced once.

    Leaves out: waiting for late ranks, and other traffic (see `sharing.share_links`).
    Source: step counts of each algorithm, NCCL's tuner for the choice, fitted constants.
    """
    constants = calibration or calibration_for(cluster.device)
    wiring = wiring or wiring_of(ranks, cluster)
    _check_call(collective, wiring)
    if wiring.rank_count == 1:
        return FREE
    wiring = _waited(collective, wiring)
    if collective.byte_matrix is not None:
        load = build_rank_load(collective.byte_matrix, ranks, cluster)
        return _price_load(load, wiring, software, constants)
    return _price_size(
        collective.kind,
        float(collective.size_bytes),
        wiring,
        software,
        ByIdentity(constants),
        _priced_as(collective.dtype),
    )


def _waited(collective: Collective, wiring: Wiring) -> Wiring:
    """*wiring* as *collective* finds it: one that queues does not wait for late hosts again."""
    if collective.is_queued and wiring.call_latency_ns:
        return replace(wiring, call_latency_ns=0.0)
    return wiring


@lru_cache(maxsize=65536)
def _price_size(
    kind: CollectiveKind,
    size: float,
    wiring: Wiring,
    software: CollectiveSoftware,
    constants: ByIdentity[Calibration],
    dtype: DType,
) -> CollectiveCost:
    [cost] = price_sizes(
        kind,
        np.array([size]),
        wiring=wiring,
        software=software,
        calibration=constants.value,
        dtype=dtype,
    )
    return cost


def _priced_as(dtype: DType) -> DType:
    """Only numbers of one byte differ from the others."""
    return DType.INT8 if dtype.size_bytes == 1 else DType.FP32


def price_collectives(
    calls: Sequence[CollectiveCall],
    *,
    cluster: Cluster,
    software: CollectiveSoftware = DEFAULT_SOFTWARE,
    calibration: Calibration | None = None,
) -> list[CollectiveCost]:
    """Predict many calls; equal kinds on equal wirings are priced together. Order is kept."""
    constants = calibration or calibration_for(cluster.device)
    costs: list[CollectiveCost] = [FREE] * len(calls)
    batches: dict[tuple[Wiring, CollectiveKind, DType], list[int]] = {}
    wirings: dict[int, Wiring] = {}
    for number, call in enumerate(calls):
        # Callers hand the same rank sequence again and again; its identity saves the pattern.
        wiring = wirings.get(id(call.ranks)) or wiring_of(call.ranks, cluster)
        wirings[id(call.ranks)] = wiring
        _check_call(call.collective, wiring)
        if wiring.rank_count == 1:
            continue
        wiring = _waited(call.collective, wiring)
        if call.collective.byte_matrix is not None:
            load = build_rank_load(call.collective.byte_matrix, call.ranks, cluster)
            costs[number] = _price_load(load, wiring, software, constants)
            continue
        dtype = _priced_as(call.collective.dtype)
        batches.setdefault((wiring, call.collective.kind, dtype), []).append(number)
    for (wiring, kind, dtype), numbers in batches.items():
        sizes = np.array([float(calls[number].collective.size_bytes) for number in numbers])
        priced = price_sizes(
            kind, sizes, wiring=wiring, software=software, calibration=constants, dtype=dtype
        )
        for number, cost in zip(numbers, priced, strict=True):
            costs[number] = cost
    return costs


def _price_load(
    load: RankLoad, wiring: Wiring, software: CollectiveSoftware, calibration: Calibration
) -> CollectiveCost:
    """An uneven all-to-all, with what is known of the even one of the same bytes."""
    mean_bytes = np.array([load.mean_slice_bytes.mean() * wiring.rank_count])
    [even] = price_sizes(
        CollectiveKind.ALL_TO_ALL,
        mean_bytes,
        wiring=wiring,
        software=software,
        calibration=calibration,
    )
    return price_uneven(load, wiring=wiring, software=software, calibration=calibration, even=even)


def price_sizes(
    kind: CollectiveKind,
    sizes: FloatArray,
    *,
    wiring: Wiring,
    software: CollectiveSoftware = DEFAULT_SOFTWARE,
    calibration: Calibration | None = None,
    dtype: DType = DType.FP32,
) -> list[CollectiveCost]:
    """Predict *kind* at each of *sizes* bytes on one *wiring*."""
    constants = calibration or load_default_calibration()
    pricer = _Pricer(kind, wiring, software, constants, dtype)
    candidates, chosen = build_tuner(wiring, constants).choose(kind, sizes, software)
    costs: list[CollectiveCost | None] = [None] * len(sizes)
    for number in np.unique(chosen):
        rows = np.nonzero(chosen == number)[0]
        for row, cost in zip(rows, pricer.price(candidates[number], sizes[rows]), strict=True):
            costs[row] = cost
    return [cost for cost in costs if cost is not None]


@dataclass(frozen=True, slots=True)
class _Pricer:
    """Prices sizes of one kind on one wiring."""

    kind: CollectiveKind
    wiring: Wiring
    software: CollectiveSoftware
    calibration: Calibration
    dtype: DType

    def price(self, choice: Choice, sizes: FloatArray) -> list[CollectiveCost]:
        durations = self.durations_ns(choice, sizes)
        latency = float(self.durations_ns(choice, np.array([0.0]))[0])
        # How long the busiest GPU's links and NIC would be busy at datasheet speed.
        moved, wiring = build_movement(self.kind, choice[0], sizes, self.wiring), self.wiring
        gpu_ns = moved.gpu_bytes * NS_PER_S / wiring.ring_bandwidth_bytes_per_s
        nic_ns = moved.nic_bytes * NS_PER_S / (wiring.nic_bandwidth_bytes_per_s or np.inf)
        columns = (sizes.tolist(), durations.tolist(), gpu_ns.tolist(), nic_ns.tolist())
        return [
            self._cost(choice, size, duration, gpu, nic, latency)
            for size, duration, gpu, nic in zip(*columns, strict=True)
        ]

    def durations_ns(self, choice: Choice, sizes: FloatArray) -> FloatArray:
        algorithm, protocol = choice
        host = host_constants_for(self.software, self.calibration, self.wiring)
        duration = predict_duration_ns(
            build_movement(self.kind, algorithm, sizes, self.wiring),
            algorithm=algorithm,
            protocol=protocol,
            wires=wire_speeds(self.wiring),
            host=host,
            fabric=self.calibration.fabric_constants(self.wiring),
        )
        return duration * byte_factor(self.kind, self.dtype, self.calibration.software_constants)

    def _cost(
        self,
        choice: Choice,
        size: float,
        duration: float,
        gpu_ns: float,
        nic_ns: float,
        latency: float,
    ) -> CollectiveCost:
        wiring = self.wiring
        latency = min(latency, duration)
        ratio = latency / duration if duration > 0 else 1.0
        # At the speed software reaches, the deciding link is busy for all but the latency.
        slowest = max(gpu_ns, nic_ns)
        stretch = (duration - latency) / slowest if slowest > 0 else 0.0
        return CollectiveCost(
            duration_ns=duration,
            relative_sigma=self.calibration.relative_sigma(wiring, self.kind, size, ratio),
            provenance=self.calibration.provenance(wiring, self.kind, size),
            algorithm=choice[0].value,
            protocol=choice[1].value,
            busiest_link=wiring.nic_link if nic_ns > gpu_ns else wiring.host_link,
            latency_ns=latency,
            bus_bandwidth_bytes_per_s=bus_bandwidth(
                self.kind, size_bytes=size, rank_count=wiring.rank_count, duration_ns=duration
            ),
            gpu_busy_ns=gpu_ns * stretch,
            nic_busy_ns=nic_ns * stretch,
        )


def _check_call(collective: Collective, wiring: Wiring) -> None:
    matrix = collective.byte_matrix
    if matrix is not None and len(matrix) != wiring.rank_count:
        raise InputError(
            f"all_to_all: byte matrix has {len(matrix)} rows and the group {wiring.rank_count} "
            "ranks. Give one row and one column per rank."
        )
    if collective.kind is CollectiveKind.SEND_RECV and wiring.rank_count > 2:
        raise InputError(
            f"send_recv: the group must be the sender and the receiver, got {wiring.rank_count} "
            "ranks. Price each pair alone."
        )
    if not 0 <= collective.root < wiring.rank_count:
        raise InputError(
            f"{collective.kind.value}: root must be a member from 0 to {wiring.rank_count - 1}, "
            f"got {collective.root}."
        )
