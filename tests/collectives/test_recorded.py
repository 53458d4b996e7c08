"""Shapes, movements, choices, times and sharing of a grid of groups, as recorded."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from collectives.calibration import Calibration, load_default_calibration
from collectives.collective import (
    FREE,
    Collective,
    CollectiveAlgorithm,
    CollectiveKind,
    CollectiveSoftware,
    Protocol,
    bus_bandwidth,
)
from collectives.constants import (
    FabricConstants,
    FabricEntry,
    HostConstants,
    HostEntry,
    MeasuredSpan,
    SoftwareConstants,
)
from collectives.group import group_shape, wiring_of
from collectives.movement import build_movement
from collectives.pricing import CollectiveCall, price_collective, share_links
from collectives.timing import predict_duration_ns
from collectives.tuner import Tuner
from collectives.uneven import CALL_NS, WIRE_RATIO, build_rank_load, price_lean
from collectives.wiring import HostLinkClass, pack_rings
from perfmodel.base.dtypes import DType
from tests import recorded
from tests.collectives.machines import build_host
from tests.recorded import plain
from topologies import build_cluster, load_topology

SIZES = np.array([40_960.0, 3e9])
MACHINES = {
    "switch": {"gpus": 8, "reduces": True, "device": "h100_sxm"},
    "mesh": {
        "gpus": 4, "wires": "mesh", "nics": 2, "oversubscription": 2.0,
        "spine_latency_ns": 350.0, "call_latency_ns": 9_000.0,
    },
    "swift network": {"gpus": 4, "reduces": True, "nic_gb_per_s": 60.0},
    "pcie": {"gpus": 4, "wires": "pcie", "nics": 1},
    "no network": {"gpus": 4, "nics": 0},
    "no peers": {"gpus": 2, "wires": "pcie", "nics": 1, "peer_to_peer": False},
}  # fmt: skip
GROUPS = {
    "all of one": (1, range),
    "all of nine": (9, lambda n: range(9 * n)),
    "one each of six": (6, lambda n: range(1, 6 * n, n)),
    "pair": (1, lambda n: (0, n - 1)),
    "pair apart": (2, lambda n: (0, n)),
    "three": (1, lambda n: range(min(3, n))),
    "two each of three": (3, lambda n: sorted([*range(0, 3 * n, n), *range(1, 3 * n, n)])),
}


# A new algorithm has worked cases in test_movement instead.
ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "pat", "pairwise")


def _constants(kind: Any) -> Any:
    """Constants that all differ, ratios below one."""
    values = {}
    for number, field in enumerate(fields(kind), start=1):
        is_ratio = "ratio" in field.name or "crowding" in field.name
        is_power = "overlap" in field.name or "power" in field.name
        values[field.name] = (
            0.3 + 0.02 * number if is_ratio else 1.5 if is_power else 100.0 * number
        )
    return kind(**values)


def _iter_wirings():
    for machine, options in MACHINES.items():
        topology = build_host(**options)
        for group, (hosts, members) in GROUPS.items():
            if hosts > 1 and topology.fabric is None:
                continue
            cluster = build_cluster(topology, hosts=hosts)
            ranks = list(members(topology.gpus_per_host))
            yield f"{machine}, {group}", cluster, ranks
    # Five GPUs of the hybrid cube mesh hold no ring: a chain.
    yield "chain", build_cluster(load_topology("dgx1_v100"), hosts=2), [0, 1, 2, 3, 4, 8, 9]
    # Five trays of two GPUs: one rack of four, and a tray of the next.
    racks = build_cluster(build_host(gpus=8, nics=4, trays=4), hosts=5)
    yield "racks, all of five trays", racks, list(range(10))
    yield "racks, some of them", racks, [1, 2, 6, 7, 8]


def values() -> dict[str, Any]:
    """All that is recorded."""
    host, fabric = _constants(HostConstants), _constants(FabricConstants)
    tuner_constants = load_default_calibration().tuner
    found: dict[str, Any] = {}
    for name, cluster, ranks in _iter_wirings():
        wiring = wiring_of(ranks, cluster)
        found[f"shape of {name}"] = group_shape(ranks, cluster)
        found[f"wiring of {name}"] = wiring
        for algorithm in map(CollectiveAlgorithm, ALGORITHMS):
            if algorithm is CollectiveAlgorithm.PAT and wiring.ranks_per_host > 1:
                continue
            for kind in _kinds_of(algorithm, wiring):
                movement = build_movement(kind, algorithm, SIZES, wiring)
                place = f"{kind.value} by {algorithm.value}, {name}"
                found[f"movement of {place}"] = movement
                found[f"times of {place}"] = [
                    predict_duration_ns(
                        movement,
                        (algorithm, protocol),
                        wiring=wiring,
                        host=host,
                        fabric=fabric if wiring.host_count > 1 else None,
                    )
                    for protocol in Protocol
                ]
        tuner = Tuner(tuner_constants, wiring, tuple(Protocol), pair_ll_bytes=1000)
        for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER):
            candidates, chosen = tuner.choose(kind, 2.0 ** np.arange(9, 33), CollectiveSoftware())
            found[f"choices for {kind.value}, {name}"] = [candidates[one] for one in chosen]
            found[f"estimates for {kind.value}, {name}"] = [
                tuner.estimate_ns(kind, choice, SIZES) for choice in candidates
            ]
        matrix = [[10**6 * a + 7000 * b for b in range(len(ranks))] for a in range(len(ranks))]
        if len(ranks) <= 8:
            found[f"load of {name}"] = build_rank_load(matrix, ranks, cluster)
            found[f"lean exchange of {name}"] = _lean(
                Collective(CollectiveKind.ALL_TO_ALL, 1000, byte_matrix=tuple(map(tuple, matrix))),
                cluster,
                ranks,
            )
        found[f"lean all-reduce of {name}"] = _lean(
            Collective(CollectiveKind.ALL_REDUCE, 7_000_000), cluster, ranks
        )
        found[f"costs of {name}"] = _priced(cluster, ranks)
    found["sharing"] = [
        _shared(build_cluster(build_host(gpus=4, nics=2), hosts=3)),
        _shared(build_cluster(build_host(gpus=8, nics=2, trays=4), hosts=6)),
        _shared(build_cluster(build_host(gpus=12, nics=0))),
    ]
    found["rings"] = [
        pack_rings(tuple(tuple(float(abs(a - b) % 3) for a in range(n)) for b in range(n)))
        for n in (2, 3, 4, 5)
    ]
    found["bus"] = [
        bus_bandwidth(kind, size_bytes=1e6, rank_count=4, duration_ns=1e3)
        for kind in CollectiveKind
        if kind is not CollectiveKind.BARRIER
    ]
    return found


def _lean(call: Collective, cluster: Any, ranks: Any) -> list[Any]:
    """Wire times at the datasheet, and how often a call is paid."""
    cost = price_lean(call, cluster=cluster, ranks=ranks)
    crossings = 1 if call.byte_matrix else 3
    return [
        cost.gpu_busy_ns * WIRE_RATIO,
        cost.nic_busy_ns * WIRE_RATIO,
        (cost.duration_ns - crossings * cost.latency_ns) * WIRE_RATIO,
        cost.bus_bandwidth_bytes_per_s * cost.duration_ns,
        cost.busiest_link,
        cost.latency_ns - CALL_NS,
        None if cost.per_rank_ns is None else (cost.per_rank_ns - cost.latency_ns) * WIRE_RATIO,
    ]


def _calibration() -> Calibration:
    """Constants of our own, for a machine that was measured at some sizes and groups."""
    shipped = load_default_calibration()
    regimes = ("latency", "middle", "bandwidth")
    scopes = [
        f"{machine}/{spread}/{kind}/{regime}"
        for machine in ("unseen", "test_host")
        for spread in ("one_host", "several_hosts")
        for kind in ("any", "all_reduce")
        for regime in regimes
    ]
    entry = HostEntry(
        name="own",
        architecture="ampere",
        link_class=HostLinkClass.NVSWITCH,
        machines=("test_host",),
        constants=_constants(HostConstants),
    )
    fabric = FabricEntry(
        name="own",
        machines=("test_host",),
        protocols=tuple(Protocol),
        tree_protocols=tuple(Protocol),
        pair_ll_bytes=60_000,
        constants=_constants(FabricConstants),
    )
    kinds = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
    return replace(
        shipped,
        hosts=(entry,),
        fabrics=(fabric,),
        software_constants=_constants(SoftwareConstants),
        uncertainty={scope: 0.1 + 0.01 * number for number, scope in enumerate(scopes)},
        spans=tuple(
            MeasuredSpan("test_host", kind, hosts, ranks, 512, 1_000_000)
            for kind in kinds
            for hosts, ranks in ((1, 4), (9, 36))
        ),
    )


CALIBRATION = _calibration()
OLD = CollectiveSoftware(nccl_version=(2, 23, 4))


def _priced(cluster: Any, ranks: Any) -> list[Any]:
    """What calls cost, with constants of our own."""
    kinds = [kind for kind in CollectiveKind if kind is not CollectiveKind.SEND_RECV]
    calls = [Collective(kind, size) for kind in kinds for size in (0, 1_000_000, 10**9)]
    calls.append(Collective(CollectiveKind.REDUCE_SCATTER, 10**6, DType.INT8))
    calls.append(Collective(CollectiveKind.ALL_REDUCE, 10**6, is_queued=True))
    if len(ranks) <= 8:
        matrix = tuple(
            tuple(10**5 * a + 9000 * b**2 for b in range(len(ranks))) for a in range(len(ranks))
        )
        calls.append(Collective(CollectiveKind.ALL_TO_ALL, 0, byte_matrix=matrix))
    here = {"cluster": cluster, "calibration": CALIBRATION}
    new = [price_collective(call, ranks=ranks, **here) for call in calls]
    old = [price_collective(call, ranks=ranks, software=OLD, **here) for call in calls[::5]]
    return [list(plain(cost).values()) for cost in (*new, *old)]


def _kinds_of(algorithm: CollectiveAlgorithm, wiring: Any) -> tuple[CollectiveKind, ...]:
    kinds = CollectiveKind
    if algorithm is CollectiveAlgorithm.RING:
        return (kinds.ALL_REDUCE, kinds.ALL_GATHER, kinds.BROADCAST, kinds.REDUCE)
    if algorithm is CollectiveAlgorithm.PAT:
        return (kinds.ALL_GATHER,)
    if algorithm is CollectiveAlgorithm.PAIRWISE:
        pair = (kinds.SEND_RECV,) if wiring.rank_count == 2 else ()
        return (kinds.ALL_TO_ALL, *pair)
    return (kinds.ALL_REDUCE,)


def _shared(cluster: Any) -> list[Any]:
    groups = ((0, 1), (1, 2), (4, 5, 6, 7), (0, 4), (5, 9), (3, 8), (10, 11))
    call = Collective(CollectiveKind.ALL_REDUCE, 1000)
    calls = [CollectiveCall(call, np.array(group)) for group in groups]
    costs = [
        replace(
            FREE,
            duration_ns=1000.0 + 100 * number,
            latency_ns=50.0 * number,
            gpu_busy_ns=300.0 + 70 * number,
            nic_busy_ns=(400.0 - 30 * number) * (number % 2),
            bus_bandwidth_bytes_per_s=1e9,
            per_rank_ns=np.array([900.0, 1000.0]) if number == 3 else None,
        )
        for number in range(len(calls))
    ]
    return share_links(calls, costs, cluster=cluster)


def test_a_grid_of_groups_gives_what_was_recorded(found):
    recorded.check(__file__, found)


def test_one_of_them_by_hand(found):
    # Eight ranks of one host, a ring of 40,960 bytes: 2 x 7 steps, 14/8 of the bytes past a GPU.
    movement = found["movement of all_reduce by ring, switch, all of one"]
    assert movement.host_hops == 14
    assert movement.gpu_bytes[0] == 40_960 * 14 / 8
