"""Fitting wires to measured collectives: the bandwidth and latency our collectives need to agree.

Ranks that talk over gloo are processes with sockets, so each is written as a host with a NIC;
ranks that talk over NCCL share a host and are written as GPUs linked to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from collectives import Collective, price_collective
from perfmodel.base.dtypes import DType
from perfmodel.calibration.measure_collectives import CollectiveMeasurement
from perfmodel.calibration.measure_fit import FamilyError
from topologies import Cluster, build_cluster
from topologies.topology_file import parse_topology

FIRST_GUESS = (2e9, 50_000.0)
LEAST = (1e6, 1.0)
MOST = (1e13, 1e8)


@dataclass(frozen=True, slots=True)
class Wires:
    """What a rank's way to the others carries, and how long its first byte takes.

    With *is_network* each of *ranks* ranks is a host of its own.
    """

    bandwidth_bytes_per_s: float
    latency_ns: float
    ranks: int
    is_network: bool


@dataclass(frozen=True, slots=True)
class FittedWires:
    """Wires, and what is left of the measurements after the fit."""

    wires: Wires
    error: FamilyError


def fit_wires(
    measurements: Sequence[CollectiveMeasurement],
    *,
    head: Mapping[str, Any],
    path: Path,
    is_network: bool,
) -> FittedWires:
    """The wires that explain *measurements*.

    *head* are the other keys of the topology file at *path*, beside its device file.
    """
    ranks = measurements[0].ranks
    measured_ns = np.array([one.timing.duration_ns for one in measurements])
    # Long calls count more, as they do in an iteration; short ones are mostly scheduler here.
    weights = np.sqrt(measured_ns / measured_ns.max())

    def log_ratios(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        bandwidth, latency_ns = np.exp(logs).tolist()
        wires = Wires(bandwidth, latency_ns, ranks, is_network)
        document = {**head, **wires_document(wires)}
        hosts = ranks if is_network else 1
        cluster = build_cluster(parse_topology(document, path=path), hosts=hosts)
        ratios: NDArray[np.float64] = np.log(_predict_ns(measurements, cluster) / measured_ns)
        return ratios

    def weighted(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        product: NDArray[np.float64] = weights * log_ratios(logs)
        return product

    found = least_squares(
        weighted,
        np.log(FIRST_GUESS),
        loss="soft_l1",
        f_scale=0.2,
        diff_step=[1e-2],
        bounds=(np.log(LEAST), np.log(MOST)),
    )
    bandwidth, latency_ns = np.exp(found.x).tolist()
    errors = 100 * (np.exp(log_ratios(found.x)) - 1)
    return FittedWires(
        Wires(bandwidth, latency_ns, ranks, is_network),
        FamilyError(len(errors), float(np.median(np.abs(errors))), float(np.median(errors))),
    )


def _predict_ns(
    measurements: Sequence[CollectiveMeasurement], cluster: Cluster
) -> NDArray[np.float64]:
    return np.array(
        [
            price_collective(
                Collective(one.kind, one.size_bytes, DType.FP32),
                cluster=cluster,
                ranks=range(one.ranks),
            ).duration_ns
            for one in measurements
        ]
    )


def wires_document(wires: Wires) -> dict[str, Any]:
    """The part of a topology file that says how ranks are wired."""
    bandwidth = f"{wires.bandwidth_bytes_per_s / 1e9:.6g} GB/s"
    latency = f"{wires.latency_ns:.6g} ns"
    if not wires.is_network:
        link = {"mesh": "gpu:*", "kind": "pcie", "bandwidth": bandwidth, "latency": latency}
        return {"vertices": {"gpu": wires.ranks}, "links": [link]}
    inside = {"kind": "pcie", "bandwidth": "1000 GB/s", "latency": "0 ns"}
    return {
        "vertices": {"gpu": 1, "cpu": 1, "nic": 1},
        "links": [
            {"between": ["gpu:0", "cpu:0"], **inside},
            {"between": ["nic:0", "cpu:0"], **inside},
        ],
        "fabric": {
            "kind": "flat",
            "nic": {"bandwidth": bandwidth, "latency": latency},
            "leaf": {"hosts": 1024},
            "spine": {"oversubscription": "1 to 1", "latency": "0 ns"},
        },
    }
