"""Tuner: which algorithm and protocol NCCL chooses, by its own planning estimate.

NCCL does not measure: it adds up latencies and divides by bandwidths from a table in its source,
and takes the smallest. The estimate is often wrong, so measured time jumps where the choice
changes. Only the choice is used here, never the estimate.

Between hosts the inputs of the estimate are not known well: what NCCL's search found of the links,
what a plugin reports. Choices whose estimates are close to the smallest therefore count in part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from collectives.collective import (
    DEFAULT_NCCL_VERSION,
    CollectiveAlgorithm,
    CollectiveKind,
    CollectiveSoftware,
    Protocol,
)
from collectives.movement import UNPLANNED, FloatArray
from collectives.timing import CHANNELS_BETWEEN_HOSTS, Choice, proxy_steps
from collectives.wiring import HostLinkClass, Wiring
from perfmodel.base.errors import InputError
from perfmodel.base.fields import Constant, Count, ReadAs
from perfmodel.base.forms import CalibrationHeader, Form

Latencies = Mapping[Protocol, float]

_REDUCED = (CollectiveKind.ALL_REDUCE, CollectiveKind.BARRIER)
_GATHERED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
_PAIRWISE = UNPLANNED[CollectiveAlgorithm.PAIRWISE]
_NS_PER_US = 1e3
CLOSE = 0.15
"""How far above the smallest an estimate between hosts may be to count at all, in the logarithm."""
_INTEL, _AMD = "volta", "ampere"
"""Whose row of LL's bandwidths NCCL reads between hosts: the processor counts, not the GPU."""


def _latencies_ns(table: Mapping[Any, tuple[float, ...]]) -> Mapping[Any, Latencies]:
    """*table* in microseconds by algorithm, its columns by protocol."""
    return {
        word: {protocol: 1e3 * value for protocol, value in zip(Protocol, values, strict=True)}
        for word, values in table.items()
    }


_Triple = Annotated[tuple[Constant, ...], Field(min_length=3, max_length=3)]
_Latencies = Annotated[
    Mapping[CollectiveAlgorithm, Latencies],
    ReadAs(Mapping[CollectiveAlgorithm, _Triple], _latencies_ns),
]
_Rates = Annotated[
    tuple[float, ...], ReadAs(_Triple, lambda rates: tuple(1e9 * rate for rate in rates))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan(Form):
    """NCCL's bandwidth table for one GPU generation; lists go by 1, 2, and 4 or more hosts.

    *two_host_reach* is how much of the network it expects a tree over two hosts to use: releases
    of Volta's time did not plan with both trees.
    """

    link_ratio: Constant
    channels: Count
    ll_max_bytes_per_s: Annotated[_Rates, Field(alias="ll_max_gb_per_s")]
    ring_ll128_channel_bytes_per_s: Annotated[_Rates, Field(alias="ring_ll128_channel_gb_per_s")]
    tree_ll128_channel_bytes_per_s: Annotated[_Rates, Field(alias="tree_ll128_channel_gb_per_s")]
    tree_channel_bytes_per_s: Annotated[_Rates, Field(alias="tree_channel_gb_per_s")]
    nvls_tree_channel_bytes_per_s: Annotated[_Rates, Field(alias="nvls_tree_channel_gb_per_s")]
    two_host_reach: Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerConstants(CalibrationHeader):
    """NCCL's planning table: latencies in nanoseconds by algorithm and protocol."""

    base_ns: Annotated[_Latencies, Field(alias="base_us")]
    nvlink_ns: Annotated[_Latencies, Field(alias="nvlink_us")]
    pcie_ns: Annotated[_Latencies, Field(alias="pcie_us")]
    net_ns: Annotated[_Latencies, Field(alias="net_us")]
    nvls_ratio: Constant
    mesh_tree_ratio: Constant
    generations: Mapping[str, GenerationPlan]
    tree_correction: Mapping[Protocol, tuple[Constant, ...]]

    def plan_of(self, architecture: str) -> GenerationPlan:
        """The table of *architecture*, or of the newest generation for one NCCL does not know."""
        return self.generations.get(architecture, self.generations["hopper"])


@dataclass(frozen=True, slots=True)
class Tuner:
    """Estimates and chooses for one wiring."""

    constants: TunerConstants
    wiring: Wiring
    protocols: tuple[Protocol, ...]
    pair_ll_bytes: int = 0
    tree_reach: float = 1.0
    release: tuple[int, ...] = DEFAULT_NCCL_VERSION

    def choose(
        self, kind: CollectiveKind, sizes: FloatArray, software: CollectiveSoftware
    ) -> tuple[list[Choice], FloatArray]:
        """The candidates in order, and how much each counts at each size; the shares sum to 1."""
        candidates = self.candidates(kind, software)
        if kind in _PAIRWISE:
            slices = sizes / (self.wiring.rank_count if kind is CollectiveKind.ALL_TO_ALL else 1)
            is_small = slices <= self.pair_ll_bytes
            return candidates, np.stack([~is_small, is_small]).astype(np.float64)
        if len(candidates) == 1:
            return candidates, np.ones((1, *sizes.shape))
        tuner = replace(self, release=software.nccl_version)
        estimates = np.stack([tuner.estimate_ns(kind, choice, sizes) for choice in candidates])
        if self.wiring.host_count == 1:
            return candidates, np.eye(len(candidates))[:, np.argmin(estimates, axis=0)]
        close = np.maximum(1.0 - np.log(estimates / estimates.min(axis=0)) / CLOSE, 0.0) ** 2
        return candidates, close / close.sum(axis=0)

    def candidates(self, kind: CollectiveKind, software: CollectiveSoftware) -> list[Choice]:
        """What NCCL could take for *kind*; pairwise exchanges leave it no choice."""
        if kind in _PAIRWISE:
            return [
                (CollectiveAlgorithm.PAIRWISE, Protocol.SIMPLE),
                (CollectiveAlgorithm.PAIRWISE, Protocol.LL),
            ]
        algorithms = self._algorithms(kind, software)
        found = [
            (algorithm, protocol)
            for algorithm in algorithms
            for protocol in self._protocols(algorithm)
        ]
        kept = [choice for choice in found if software.protocol in (None, choice[1])]
        return kept or found

    def _algorithms(
        self, kind: CollectiveKind, software: CollectiveSoftware
    ) -> tuple[CollectiveAlgorithm, ...]:
        possible = [CollectiveAlgorithm.RING]
        wiring = self.wiring
        if kind in _REDUCED:
            if wiring.rank_count > 2 or software.algorithm is CollectiveAlgorithm.TREE:
                possible.append(CollectiveAlgorithm.TREE)
            if wiring.can_reduce_in_switch and wiring.ranks_per_host > 2:
                possible += _by_switch(wiring)
            # Where switches of the hosts reduce, those of the network work with them (NVLS).
            if wiring.can_reduce_in_network and not wiring.can_reduce_in_switch:
                possible.append(CollectiveAlgorithm.COLLNET)
        if kind in _GATHERED and wiring.ranks_per_host == 1 and software.nccl_version >= (2, 23):
            possible.append(CollectiveAlgorithm.PAT)
        return _forced(kind, possible, wiring, software)

    def _protocols(self, algorithm: CollectiveAlgorithm) -> tuple[Protocol, ...]:
        if algorithm in (CollectiveAlgorithm.RING, CollectiveAlgorithm.TREE):
            return self.protocols
        return (Protocol.SIMPLE,)

    def estimate_ns(self, kind: CollectiveKind, choice: Choice, sizes: FloatArray) -> FloatArray:
        """How long NCCL expects *kind* to take by *choice* at each of *sizes*."""
        algorithm, protocol = choice
        latency = self.latency_ns(kind, choice)
        bandwidth: float | FloatArray = self.bandwidth_bytes_per_s(kind, choice)
        if algorithm is CollectiveAlgorithm.TREE:
            steps = np.log2(np.maximum(sizes, 64.0) / 64.0).astype(np.int64)
            correction = np.array([*self.constants.tree_correction[protocol], 1.0])
            bandwidth = bandwidth * correction[np.minimum(steps, len(correction) - 1)]
        elif protocol is Protocol.SIMPLE and self.wiring.host_count > 1 and kind in _REDUCED:
            per_channel = sizes / (self._channels * self.wiring.rank_count)
            latency = np.where(per_channel >= 64, latency * 1.4, latency)
        estimate: FloatArray = latency + sizes * 1e9 / bandwidth
        return estimate

    @property
    def _column(self) -> int:
        return min(self.wiring.host_count, 3) - 1

    @property
    def _channels(self) -> int:
        channels = self.constants.plan_of(self.wiring.architecture).channels
        return channels if self.wiring.host_count == 1 else min(channels, CHANNELS_BETWEEN_HOSTS)

    def latency_ns(self, kind: CollectiveKind, choice: Choice) -> float | np.ndarray:
        """What NCCL expects a call of no bytes to take."""
        algorithm, protocol = choice
        table, wiring = self.constants, self.wiring
        hosts, n = wiring.host_count, wiring.rank_count
        base = table.base_ns[algorithm][protocol]
        is_pcie = wiring.link_class in (HostLinkClass.PCIE_PEER, HostLinkClass.PCIE_HOST)
        inside = (table.pcie_ns if is_pcie else table.nvlink_ns)[algorithm][protocol]
        net = table.net_ns[algorithm][protocol]
        if algorithm is CollectiveAlgorithm.TREE:
            return base + 2 * ((wiring.ranks_per_host - 1) * inside + math.log2(hosts) * net)
        if algorithm is CollectiveAlgorithm.NVLS:
            return base + inside + (net if hosts > 1 else 0.0)
        if algorithm is CollectiveAlgorithm.NVLS_TREE:
            return base + inside + 2 * math.log2(hosts) * net
        if algorithm is CollectiveAlgorithm.COLLNET:
            return base + 2 * (wiring.ranks_per_host - 1) * inside + net
        if algorithm is CollectiveAlgorithm.PAT:
            return base + math.log2(hosts) * net / 3.5 + n * 2.8 * _NS_PER_US
        if wiring.ranks_per_host == 1:
            net = table.net_ns[CollectiveAlgorithm.TREE][protocol]
        steps = 2 * (n - 1) if kind in _REDUCED else n - 1
        crossing = 0 if hosts == 1 else min(steps, 2 * hosts if kind in _REDUCED else hosts - 1)
        if hosts > 1:  # A ring keeps proxies busy at every step, inside hosts, too.
            inside = max(inside, proxy_steps(wiring, protocol) * _NS_PER_US)
        return base + (steps - crossing) * inside + crossing * net

    def bandwidth_bytes_per_s(self, kind: CollectiveKind, choice: Choice) -> float:
        """What NCCL expects in bytes of the buffer per second."""
        algorithm, protocol = choice
        wiring, hosts = self.wiring, self.wiring.host_count
        plan = self.constants.plan_of(wiring.architecture)
        inside = wiring.ring_bandwidth_bytes_per_s * plan.link_ratio
        outside = wiring.nic_bandwidth_bytes_per_s
        bus = inside if hosts == 1 else min(inside, outside)
        if algorithm is CollectiveAlgorithm.NVLS:
            inside *= self.constants.nvls_ratio
            return inside if hosts == 1 else min(inside, outside)
        share = self.tree_reach
        if hosts > 2 and wiring.link_class is HostLinkClass.NVLINK_MESH:
            share = min(share, self.constants.mesh_tree_ratio)
        if algorithm is CollectiveAlgorithm.COLLNET:
            return bus
        reach = (plan.two_host_reach if hosts == 2 else 1.0) * share * outside
        if algorithm is CollectiveAlgorithm.NVLS_TREE:
            per_channel = plan.nvls_tree_channel_bytes_per_s[self._column]
            return 0.5 * min(self._channels * per_channel, reach)
        if algorithm is CollectiveAlgorithm.TREE:
            # Between hosts the links inside carry what goes up and what comes down.
            tree_bus = inside if hosts == 1 else min(0.8 * inside, reach)
            return 0.5 * self._tree_bus(plan, protocol, tree_bus)
        if algorithm is CollectiveAlgorithm.PAT:
            bus *= 0.75
        steps = wiring.rank_count - 1
        if kind not in (*_REDUCED, *_GATHERED):
            return self._ring_bus(plan, protocol, bus)
        rounds = 2 * steps if kind in _REDUCED else steps
        return self._ring_bus(plan, protocol, bus) * wiring.rank_count / rounds

    def _ring_bus(self, plan: GenerationPlan, protocol: Protocol, bus: float) -> float:
        if protocol is Protocol.LL:
            is_older = self.wiring.host_count > 1 and self.release < (2, 21)
            return min(self._ll_bus(plan), bus * (0.25 if is_older else 0.5))
        if protocol is Protocol.LL128:
            per_channel = plan.ring_ll128_channel_bytes_per_s[self._column]
            is_older = self.wiring.ranks_per_host == 1 and self.release < (2, 23)
            return min(bus * (0.7 if is_older else 0.92), self._channels * per_channel)
        return bus

    def _ll_bus(self, plan: GenerationPlan) -> float:
        if self.wiring.host_count > 1:
            plan = self.constants.generations[_AMD if self.wiring.has_amd_cpu else _INTEL]
        return plan.ll_max_bytes_per_s[self._column]

    def _tree_bus(self, plan: GenerationPlan, protocol: Protocol, bus: float) -> float:
        bus = min(bus * 0.92, self._channels * plan.tree_channel_bytes_per_s[self._column])
        if protocol is Protocol.LL:
            return min(self._ll_bus(plan), bus / 3.8)
        if protocol is Protocol.LL128:
            share = 7 / 9 if self.wiring.host_count == 1 else 120 / 128
            per_channel = plan.tree_ll128_channel_bytes_per_s[self._column]
            return min(bus * share, self._channels * per_channel)
        return bus


def _by_switch(wiring: Wiring) -> tuple[CollectiveAlgorithm, ...]:
    """What NVSwitches that reduce allow: alone on one host or where the network reduces, too."""
    if wiring.host_count == 1:
        return (CollectiveAlgorithm.NVLS,)
    alone = (CollectiveAlgorithm.NVLS,) if wiring.can_reduce_in_network else ()
    return (CollectiveAlgorithm.NVLS_TREE, *alone)


def _forced(
    kind: CollectiveKind,
    possible: list[CollectiveAlgorithm],
    wiring: Wiring,
    software: CollectiveSoftware,
) -> tuple[CollectiveAlgorithm, ...]:
    """*possible*, or what the user forced of it. As in NCCL, kinds that lack it keep theirs."""
    wanted = software.algorithm
    if wanted is None or kind in UNPLANNED.get(wanted, ()):
        return tuple(possible) if wanted is None else (wanted,)
    by_host = wanted in (CollectiveAlgorithm.NVLS, CollectiveAlgorithm.NVLS_TREE)
    is_lacking = by_host and not wiring.can_reduce_in_switch
    if wanted is CollectiveAlgorithm.COLLNET and wiring.host_count > 1:
        is_lacking = not wiring.can_reduce_in_network
    if is_lacking and kind in _REDUCED:
        raise InputError(
            f"{kind.value} on {wiring.topology_name}: {wanted.value} needs a switch that reduces "
            "(SHARP), which the group does not have. Force ring or tree instead."
        )
    if by_host and kind in _REDUCED:
        usable = _by_switch(wiring)
        return (wanted,) if wanted in usable else usable
    return (wanted,) if wanted in possible else tuple(possible)
