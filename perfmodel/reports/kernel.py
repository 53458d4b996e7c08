"""One kernel priced: its time, rate, bound and interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_MS, NS_PER_S, format_duration
from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.embedding import describe_constants
from perfmodel.costs.estimates import Bound
from perfmodel.costs.gemm_physics import TINY_WORK
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Attention, EmbeddingOp, Gemm, MemoryBound, Op, Pass
from perfmodel.reports.blocks import Report, Section, Table
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class KernelQuestion:
    """An op with the useful work it does and the bytes it must move.

    *steps* says where time may jump between neighbouring sizes, if anywhere.
    """

    op: Op
    title: str
    useful_flops: float
    least_bytes: float
    steps: str = ""


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

    def to_json(self) -> dict[str, Any]:
        """The machine-readable answer."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def _gemm(op: Gemm) -> KernelQuestion:
    """A matrix multiply: its operands and what it writes."""
    operands = op.dtype.bytes_of(op.batch * (op.m * op.k + op.n * op.k))
    # Operands narrower than half precision still give a half-precision result.
    product = op.batch * op.m * op.n * max(op.dtype.size_bits, DType.BF16.size_bits) / BITS_PER_BYTE
    batch = f"{op.batch} x " if op.batch > 1 else ""
    return KernelQuestion(
        op=op,
        title=f"gemm {batch}{op.m} x {op.n} x {op.k} {op.dtype.value}",
        useful_flops=2.0 * op.batch * op.m * op.n * op.k,
        least_bytes=operands + product,
        steps=_gemm_steps(op),
    )


def _gemm_steps(op: Gemm) -> str:
    """Where the time of GEMMs near *op* jumps."""
    if op.batch * op.m * op.n * op.k < TINY_WORK:
        return (
            "below 2**21 multiply-adds a simple kernel runs that does not split k; "
            "a larger GEMM may take less"
        )
    return (
        "up with whole tiles and waves; down by 6 % at most, where half-precision libraries "
        "change kernels"
    )


def _attention(op: Attention) -> KernelQuestion:
    """How long attention takes; a causal mask halves the useful work."""
    pairs = op.batch * op.heads * op.query_length * op.key_length
    products = 10.0 if op.direction is Pass.BACKWARD else 4.0
    elements = 2 * op.head_dim * (op.heads * op.query_length + op.kv_heads * op.key_length)
    mask = "causal" if op.is_causal else "full"
    return KernelQuestion(
        op=op,
        title=f"attention {op.kernel} {op.direction.value} {mask} {op.batch} x {op.query_length}, "
        f"{op.heads} heads of {op.head_dim}, {op.dtype.value}",
        useful_flops=products * pairs * op.head_dim * (0.5 if op.is_causal else 1.0),
        least_bytes=float(op.batch * elements * op.dtype.size_bytes),
    )


def _memory(op: MemoryBound) -> KernelQuestion:
    """How long a kernel bound by its traffic takes."""
    return KernelQuestion(
        op=op,
        title=f"{op.operator} {op.dtype.value}",
        useful_flops=float(op.flops),
        least_bytes=float(op.read_bytes + op.write_bytes),
        steps="" if op.row_length == 0 else "with the length of rows, not with their number",
    )


def _embedding(op: EmbeddingOp) -> KernelQuestion:
    """How long a lookup, or its update, takes; rows that are drawn again need not be moved."""
    lookup = op.lookup
    table = lookup.tables[0]
    count = f"{len(lookup.tables)} x " if len(lookup.tables) > 1 else ""
    draws = sum(lookup.lookup_count(one) for one in lookup.tables)
    distinct = sum(lookup.distinct_rows(one) for one in lookup.tables)
    row = table.width * table.dtype.size_bytes
    is_backward = op.direction is Pass.BACKWARD
    vectors = lookup.batch_size * len(lookup.tables) * table.width * DType.FP32.size_bytes
    update = f", {lookup.optimizer} by {lookup.kernel}" if is_backward else ""
    return KernelQuestion(
        op=op,
        title=f"embedding {op.direction.value} {count}{table.rows} x {table.width} "
        f"{table.dtype.value}, {table.pooling_factor:g} rows for each of {lookup.batch_size} "
        f"samples, {table.distribution} ({distinct:.4g} different of {draws:.4g}){update}",
        useful_flops=0.0,
        least_bytes=distinct * row * (2 if is_backward else 1) + vectors,
    )


_QUESTIONS: dict[type, Callable[[Any], KernelQuestion]] = {
    Gemm: _gemm,
    Attention: _attention,
    MemoryBound: _memory,
    EmbeddingOp: _embedding,
}
"""What useful work is, by kind of kernel."""


def answer_op(op: Op, device: Device, stack: SoftwareStack) -> KernelAnswer:
    """Price *op* on *device* under *stack*."""
    if type(op) not in _QUESTIONS:
        known = ", ".join(kind.__name__ for kind in _QUESTIONS)
        raise InputError(f"kernel: must be a {known}, got a {type(op).__name__}.")
    question = _QUESTIONS[type(op)](op)
    estimate = price_ops([question.op], device=device, stack=stack)
    duration_ns = float(estimate.duration_ns[0])
    per_s = NS_PER_S / duration_ns
    return KernelAnswer(
        device=device.name,
        stack=stack.name,
        kernel=question.title,
        time_ms=duration_ns / NS_PER_MS,
        interval_ms=(
            float(estimate.low_ns[0]) / NS_PER_MS,
            float(estimate.high_ns[0]) / NS_PER_MS,
        ),
        tflops=question.useful_flops * per_s / 1e12,
        gigabytes_per_s=question.least_bytes * per_s / 1e9,
        bound=Bound(int(estimate.bound[0])).word,
        provenance=Provenance(int(estimate.provenance[0])).word,
        steps=question.steps,
        priced_as=AttentionModel().describe(question.op, device, stack)
        if isinstance(question.op, Attention)
        else None,
        constants=describe_constants(device) if isinstance(question.op, EmbeddingOp) else None,
    )


def report_kernel(answer: KernelAnswer) -> Report:
    """The price of one kernel."""
    low, high = (format_duration(end * NS_PER_MS) for end in answer.interval_ms)
    rate = f"{answer.tflops:.4g} TFLOP/s, " if answer.tflops else ""
    rows = [
        ("time", f"{format_duration(answer.time_ms * NS_PER_MS)}  (90 %: {low} to {high})"),
        ("rate", f"{rate}{answer.gigabytes_per_s:.4g} GB/s"),
        ("bound by", answer.bound),
        ("known by", answer.provenance),
        ("priced as", answer.priced_as or ""),
        ("constants", answer.constants or ""),
        ("steps", answer.steps),
    ]
    shown = [row for row in rows if row[1]]
    return Report(
        f"{answer.kernel} on {answer.device} ({answer.stack})",
        sections=[Section("", [Table((), shown, wraps=(1,))])],
        columns=100,
    )
