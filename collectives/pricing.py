"""Pricing: from a collective and a group on a cluster to a cost.

Sizes of one kind on one wiring are priced together as arrays, and equal calls on groups of equal
wiring once; a group of one is free. An uneven all-to-all is priced by its byte matrix, alone.

Collectives that run at the same time and share a link slow each other down. A link gives every
collective on it an equal share until one is done. Latency is not shared: it is paid by each and
keeps no wire busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from collectives.calibration import (
    Calibration,
    Call,
    build_tuner,
    calibration_for,
    load_default_calibration,
    predict_call_ns,
)
from collectives.collective import (
    FREE,
    Collective,
    CollectiveAlgorithm,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
    bus_bandwidth,
)
from collectives.group import Ranks, wiring_of
from collectives.movement import FloatArray, build_movement
from collectives.timing import Choice
from collectives.token_exchange import TokenRouting, price_tokens
from collectives.uneven import RankLoad, build_rank_load, price_uneven
from collectives.wiring import ByIdentity, Wiring
from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_S
from topologies import Cluster

UNSEEN_SIGMA = 0.1
"""Added uncertainty of a generation of GPUs that no constants were measured on."""
WAITING_SIGMA, SHARED_SIGMA = 0.1, 0.3
"""On a network shared with other jobs (`fabric.call`): of what a call waits, which is fitted to
training runs, and of what it moves at least. Runs of one layout there differ up to twofold where
they move much, and by 2 % where they wait."""
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

    Leaves out: waiting for late ranks, and other traffic (see `share_links`).
    Source: step counts of each algorithm, NCCL's tuner for the choice, fitted constants.
    """
    constants = calibration or calibration_for(cluster.device)
    wiring = wiring or wiring_of(ranks, cluster)
    _check_call(collective, wiring)
    if wiring.rank_count == 1:
        return FREE
    wiring = _waited(collective, wiring)
    if collective.routing is not None:
        return _price_routing(collective, collective.routing, wiring)
    if collective.byte_matrix is not None:
        load = build_rank_load(collective.byte_matrix, ranks, cluster)
        return _price_load(load, wiring, software, constants)
    # Only numbers of a byte or less differ from the others.
    dtype = DType.INT8 if collective.dtype.size_bits <= BITS_PER_BYTE else DType.FP32
    call = Call(collective.kind, software, dtype)
    return _price_size(call, float(collective.size_bytes), wiring, ByIdentity(constants))


def _price_routing(collective: Collective, routing: TokenRouting, wiring: Wiring) -> CollectiveCost:
    """An exchange of tokens with experts, by kernels of its own library."""
    time = price_tokens(routing, collective.size_bytes, wiring)
    return CollectiveCost(
        duration_ns=time.duration_ns,
        relative_sigma=time.relative_sigma,
        provenance=time.provenance,
        algorithm=routing.library.value,
        protocol="direct",
        busiest_link=wiring.nic_link if time.nic_busy_ns > time.gpu_busy_ns else wiring.host_link,
        latency_ns=min(time.latency_ns, time.duration_ns),
        bus_bandwidth_bytes_per_s=collective.size_bytes * NS_PER_S / time.duration_ns,
        gpu_busy_ns=time.gpu_busy_ns,
        nic_busy_ns=time.nic_busy_ns,
    )


def _waited(collective: Collective, wiring: Wiring) -> Wiring:
    """*wiring* as *collective* finds it: one that queues does not wait for late hosts again."""
    if collective.is_queued and wiring.call_latency_ns:
        sound = wiring.sound and replace(wiring.sound, call_latency_ns=0.0)
        return replace(wiring, call_latency_ns=0.0, sound=sound)
    return wiring


@lru_cache(maxsize=65536)
def _price_size(
    call: Call, size: float, wiring: Wiring, constants: ByIdentity[Calibration]
) -> CollectiveCost:
    return _price(call, np.array([size]), wiring, constants.value)[0]


def _price_load(
    load: RankLoad, wiring: Wiring, software: CollectiveSoftware, calibration: Calibration
) -> CollectiveCost:
    """An uneven all-to-all, with what is known of the even one of the same bytes."""
    mean_bytes = np.array([load.mean_slice_bytes.mean() * wiring.rank_count])
    [even] = _price(Call(CollectiveKind.ALL_TO_ALL, software), mean_bytes, wiring, calibration)
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
    return _price(Call(kind, software, dtype), sizes, wiring, constants)


def _price(
    call: Call, sizes: FloatArray, wiring: Wiring, calibration: Calibration
) -> list[CollectiveCost]:
    """The cost of *call* at each of *sizes*, with the choice of the tuner.

    A fault never makes a call faster, though constants of other machines may say so.
    """
    found = _price_wiring(call, sizes, wiring, calibration)
    if wiring.sound is None:
        return found
    sound = _price_wiring(call, sizes, wiring.sound, calibration)
    return [max(pair, key=lambda cost: cost.duration_ns) for pair in zip(found, sound, strict=True)]


def _price_wiring(
    call: Call, sizes: FloatArray, wiring: Wiring, calibration: Calibration
) -> list[CollectiveCost]:
    """The cost of *call* at each of *sizes*, those of one choice of the tuner together."""
    candidates, shares = build_tuner(wiring, calibration).choose(call.kind, sizes, call.software)
    parts: list[list[tuple[float, CollectiveCost]]] = [[] for _ in sizes]
    for choice, share in zip(candidates, shares, strict=True):
        rows = np.nonzero(share)[0]
        priced = _price_choice(call, choice, sizes[rows], wiring, calibration) if rows.size else ()
        for row, cost in zip(rows, priced, strict=True):
            parts[row].append((float(share[row]), cost))
    return [_blend(part) for part in parts]


def _blend(parts: Sequence[tuple[float, CollectiveCost]]) -> CollectiveCost:
    """The cost of the largest of *parts*, with the mean of their times, weighted by their shares.

    The interval widens by how far apart they are.
    """
    ordered = sorted(parts, key=lambda part: -part[0])
    main = ordered[0][1]
    if len(ordered) == 1:
        return main
    mean = sum(share * math.log(cost.duration_ns) for share, cost in ordered)
    spread = sum(share * (math.log(cost.duration_ns) - mean) ** 2 for share, cost in ordered)
    duration_ns = math.exp(mean)
    ratio = duration_ns / main.duration_ns
    return replace(
        main,
        duration_ns=duration_ns,
        relative_sigma=math.hypot(main.relative_sigma, math.sqrt(spread)),
        alternative=ordered[1][1].algorithm_word,
        latency_ns=main.latency_ns * ratio,
        bus_bandwidth_bytes_per_s=main.bus_bandwidth_bytes_per_s / ratio,
        gpu_busy_ns=main.gpu_busy_ns * ratio,
        nic_busy_ns=main.nic_busy_ns * ratio,
    )


def _price_choice(
    call: Call, choice: Choice, sizes: FloatArray, wiring: Wiring, calibration: Calibration
) -> Iterator[CollectiveCost]:
    constants = calibration.constants(wiring)
    moved, nothing = (
        build_movement(call.kind, choice[0], some, wiring) for some in (sizes, np.array([0.0]))
    )
    durations_ns = predict_call_ns(call, moved, choice, wiring, constants)
    at_least_ns = float(predict_call_ns(call, nothing, choice, wiring, constants)[0])
    is_pairwise = choice[0] is CollectiveAlgorithm.PAIRWISE
    # How long the busiest GPU's links and NIC would be busy at datasheet speed.
    gpus_ns = moved.gpu_bytes * NS_PER_S / wiring.ring_bandwidth_bytes_per_s
    nics_ns = moved.nic_bytes * NS_PER_S / (wiring.nic_bandwidth_bytes_per_s or np.inf)
    columns = (sizes.tolist(), durations_ns.tolist(), gpus_ns.tolist(), nics_ns.tolist())
    for size, duration_ns, gpu_ns, nic_ns in zip(*columns, strict=True):
        latency_ns = min(at_least_ns, duration_ns)
        ratio = latency_ns / duration_ns if duration_ns > 0 else 1.0
        # At the speed software reaches, the deciding link is busy for all but the latency.
        slowest_ns = max(gpu_ns, nic_ns)
        stretch = (duration_ns - latency_ns) / slowest_ns if slowest_ns > 0 else 0.0
        sigma = calibration.relative_sigma(wiring, call.kind, size, ratio)
        sigma = math.hypot(sigma, UNSEEN_SIGMA) if wiring.is_unseen else sigma
        if wiring.call_latency_ns:
            waiting = min(wiring.call_latency_ns / duration_ns, 1.0)
            moving = (1.0 - waiting) * max(sigma, SHARED_SIGMA)
            sigma = math.hypot(moving, waiting * WAITING_SIGMA)
        yield CollectiveCost(
            duration_ns=duration_ns,
            relative_sigma=sigma,
            provenance=calibration.provenance(wiring, call.kind, size),
            algorithm=choice[0].value,
            protocol=choice[1].value,
            busiest_link=wiring.busiest_link(gpu_ns, nic_ns, is_pairwise=is_pairwise),
            latency_ns=latency_ns,
            bus_bandwidth_bytes_per_s=bus_bandwidth(
                call.kind,
                size_bytes=size,
                rank_count=wiring.rank_count,
                duration_ns=duration_ns,
            ),
            gpu_busy_ns=gpu_ns * stretch,
            nic_busy_ns=nic_ns * stretch,
            wire_ns=slowest_ns,
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
