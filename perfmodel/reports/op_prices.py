"""Prices of one op: a kernel, a collective, or a collective over all sizes.

Each has an answer, its JSON, and its report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collectives.calibration import calibration_for
from collectives.collective import (
    Collective,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
)
from collectives.group import wiring_of
from collectives.pricing import price_collective, price_sizes
from perfmodel.base.cautions import NO_CAUTIONS, Cautions
from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_bandwidth,
    format_duration,
    format_size,
)
from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.embedding_constants import describe_constants
from perfmodel.costs.estimates import Bound, interval_of
from perfmodel.costs.gemm_physics import TINY_WORK
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Attention, EmbeddingOp, Gemm, MemoryBound, Op, Pass
from perfmodel.prediction.gate import check_machine, check_op
from perfmodel.reports.blocks import Plot, Point, Report, Section, Sentences, Table, plain_report
from perfmodel.reports.text import format_range, pick
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster, Device

SCHEMA_VERSION = 1
SMALLEST_POWER, LARGEST_POWER = 9, 30
KernelWork = tuple[str, float, float, str]
"""Title, useful FLOPs, useful bytes, and where time jumps between neighbouring sizes."""


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """What one kernel costs on one device."""

    device: str
    stack: str
    kernel: str
    time_ms: float
    interval_ms: tuple[float, float]
    tflops: float
    gigabytes_per_s: float
    bound: str
    provenance: str
    priced_as: str | None = None
    """For attention: the kernel that runs it and whose constants price it."""
    steps: str = ""
    """Where time jumps between neighbouring sizes."""
    constants: str | None = None
    """For embedding lookups: where the constants that price them are from."""
    cautions: Cautions = NO_CAUTIONS

    def to_json(self) -> dict[str, Any]:
        """The machine-readable answer."""
        own = {key: value for key, value in asdict(self).items() if key != "cautions"}
        return {"schema_version": SCHEMA_VERSION, **own, **self.cautions.document()}


def _gemm(op: Gemm) -> KernelWork:
    """A matrix multiply: its operands and what it writes."""
    operands = op.dtype.bytes_of(op.batch * (op.m * op.k + op.n * op.k))
    # Operands narrower than half precision still give a half-precision result.
    product = op.batch * op.m * op.n * max(op.dtype.size_bits, DType.BF16.size_bits) / BITS_PER_BYTE
    batch = f"{op.batch} x " if op.batch > 1 else ""
    steps = (
        "up with whole tiles and waves; down by 6 % at most, where half-precision libraries "
        "change kernels"
    )
    if op.batch * op.m * op.n * op.k < TINY_WORK:
        steps = (
            "below 2**21 multiply-adds a simple kernel runs that does not split k; "
            "a larger GEMM may take less"
        )
    title = f"gemm {batch}{op.m} x {op.n} x {op.k} {op.dtype.value}"
    return title, 2.0 * op.batch * op.m * op.n * op.k, operands + product, steps


def _attention(op: Attention) -> KernelWork:
    """How long attention takes; a causal mask halves the useful work."""
    pairs = op.batch * op.heads * op.query_length * op.key_length
    products = 10.0 if op.direction is Pass.BACKWARD else 4.0
    elements = 2 * op.head_dim * (op.heads * op.query_length + op.kv_heads * op.key_length)
    mask = "causal" if op.is_causal else "full"
    title = (
        f"attention {op.kernel} {op.direction.value} {mask} {op.batch} x {op.query_length}, "
        f"{op.heads} heads of {op.head_dim}, {op.dtype.value}"
    )
    flops = products * pairs * op.head_dim * (0.5 if op.is_causal else 1.0)
    return title, flops, float(op.batch * elements * op.dtype.size_bytes), ""


def _memory(op: MemoryBound) -> KernelWork:
    """How long a kernel bound by its traffic takes."""
    steps = "" if op.row_length == 0 else "with the length of rows, not with their number"
    moved = float(op.read_bytes + op.write_bytes)
    return f"{op.operator} {op.dtype.value}", float(op.flops), moved, steps


def _embedding(op: EmbeddingOp) -> KernelWork:
    """How long a lookup, or its update, takes.

    Its bytes are those of every row that is asked for and of the vectors, and backward twice that,
    as FBGEMM's benchmark counts; fewer are moved where rows are drawn again.
    """
    lookup = op.lookup
    table = lookup.tables[0]
    count = f"{len(lookup.tables)} x " if len(lookup.tables) > 1 else ""
    draws = sum(lookup.lookup_count(one) for one in lookup.tables)
    distinct = sum(lookup.distinct_rows(one) for one in lookup.tables)
    row = table.width * table.dtype.size_bytes
    is_backward = op.direction is Pass.BACKWARD
    vectors = lookup.batch_size * len(lookup.tables) * table.width * DType.FP32.size_bytes
    update = f", {lookup.optimizer} by {lookup.kernel}" if is_backward else ""
    title = (
        f"embedding {op.direction.value} {count}{table.rows} x {table.width} "
        f"{table.dtype.value}, {table.pooling_factor:g} rows for each of {lookup.batch_size} "
        f"samples, {table.distribution} ({distinct:.4g} different of {draws:.4g}){update}"
    )
    return title, 0.0, (draws * row + vectors) * (2 if is_backward else 1), ""


_WORK: dict[type, Callable[[Any], KernelWork]] = {
    Gemm: _gemm,
    Attention: _attention,
    MemoryBound: _memory,
    EmbeddingOp: _embedding,
}
"""What useful work is, by kind of kernel."""


def answer_op(op: Op, device: Device, stack: SoftwareStack) -> KernelAnswer:
    """Price *op* on *device* under *stack*."""
    if type(op) not in _WORK:
        known = ", ".join(kind.__name__ for kind in _WORK)
        raise InputError(f"kernel: must be a {known}, got a {type(op).__name__}.")
    title, useful_flops, useful_bytes, steps = _WORK[type(op)](op)
    estimate = price_ops([op], device=device, stack=stack, is_alone=True)
    duration_ns = float(estimate.duration_ns[0])
    per_s = NS_PER_S / duration_ns
    return KernelAnswer(
        device=device.name,
        stack=stack.name,
        kernel=title,
        time_ms=duration_ns / NS_PER_MS,
        interval_ms=(
            float(estimate.low_ns[0]) / NS_PER_MS,
            float(estimate.high_ns[0]) / NS_PER_MS,
        ),
        tflops=useful_flops * per_s / 1e12,
        gigabytes_per_s=useful_bytes * per_s / 1e9,
        bound=Bound(int(estimate.bound[0])).word,
        provenance=Provenance(int(estimate.provenance[0])).word,
        steps=steps,
        priced_as=AttentionModel().describe(op, device, stack)
        if isinstance(op, Attention)
        else None,
        constants=describe_constants(device) if isinstance(op, EmbeddingOp) else None,
        cautions=check_op(op, device, duration_ns),
    )


def report_kernel(answer: KernelAnswer) -> Report:
    """The price of one kernel."""
    interval = format_range(*(end * NS_PER_MS for end in answer.interval_ms))
    rate = f"{answer.tflops:.4g} TFLOP/s, " if answer.tflops else ""
    rows = [
        ("time", f"{format_duration(answer.time_ms * NS_PER_MS)}  (90 %: {interval})"),
        ("rate", f"{rate}{answer.gigabytes_per_s:.4g} GB/s"),
        ("limited by", answer.bound),
        ("provenance", answer.provenance),
        ("priced as", answer.priced_as or ""),
        ("constants", answer.constants or ""),
        ("steps", answer.steps),
    ]
    table = Table((), [row for row in rows if row[1]], wraps=(1,))
    title = f"{answer.kernel} on {answer.device} ({answer.stack})"
    return plain_report(title, table, columns=100).warned(answer.cautions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveGroup:
    """Ranks on a cluster, and the library that they call."""

    cluster: Cluster
    ranks: tuple[int, ...]
    software: CollectiveSoftware
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveAnswer:
    """What a *collective* of a *group* costs."""

    group: CollectiveGroup
    collective: Collective
    cost: CollectiveCost
    cautions: Cautions

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        collective, cost = self.collective, self.cost
        low, high = interval_of(cost.duration_ns, cost.relative_sigma)
        each = cost.per_rank_ns
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": collective.kind.value,
            "size_bytes": collective.size_bytes,
            "ranks": len(self.group.ranks),
            "time_us": cost.duration_ns / 1e3,
            "interval_us": [low / 1e3, high / 1e3],
            "bus_bandwidth_bytes_per_s": cost.bus_bandwidth_bytes_per_s,
            **pick(cost, "algorithm", "protocol", "alternative", "busiest_link", "latency_ratio"),
            "provenance": cost.provenance.word,
            **({} if each is None else {"per_rank_us": [float(ns) / 1e3 for ns in each]}),
            **self.cautions.document(),
        }


def answer_call(group: CollectiveGroup, collective: Collective) -> CollectiveAnswer:
    """Price *collective* of the *group*."""
    cost = price_collective(
        collective, cluster=group.cluster, ranks=group.ranks, software=group.software
    )
    cautions = check_machine(group.cluster.topology, [cost])
    return CollectiveAnswer(group, collective, cost, cautions)


def report_collective(answer: CollectiveAnswer) -> Report:
    """Time, choice and busiest link of a collective."""
    cost, matrix = answer.cost, answer.collective.byte_matrix
    interval = f"90 %: {format_range(*interval_of(cost.duration_ns, cost.relative_sigma))}"
    share = 100 * cost.latency_ratio
    near = cost.alternative and f" (NCCL's plan is close to {cost.alternative})"
    rows = [
        ("time", f"{format_duration(cost.duration_ns)}  ({interval}, {cost.provenance.word})"),
        ("bus bandwidth", format_bandwidth(cost.bus_bandwidth_bytes_per_s)),
        ("chosen", f"{cost.algorithm}, {cost.protocol}{near}"),
        ("busiest link", cost.busiest_link or "none"),
        ("share", f"{share:.0f} % latency, {100 - share:.0f} % bandwidth"),
    ]
    if cost.per_rank_ns is not None:
        ends = format_range(float(cost.per_rank_ns.min()), float(cost.per_rank_ns.max()))
        rows.append(("ranks end", ends))
    sent = answer.collective.size_bytes if matrix is None else max(map(sum, matrix))
    size = format_size(sent) + ("" if matrix is None else " at most")
    machine, kind = answer.group.cluster.topology, answer.collective.kind.value
    title = f"{kind} of {size} over {len(answer.group.ranks)} ranks on {machine.name}"
    return plain_report(title, Table((), rows), Sentences(machine.assumed)).warned(answer.cautions)


@dataclass(frozen=True, slots=True, eq=False)
class SizeSweep:
    """A collective over sizes from 512 B to 1 GiB."""

    group: CollectiveGroup
    kind: CollectiveKind
    sizes_bytes: tuple[int, ...]
    costs: tuple[CollectiveCost, ...]
    cautions: Cautions

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        rows = [
            {
                "size_bytes": size,
                "time_us": cost.duration_ns / 1e3,
                "bus_bandwidth_bytes_per_s": cost.bus_bandwidth_bytes_per_s,
                **pick(cost, "algorithm", "protocol", "alternative", "latency_ratio"),
            }
            for size, cost in zip(self.sizes_bytes, self.costs, strict=True)
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind.value,
            "ranks": len(self.group.ranks),
            "sweep": rows,
            **self.cautions.document(),
        }


def answer_sizes(group: CollectiveGroup, kind: CollectiveKind) -> SizeSweep:
    """Price powers of two from 512 B to 1 GiB."""
    sizes = np.exp2(np.arange(SMALLEST_POWER, LARGEST_POWER + 1))
    wiring = wiring_of(group.ranks, group.cluster)
    if wiring.rank_count == 1:
        raise InputError("sweep: a group of one rank moves nothing. Ask for two ranks or more.")
    if kind is CollectiveKind.SEND_RECV and wiring.rank_count != 2:
        raise InputError("sweep: send_recv is between two ranks. Give --ranks with two of them.")
    costs = price_sizes(
        kind,
        sizes,
        wiring=wiring,
        software=group.software,
        calibration=calibration_for(group.cluster.device),
        dtype=group.dtype,
    )
    cautions = check_machine(group.cluster.topology, costs)
    return SizeSweep(group, kind, tuple(map(int, sizes)), tuple(costs), cautions)


def report_sizes(sweep: SizeSweep) -> Report:
    """Every size with its time and choice."""
    rows, before = [], ""
    for size, cost in zip(sweep.sizes_bytes, sweep.costs, strict=True):
        word = cost.algorithm_word
        rows.append(
            (
                format_size(size),
                format_duration(cost.duration_ns),
                format_bandwidth(cost.bus_bandwidth_bytes_per_s),
                word,
                f"{100 * cost.latency_ratio:.0f} %",
                "<- NCCL switches here" if before and word != before else "",
            )
        )
        before = word
    headings = ("size", "time", "bus bandwidth", "choice", "latency", "")
    name = sweep.group.cluster.topology.name
    title = f"{sweep.kind.value} over {len(sweep.group.ranks)} ranks on {name}"
    table = Table(headings, rows, numeric=range(5))
    points = [
        Point(
            size,
            cost.duration_ns / NS_PER_US,
            f"{format_size(size)}: {format_duration(cost.duration_ns)}, {cost.algorithm_word}",
        )
        for size, cost in zip(sweep.sizes_bytes, sweep.costs, strict=True)
    ]
    curve = Plot(points, "bytes", "microseconds", are_log=True, are_joined=True)
    section = Section("", [table], more=lambda: [curve])
    return Report(title, sections=[section], columns=100).warned(sweep.cautions)
