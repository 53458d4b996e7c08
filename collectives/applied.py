"""Applied constants: a calibration as it holds for one wiring and one release of NCCL."""

from __future__ import annotations

import numpy as np

from collectives.calibration import Calibration
from collectives.collective import CollectiveKind
from collectives.constants import HostConstants, SoftwareConstants
from collectives.software import CollectiveSoftware, Protocol
from collectives.timing import WireSpeeds
from collectives.tuner import Tuner
from collectives.wiring import Wiring
from perfmodel.base.dtypes import DType

_REDUCTIONS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)


def build_tuner(wiring: Wiring, calibration: Calibration) -> Tuner:
    """NCCL's tuner as it sees *wiring*."""
    if wiring.host_count == 1:
        return Tuner(calibration.tuner, wiring, tuple(Protocol))
    entry = calibration.fabric_entry(wiring)
    return Tuner(
        calibration.tuner, wiring, entry.protocols, entry.tree_protocols, entry.pair_ll_bytes
    )


def wire_speeds(wiring: Wiring) -> WireSpeeds:
    """The datasheet bandwidths of *wiring*."""
    return WireSpeeds(
        ring_bytes_per_s=wiring.ring_bandwidth_bytes_per_s,
        pair_bytes_per_s=wiring.pair_bandwidth_bytes_per_s,
        nic_bytes_per_s=wiring.nic_bandwidth_bytes_per_s or np.inf,
        ranks_per_host=wiring.ranks_per_host,
        oversubscription=wiring.pair_oversubscription,
        net_latency_ns=wiring.net_latency_ns,
        call_latency_ns=wiring.call_latency_ns,
        nic_sharing=wiring.nic_sharing,
    )


def host_constants_for(
    software: CollectiveSoftware, calibration: Calibration, wiring: Wiring
) -> HostConstants:
    """The host constants, with what the release of NCCL changes in them."""
    host = calibration.host_constants(wiring)
    if software.is_before_2_24:
        return host.before_2_24(calibration.software)
    return host


def byte_factor(kind: CollectiveKind, dtype: DType, constants: SoftwareConstants) -> float:
    """How much slower numbers of one byte make *kind*: adding them takes longer."""
    is_slow = dtype.size_bytes == 1 and kind in _REDUCTIONS
    return constants.byte_reduction_ratio if is_slow else 1.0
