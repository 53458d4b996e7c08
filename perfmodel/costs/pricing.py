"""Pricing: durations for every task of a whole job.

Ranks with the same program and groups with the same placement cost the same and share one row, so
a job of thousands of ranks is priced once per distinct rank. Costs are rounded to the clock here
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import (
    CollectiveCall,
    CollectiveSoftware,
    Wiring,
    price_collective,
    share_links,
    wiring_of,
)
from collectives.uneven import price_lean
from perfmodel.base.dtypes import BITS_PER_BYTE
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.anchoring import CallFactors, anchor
from perfmodel.costs.estimates import (
    Bound,
    Estimates,
    FloatColumn,
    build_estimates,
    concatenate_estimates,
)
from perfmodel.costs.interference import slowdowns_for
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES, family_of, price_ops
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import NO_GROUP, JobGraph, split_bytes
from perfmodel.graph.ops import Communication, Gemm, GroupedGemm, Op
from perfmodel.graph.program import Program, offsets
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.spread import KERNELS, find_spread
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster, Device


def find_rivals(job: JobGraph, cluster: Cluster) -> list[tuple[int, ...]]:
    """For every group of *job*, the others of its slot that share a NIC with it.

    Ranks run the same program in step, so the groups of one slot make their collectives together.
    Where GPUs share a NIC, as on Polaris, each group gets only its share.
    """
    rivals: list[set[int]] = [set() for _ in job.groups]
    hosts, nic_of_rank = cluster.host_of_rank, cluster.nics_of(np.arange(cluster.rank_count))
    if not len(nic_of_rank):
        return [() for _ in job.groups]
    members, group = job.members()
    pairs = np.unique(group * cluster.host_count + hosts[members])
    crosses = np.bincount(pairs // cluster.host_count, minlength=len(job.groups)) > 1
    for slot in range(job.rank_group.shape[1]):
        ranks = np.flatnonzero(job.rank_group[:, slot] != NO_GROUP)
        groups = job.rank_group[ranks, slot]
        sends = crosses[groups]
        pairs = np.unique(np.column_stack([nic_of_rank[ranks], groups])[sends], axis=0)
        # Sorted by NIC: groups that share one are adjacent.
        firsts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
        counts = np.diff(firsts, append=len(pairs))
        for first, count in zip(firsts[counts > 1], counts[counts > 1], strict=True):
            sharers = pairs[first : first + count, 1]
            for group in sharers:
                rivals[group].update(int(other) for other in sharers if other != group)
    return [tuple(sorted(of_group)) for of_group in rivals]


@dataclass(frozen=True, slots=True)
class _CallPrice:
    """What one collective costs a group: per member, or the same for all."""

    duration_ns: float
    per_member_ns: tuple[float, ...] | None
    relative_sigma: float
    provenance: int
    is_latency_bound: bool
    link_use: tuple[float, float, float]

    def of_member(self, rank: int, ranks: Sequence[int]) -> _CallPrice:
        """The price for *rank*; the price of the first member if it is not in *ranks*."""
        if self.per_member_ns is None:
            return self
        position = ranks.index(rank) if rank in ranks else 0
        return replace(self, duration_ns=self.per_member_ns[position], per_member_ns=None)


def price_job(
    job: JobGraph, *, cluster: Cluster, stack: SoftwareStack, guesses: int = 0
) -> PricedJob:
    """Durations of every task of *job* on *cluster* under *stack*, by the speed of its CPUs too.

    So many settings that decide costs are *guesses*: its spread is wider for them.
    """
    return price_alike([job], cluster=cluster, stack=stack, guesses=guesses)[0]


def price_alike(
    jobs: Sequence[JobGraph], *, cluster: Cluster, stack: SoftwareStack, guesses: int = 0
) -> list[PricedJob]:
    """The same of several *jobs* with equal groups, whose ops the last one begins with."""
    if not jobs:
        return []
    last = jobs[-1]
    _check_fits(last, cluster)
    stack = stack.on_cpu(cluster.topology.host_cpu)
    calls = _CallPricer(last, cluster, stack)
    families = np.array([FAMILIES.index(family_of(type(op))) for op in last.ops], dtype=np.int8)
    ranks = np.arange(last.rank_count, dtype=np.int64)
    numbers, devices = cluster.devices_of(ranks)
    plain_of = [_price_plain(last.ops, device, stack) for device in devices]
    gpus, gpu_of_rank = np.unique(
        np.column_stack([numbers, cluster.speeds_of(ranks)]), axis=0, return_inverse=True
    )
    gpu_of_rank, plain_at = gpu_of_rank.reshape(-1), []
    for number, speed in gpus.tolist():
        plain = plain_of[int(number)]
        slowed_ns = slow_down(plain.duration_ns, families, speed)
        plain_at.append(replace(plain, duration_ns=slowed_ns))

    def price(job: JobGraph) -> PricedJob:
        kind_of_rank, representatives = _rank_kinds(job, calls, gpu_of_rank)
        starts, programs, columns, link_use = _price_kinds(
            job, [(rank, plain_at[gpu_of_rank[rank]]) for rank in representatives.tolist()], calls
        )
        family = np.concatenate([families[program.op] for program in programs])
        priced = PricedJob(
            job=job,
            durations=DurationTable(
                np.rint(columns.duration_ns).astype(np.int64)[:, None],
                np.array(starts, dtype=np.int64)[kind_of_rank],
            ),
            float_ns=columns.duration_ns,
            relative_sigma=columns.relative_sigma,
            provenance=columns.provenance,
            family=family,
            bound=columns.bound,
            link_use=link_use,
            slowdowns=slowdowns_for(cluster.device),
            spread=find_spread(
                stack,
                architecture=cluster.device.architecture,
                hosts=cluster.host_count,
                samples=job.facts.samples / job.rank_count,
                features=features_of(job, family, columns.duration_ns, columns.relative_sigma)
                | {"guesses": guesses},
                is_emulated=job.facts.is_emulated,
            ),
        )
        return anchor(priced, cluster, stack)

    return [price(job) for job in jobs]


def features_of(
    job: JobGraph, family: NDArray[np.int8], duration_ns: FloatColumn, sigma: FloatColumn
) -> dict[str, float]:
    """How much *job* has of what makes predictions unsure, see `FamilySpread`."""
    count = len(FAMILIES)
    by_family = np.bincount(family, duration_ns, count)
    host_ns = by_family[FAMILIES.index("host")]
    device_ns = max(float(by_family.sum() - host_ns), 1.0)
    errors_ns = np.bincount(family, duration_ns * sigma, count)
    errors_ns[FAMILIES.index("host")] = 0.0
    formats = {op.dtype for op in job.ops if isinstance(op, Gemm | GroupedGemm)}
    has_experts = float(any(isinstance(op, GroupedGemm) for op in job.ops))
    return {
        KERNELS: float(np.linalg.norm(errors_ns)) / device_ns,
        "experts": has_experts,
        "host of experts": has_experts * min(float(host_ns) / device_ns, 1.0),
        "four_bits": float(any(one.size_bits < BITS_PER_BYTE for one in formats)),
    }


_KERNELS = [FAMILIES.index(name) for name in ("attention", "embedding", "gemm", "memory")]


def slow_down(durations_ns: FloatColumn, families: NDArray[np.int8], speed: float) -> FloatColumn:
    """*durations_ns* on a GPU that computes at *speed* of that of a sound one.

    Only its kernels are slower: copies, host work and collectives are not.
    """
    factor = np.where(np.isin(families, _KERNELS), 1.0 / speed, 1.0)
    return durations_ns * factor if speed < 1.0 else durations_ns


def cluster_seen_by(stack: SoftwareStack, cluster: Cluster) -> Cluster:
    """*cluster* as the collectives of *stack* use it: without relays if the stack makes none."""
    if not (stack.has(FrameworkBehaviour.UNRELAYED) and cluster.topology.gpus_forward):
        return cluster
    return replace(cluster, topology=replace(cluster.topology, gpus_forward=False))


def _check_fits(job: JobGraph, cluster: Cluster) -> None:
    needed = max([job.rank_count, *(1 + rank for group in job.groups for rank in group.ranks)])
    if needed > cluster.rank_count:
        raise ScenarioError(
            f"job {job.facts.name!r} has {needed} ranks and the cluster has {cluster.rank_count}. "
            "Add hosts to the cluster or use fewer ranks."
        )


def _price_plain(ops: tuple[Op, ...], device: Device, stack: SoftwareStack) -> Estimates:
    """Prices by index of op; a Communication holds zero until its group is known."""
    places = [place for place, op in enumerate(ops) if not isinstance(op, Communication)]
    priced = price_ops([ops[place] for place in places], device=device, stack=stack)
    free = build_estimates(
        np.zeros(1), relative_sigma=0.0, provenance=Provenance.RECORDED, bound=Bound.LINK
    )
    row_of_op = np.full(len(ops), len(places))
    row_of_op[places] = np.arange(len(places))
    return concatenate_estimates([priced, free]).take(row_of_op)


class _CallPricer:
    """Prices collectives, once for groups with the same placement."""

    def __init__(self, job: JobGraph, cluster: Cluster, stack: SoftwareStack) -> None:
        self._job = job
        self._cluster = cluster = cluster_seen_by(stack, cluster)
        architecture = cluster.device.generation
        self._time_ratio = stack.time_ratio(COMMUNICATION_FAMILY, architecture)
        self._own = CallFactors(cluster)
        self._is_lean = cluster.host_count > 1 and stack.has(FrameworkBehaviour.LEAN_EXCHANGES)
        self._software = CollectiveSoftware(algorithm=stack.collective_algorithm)
        self._price_of: dict[tuple[int, int], _CallPrice] = {}
        self._wiring_of: dict[int, Wiring] = {}
        rivals = find_rivals(job, cluster)
        keys = list(zip(*_placements(job, cluster), map(len, rivals), strict=True))
        kind_of_key = {key: kind for kind, key in enumerate(dict.fromkeys(keys))}
        self.placement_of_group = np.array([kind_of_key[key] for key in keys], dtype=np.int64)
        self._rivals_of_group = rivals

    def price(self, op: int, slot: int, rank: int) -> _CallPrice:
        """What *rank* pays for the collective number *op* with its group in *slot*."""
        group = int(self._job.rank_group[rank, slot])
        key = (op, int(self.placement_of_group[group]))
        if key not in self._price_of:
            self._price_of[key] = self._price_group(op, group)
        return self._price_of[key].of_member(rank, self._job.groups[group].ranks)

    def _price_group(self, op: int, group: int) -> _CallPrice:
        communication = self._job.ops[op]
        assert isinstance(communication, Communication)
        ranks = self._job.groups[group].ranks
        if self._is_lean:
            cost = price_lean(communication.collective, cluster=self._cluster, ranks=ranks)
        else:
            if group not in self._wiring_of:
                self._wiring_of[group] = wiring_of(ranks, self._cluster)
            cost = price_collective(
                communication.collective,
                cluster=self._cluster,
                ranks=ranks,
                software=self._software,
                wiring=self._wiring_of[group],
            )
        if rivals := self._rivals_of_group[group]:
            calls = [
                CollectiveCall(communication.collective, self._job.groups[member].ranks)
                for member in (group, *rivals)
            ]
            cost = share_links(calls, [cost] * len(calls), cluster=self._cluster)[0]
        hosts = len(np.unique(self._cluster.seats_of(np.asarray(ranks))[0]))
        own = self._own.of(communication, len(ranks), hosts)
        time_ratio = self._time_ratio * own.time
        of_ranks, length_ns = None, max(cost.duration_ns, 1.0)
        if cost.per_rank_ns is not None:
            of_ranks = tuple((cost.per_rank_ns * time_ratio).tolist())
        return _CallPrice(
            duration_ns=float(cost.duration_ns) * time_ratio,
            per_member_ns=of_ranks,
            relative_sigma=float(cost.relative_sigma) * own.sigma,
            provenance=int(cost.provenance),
            is_latency_bound=cost.latency_ns > cost.duration_ns / 2,
            link_use=(
                cost.gpu_busy_ns / length_ns,
                cost.nic_busy_ns / length_ns,
                cost.wire_ns / length_ns / time_ratio,
            ),
        )


def _placements(job: JobGraph, cluster: Cluster) -> tuple[list[bytes], list[bytes]]:
    """The placement of every group: hosts numbered by first appearance, and the GPU in each.

    Hosts without faults are equal, so it does not matter which of them a group uses.
    """
    ranks, group = job.members()
    bounds = offsets(np.bincount(group, minlength=len(job.groups)))
    hosts, gpus = cluster.seats_of(ranks)
    pairs = group * cluster.host_count + hosts
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    # Groups follow each other, so counting all hosts in order counts those of each group.
    number = np.cumsum(np.bincount(first, minlength=len(ranks)))
    within = number[first[inverse]] - number[bounds[group]]
    gpus = gpus + cluster.topology.gpus_per_host * cluster.machines_of(hosts)
    return split_bytes(within, bounds), split_bytes(gpus, bounds)


def _rank_kinds(
    job: JobGraph, calls: _CallPricer, gpu_of_rank: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The kind of every rank, and one rank per kind. Ranks of one kind have the same prices."""
    signature = [job.rank_program.astype(np.int64), gpu_of_rank]
    if len(calls.placement_of_group):
        placement = calls.placement_of_group[job.rank_group]
        signature.append(np.where(job.rank_group == NO_GROUP, NO_GROUP, placement))
    collectives = (op.collective for op in job.ops if isinstance(op, Communication))
    if any(one.byte_matrix is not None for one in collectives):
        # In an uneven exchange a member's price depends on its position in the group.
        signature.append(_positions(job))
    _, first, kind = np.unique(
        np.column_stack(signature), axis=0, return_index=True, return_inverse=True
    )
    return kind.reshape(-1), first


def _positions(job: JobGraph) -> NDArray[np.int64]:
    """The position of every rank in its group of every slot."""
    positions = np.full(job.rank_group.shape, NO_GROUP, dtype=np.int64)
    place_in = [{rank: place for place, rank in enumerate(group.ranks)} for group in job.groups]
    for (rank, slot), group in np.ndenumerate(job.rank_group):
        if group != NO_GROUP:
            positions[rank, slot] = place_in[group].get(rank, 0)
    return positions


def _price_kinds(
    job: JobGraph, ranks: Sequence[tuple[int, Estimates]], calls: _CallPricer
) -> tuple[list[int], list[Program], Estimates, NDArray[np.float64]]:
    """Where the prices of each of *ranks* begin; then, of all tasks, programs, prices, link use.

    Each has prices of its ops. Ranks of one program and speed whose collectives all cost the same
    share their rows.
    """
    is_call = np.array([isinstance(op, Communication) for op in job.ops], dtype=bool)
    slots = job.rank_group.shape[1] or 1
    start_of: dict[tuple[int, int, tuple[_CallPrice, ...]], int] = {}
    programs: list[Program] = []
    columns: list[Estimates] = []
    link_uses: list[NDArray[np.float64]] = []

    @cache
    def find_calls(number: int) -> tuple[list[tuple[int, int]], NDArray[np.intp], Any]:
        """The collectives of a program: op and slot of each, the tasks, and which each makes."""
        program = job.programs[number]
        tasks = np.flatnonzero((program.slot >= 0) & is_call[program.op])
        codes = program.op[tasks].astype(np.int64) * slots + program.slot[tasks]
        distinct, call_of_task = np.unique(codes, return_inverse=True)
        return [divmod(code, slots) for code in distinct.tolist()], tasks, call_of_task

    starts, length = [], 0
    for rank, plain in ranks:
        number = int(job.rank_program[rank])
        pairs, tasks, which = find_calls(number)
        prices = tuple(calls.price(op, slot, rank) for op, slot in pairs)
        key = (number, id(plain), prices)
        is_known = key in start_of
        starts.append(start_of.setdefault(key, length))
        if is_known:
            continue
        program = job.programs[number]
        own, link_use = plain.take(program.op), np.zeros((program.task_count, 3))
        if prices:
            bounds = [Bound.LATENCY if one.is_latency_bound else Bound.LINK for one in prices]
            own.duration_ns[tasks] = np.array([one.duration_ns for one in prices])[which]
            own.relative_sigma[tasks] = np.array([one.relative_sigma for one in prices])[which]
            own.provenance[tasks] = np.array([one.provenance for one in prices])[which]
            own.bound[tasks] = np.array(bounds)[which]
            link_use[tasks] = np.array([one.link_use for one in prices])[which]
        programs.append(program)
        columns.append(own)
        link_uses.append(link_use)
        length += program.task_count
    return starts, programs, concatenate_estimates(columns), np.concatenate(link_uses)
