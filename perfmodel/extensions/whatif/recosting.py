"""Recosting: how much longer or shorter a task gets when its work changes.

On a named machine this is the ratio of two predictions, so that an error which both share
cancels. Without a machine it is the ratio of two amounts of work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from collectives import Collective, CollectiveKind, price_collective
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.costs.models import price_ops
from perfmodel.extensions.whatif.drafts import Ranks
from perfmodel.extensions.whatif.passes import Mask
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
    Op,
    Unmeasured,
    Work,
    duration_of,
    work_of,
)
from perfmodel.graph.program import Program
from perfmodel.prediction.saved_jobs import PricingMachine

_SENT_SHARE = {
    # Bytes that cross a member's link per byte of the buffer, divided by (p - 1) / p.
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}


@dataclass(frozen=True, slots=True)
class Recosted:
    """How much of the time that a change affects it can price again.

    *what* names that time; the work of *estimated_ns* of it was estimated, not counted.
    """

    what: str
    known_ns: int
    estimated_ns: int
    total_ns: int

    @property
    def ratio(self) -> float:
        """The share, 1 where there is no such time."""
        return self.known_ns / self.total_ns if self.total_ns else 1.0

    @property
    def words(self) -> str:
        """The share for people."""
        estimated = self.estimated_ns / self.total_ns if self.total_ns else 0.0
        how = f" ({estimated:.1%} from estimated work)" if estimated else ""
        return f"{self.ratio:.1%} of {self.what} could be priced again{how}"


def count_recosted(
    job: JobGraph,
    chosen: Iterable[tuple[Program, Mask, int]],
    is_known: Callable[[Fixed], bool],
    *,
    what: str,
) -> Recosted:
    """How much of the time of *chosen* tasks, each by so many ranks, has work that *is_known*."""
    known = estimated = total = 0
    for program, found, ranks in chosen:
        for op_number, count in zip(*np.unique(program.op[found], return_counts=True), strict=True):
            op = job.ops[int(op_number)]
            if isinstance(op, Fixed):
                time_ns = op.duration_ns * int(count) * ranks
                total += time_ns
                known += time_ns * is_known(op)
                estimated += time_ns * (is_known(op) and op.is_estimated)
    return Recosted(what, known, estimated, total)


def time_ratio(
    old: Work,
    new: Work,
    ranks: Ranks = (),
    among: Ranks = (),
    *,
    machine: PricingMachine | None = None,
) -> float:
    """How many times as long *new* takes as *old*, which *ranks* do together.

    *among* are the ranks of *new*, where they differ. Without a *machine* times are in proportion
    to the amount of work.
    """
    among = among or ranks
    if (old, ranks) == (new, among):
        return 1.0
    if machine is None:
        before, after = amount_of(old, ranks), amount_of(new, among)
    else:
        before, after = price_ns(old, ranks, machine), price_ns(new, among, machine)
    return after / before if before > 0 else 1.0


def rework(
    op: Op,
    old: Work,
    new: Work,
    ranks: Ranks = (),
    among: Ranks = (),
    *,
    machine: PricingMachine | None = None,
) -> Fixed:
    """A task that did *old* and now does *new*, with its duration scaled accordingly."""
    ratio = time_ratio(old, new, ranks, among, machine=machine)
    return retime(op, duration_of(op) * ratio, work=new)


def retime(op: Op, duration_ns: float, *, work: Work | None = None) -> Fixed:
    """A task with another stated duration, and other *work* if given.

    An unchanged duration and work keep their provenance; anything else is assumed.
    """
    stated_ns, rounded = duration_of(op), round(duration_ns)
    assert isinstance(op, Fixed)
    if rounded == stated_ns and work in (None, op.work):
        return op
    return replace(
        op,
        duration_ns=rounded,
        provenance=Provenance.ASSUMED,
        work=op.work if work is None else work,
    )


def filling(op: Op, factor: float) -> float:
    """How many times as long *op* takes with *factor* times the work in each of its dimensions.

    A kernel whose blocks do not fill the device takes as long until they do.
    """
    waves = op.waves if isinstance(op, Fixed) else 0.0
    return max(waves * factor, 1.0) / max(waves, 1.0) if waves else factor


def enlarged(work: Work, factor: float) -> Work:
    """*work* on *factor* times as many samples."""
    match work:
        case Communication():
            return Communication(carry(work.collective, ratio=factor))
        case EmbeddingOp():
            samples = max(round(work.lookup.batch_size * factor), 1)
            return replace(work, lookup=replace(work.lookup, batch_size=samples))
    old = {name: getattr(work, name) for name in _BY_SAMPLE.get(type(work), ())}
    return replace(work, **{key: max(round(n * factor), min(n, 1)) for key, n in old.items()})


def carry(collective: Collective, *, ratio: float) -> Collective:
    """*collective* with *ratio* of its bytes."""
    matrix = collective.byte_matrix
    if matrix is not None:
        matrix = tuple(tuple(round(sent * ratio) for sent in row) for row in matrix)
    return replace(collective, size_bytes=round(collective.size_bytes * ratio), byte_matrix=matrix)


_BYTES = ("read_bytes", "write_bytes")
_BY_SAMPLE: dict[type[Work], tuple[str, ...]] = {
    Gemm: ("m",),
    GroupedGemm: ("m",),
    Convolution: ("m", *_BYTES),
    Attention: ("batch",),
    MemoryBound: _BYTES,
    Unmeasured: ("flops", *_BYTES),
    Copy: ("size_bytes",),
}
"""What grows with the samples."""


@lru_cache(maxsize=100_000)
def price_ns(work: Work, ranks: Ranks, machine: PricingMachine) -> float:
    """How long *ranks* take for *work* on *machine*; for an uneven exchange, the slowest one.

    A collective whose members are not known involves all GPUs of a host. A number format that
    the device cannot multiply runs as a wider one.
    """
    cluster = machine.cluster(max(ranks, default=0) + 1)
    if isinstance(work, Communication):
        if not ranks:
            cluster = machine.cluster(cluster.topology.gpus_per_host)
            ranks = tuple(range(cluster.rank_count))
        return float(price_collective(work.collective, cluster=cluster, ranks=ranks).duration_ns)
    formats = cluster.device.peak_flops
    if isinstance(work, Gemm | Convolution | Attention | GroupedGemm) and work.dtype not in formats:
        bits = work.dtype.size_bits
        wider = [dtype for dtype in _WIDER if dtype.size_bits >= bits and dtype in formats]
        work = replace(work, dtype=wider[0]) if wider else work
    priced = price_ops([work], device=cluster.device, stack=machine.load_stack())
    return float(priced.duration_ns[0])


_WIDER = (DType.FP8, DType.BF16, DType.FP16, DType.FP32)


def amount_of(work: Work, ranks: Ranks = ()) -> float:
    """What the duration of *work* by *ranks* is assumed to be proportional to."""
    match work:
        case Communication():
            size, share = len(ranks), _SENT_SHARE.get(work.collective.kind)
            passed = 1.0 if share is None or size < 2 else share * (size - 1) / size
            amount = passed * work.collective.size_bytes
        case HostWork():
            amount = 1.0
        case HostSpan():
            amount = len(work.parts)
        case Gemm():
            amount = work.m * work.n * work.k * work.batch * work.dtype.size_bits / 8
        case GroupedGemm() | Convolution():
            amount = work.flops * work.dtype.size_bits / 8
        case Attention():
            pairs = work.batch * work.heads * work.query_length * work.key_length
            amount = pairs * work.head_dim * work.dtype.size_bytes
        case _:
            amount = bytes_of(work)
    return float(amount)


def bytes_of(op: Op) -> float:
    """Bytes that a task reads and writes, or carries; 0 where that is unknown."""
    size: float = 0
    match work := work_of(op):
        case MemoryBound() | Convolution():
            size = work.read_bytes + work.write_bytes
        case Copy():
            size = work.size_bytes
        case Communication():
            size = work.collective.size_bytes
        case EmbeddingOp():
            tables, count = work.lookup.tables, work.lookup.lookup_count
            size = sum(count(one) * one.width * one.dtype.size_bytes for one in tables)
        case Gemm() | GroupedGemm():
            elements = work.m * work.k + work.k * work.n + work.m * work.n
            copies = work.batch if isinstance(work, Gemm) else work.groups
            size = copies * elements * work.dtype.size_bits / 8
        case Attention():
            query = 2 * work.heads * work.query_length
            keys = 2 * work.kv_heads * work.key_length
            size = work.batch * (query + keys) * work.head_dim * work.dtype.size_bits / 8
    return float(size)
