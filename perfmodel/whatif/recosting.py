"""Recosting: how much longer or shorter a task gets when its work changes.

On a machine that is named, the ratio is that of two predictions, so that an
error of the model which both share cancels. Without one it is the ratio of
two amounts of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from collectives import CollectiveKind, price_collective
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.costs.models import price_ops
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    GroupedGemm,
    HostSpan,
    HostWork,
    MemoryBound,
    Work,
)
from perfmodel.whatif.job_draft import Ranks
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine
from perfmodel.whatif.selection import Selection
from topologies import Device

_SENT_SHARE = {
    # Bytes that pass a member's link for a byte of the buffer, over (p - 1) / p.
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}


@dataclass(frozen=True, slots=True)
class Effort:
    """Some work and the ranks that do it together (none for the work of one rank)."""

    work: Work
    ranks: Ranks = ()


@dataclass(frozen=True, slots=True)
class Recosted:
    """How much of the time that a change is about it can work out anew.

    *what* names that time; the work of *estimated_ns* of it was estimated, not counted.
    """

    what: str
    known_ns: int
    estimated_ns: int
    total_ns: int

    @property
    def ratio(self) -> float:
        """The share, all where there is no such time."""
        return self.known_ns / self.total_ns if self.total_ns else 1.0

    @property
    def words(self) -> str:
        """The share for people."""
        estimated = self.estimated_ns / self.total_ns if self.total_ns else 0.0
        how = f" ({estimated:.1%} from estimated work)" if estimated else ""
        return f"{self.ratio:.1%} of {self.what} could be worked out anew{how}"


def count_recosted(
    job: JobGraph, selection: Selection, is_known: Callable[[Fixed], bool], *, what: str
) -> Recosted:
    """How much of the time of *selection*, on all ranks, has work that *is_known*."""
    known = estimated = total = 0
    for number, ranks in zip(*np.unique(job.rank_program, return_counts=True), strict=True):
        program = job.programs[int(number)]
        found = selection.mask(job, program)
        for op_number, count in zip(*np.unique(program.op[found], return_counts=True), strict=True):
            op = job.ops[int(op_number)]
            if isinstance(op, Fixed):
                time_ns = op.duration_ns * int(count) * int(ranks)
                total += time_ns
                known += time_ns * is_known(op)
                estimated += time_ns * (is_known(op) and op.is_estimated)
    return Recosted(what, known, estimated, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnMachine:
    """Parameters of transformations that change work: the machine to price it on.

    *topology* is a file or a name from the catalog. Without it times follow the
    amount of work.
    """

    topology: str | None = None
    hosts: int | None = None
    stack: str = DEFAULT_STACK

    def __post_init__(self) -> None:
        if self.topology is None and self.hosts is not None:
            raise ScenarioError(
                f"hosts: {self.hosts} hosts need a machine. Say which with topology=NAME."
            )

    @property
    def machine(self) -> PricingMachine | None:
        """The machine, if one is named."""
        if self.topology is None:
            return None
        return PricingMachine(self.topology, self.hosts, self.stack)

    @property
    def cost_sentence(self) -> str:
        """How the changed tasks are priced."""
        if self.topology is None:
            return (
                "Changed tasks take time in proportion to their amount of work (bytes, or "
                "operations times bytes of a number); latencies shrink and grow with it."
            )
        return f"Changed tasks are scaled by the ratio of predictions for {self.topology}."

    def time_ratio(self, old: Effort, new: Effort) -> float:
        """How many times as long *new* takes as *old*."""
        if old == new:
            return 1.0
        if self.machine is None:
            before, after = amount_of(old), amount_of(new)
        else:
            before, after = price_ns(old, self.machine), price_ns(new, self.machine)
        return after / before if before > 0 else 1.0


@lru_cache(maxsize=100_000)
def price_ns(effort: Effort, machine: PricingMachine) -> float:
    """How long *effort* takes on *machine*; for an uneven exchange, its slowest member.

    A collective whose partners are not known is one of all GPUs of a host. A
    format that the device cannot multiply runs as a wider one.
    """
    work = effort.work
    cluster = machine.cluster(max(effort.ranks, default=0) + 1)
    if isinstance(work, Communication):
        ranks = effort.ranks
        if not ranks:
            cluster = machine.cluster(cluster.topology.gpus_per_host)
            ranks = tuple(range(cluster.rank_count))
        cost = price_collective(work.collective, cluster=cluster, ranks=ranks)
        return float(cost.duration_ns)
    runs = _in_known_format(work, cluster.device)
    priced = price_ops([runs], device=cluster.device, stack=machine.load_stack())
    return float(priced.duration_ns[0])


_WIDER = (DType.FP8, DType.BF16, DType.FP16, DType.FP32)


def _in_known_format(work: Work, device: Device) -> Work:
    if not isinstance(work, Gemm | Convolution | Attention | GroupedGemm):
        return work
    if work.dtype in device.peak_flops:
        return work
    wider = [
        dtype
        for dtype in _WIDER
        if dtype.size_bits >= work.dtype.size_bits and dtype in device.peak_flops
    ]
    return replace(work, dtype=wider[0]) if wider else work


def amount_of(effort: Effort) -> float:
    """What the duration of *effort* is taken to be in proportion to."""
    work = effort.work
    if isinstance(work, Communication):
        size, share = len(effort.ranks), _SENT_SHARE.get(work.collective.kind)
        passed = 1.0 if share is None or size < 2 else share * (size - 1) / size
        return passed * work.collective.size_bytes
    return float(_AMOUNTS[type(work)](work))


def _attention_amount(work: Attention) -> int:
    pairs = work.batch * work.heads * work.query_length * work.key_length
    return pairs * work.head_dim * work.dtype.size_bytes


def _looked_up_bytes(work: EmbeddingOp) -> float:
    lookup = work.lookup
    return sum(
        lookup.lookup_count(table) * table.width * table.dtype.size_bytes for table in lookup.tables
    )


_AMOUNTS: dict[type[object], Callable[[Any], float]] = {
    Gemm: lambda work: work.m * work.n * work.k * work.batch * work.dtype.size_bits / 8,
    GroupedGemm: lambda work: work.flops * work.dtype.size_bits / 8,
    Convolution: lambda work: work.flops * work.dtype.size_bits / 8,
    Attention: _attention_amount,
    MemoryBound: lambda work: work.read_bytes + work.write_bytes,
    EmbeddingOp: _looked_up_bytes,
    Copy: lambda work: work.size_bytes,
    HostWork: lambda _: 1.0,
    HostSpan: lambda work: len(work.parts),
}
