"""The table of cost models, and the models that no measured table calibrates.

Those are convolutions (priced as GEMMs), copies, host work and stated durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.anchoring import adjust_ops
from perfmodel.costs.embedding import price_embeddings
from perfmodel.costs.estimates import (
    Bound,
    Estimates,
    FloatColumn,
    KernelModel,
    PlainModel,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.gemm_features import gemm_shapes, is_on_vector_units, machine_rates
from perfmodel.costs.gemm_physics import predict_arithmetic_ns
from perfmodel.costs.memory import FLOOR_NS, MemoryModel, soft_maximum
from perfmodel.costs.sustained import LEAST_TENSOR_COLUMNS, sustained_factors
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    CopyRoute,
    EmbeddingOp,
    Fixed,
    Gemm,
    GroupedGemm,
    HostSpan,
    HostWork,
    MemoryBound,
    Op,
    Pass,
    Unmeasured,
)
from perfmodel.stacks.capabilities import Execution
from perfmodel.stacks.stack import PLAIN_GEMM, SoftwareStack
from topologies import Device, HostLinkKind
from topologies.device import find_worse

DIRECT_INSTRUCTIONS = 8
"""Instructions per multiply-add outside tensor cores: load, address, convert, multiply, and as many
for bounds and loops."""
CHAIN_CLOCKS = 2 * DIRECT_INSTRUCTIONS * 4 + 33
"""Clocks from one multiply-add of a thread to its next one if all depend on each other: 4 for each
instruction of both operands, and one load from the L1 cache (measured: 28 to 34)."""
POSITION_INSTRUCTIONS = 190
"""Instructions per position and channel, whatever the window: its place by divisions, the bounds of
the window, the store. Least squares over two published scripts; each alone says 100 and 225."""
ISSUED_PER_CLOCK = 128
"""Instructions of threads that a multiprocessor issues per clock: four schedulers, 32 threads."""
MEMORY_RATIO = 0.85
"""Share of memory bandwidth that streaming kernels reach."""
CONVOLUTION_SIGMA = 0.15
"""No table of convolutions was measured: the constants are those of GEMMs. Whole iterations of
which they are half were off by 9 %."""


def price_convolutions(
    ops: Sequence[Convolution], device: Device, stack: SoftwareStack
) -> Estimates:
    """Predict convolutions and their gradients by their implicit GEMM.

    Arithmetic is that of the GEMM, with its tiles and waves; depthwise and serial ones have none
    on tensor cores. Traffic is the operands and the output once: the unrolled input is never
    written to memory. Conversions of layouts are kernels of their own.
    """
    gemm_model, gemms = GemmModel(), [op.product for op in ops]
    arithmetic_ns = np.empty(len(ops), dtype=np.float64)
    for stored, rows in rows_of_kinds(gemm.dtype for gemm in gemms).items():
        dtype = stack.matmul_dtypes.get(stored, stored)
        constants = gemm_model.calibration(device, dtype).constants
        shapes = gemm_shapes([gemms[row] for row in rows])
        rates = machine_rates(device, dtype)
        arithmetic_ns[list(rows)] = predict_arithmetic_ns(shapes, rates, constants)
    vector_ns = (
        FLOOR_NS + np.array([float(op.flops) for op in ops]) * NS_PER_S / device.vector_flops
    )
    is_thin = np.array([op.n < LEAST_TENSOR_COLUMNS for op in ops])
    arithmetic_ns = np.where(is_thin, vector_ns, arithmetic_ns)
    is_direct = np.array([op.is_depthwise or op.is_serial for op in ops])
    arithmetic_ns = np.where(is_direct, _direct_ns(ops, device), arithmetic_ns)
    moved_bytes = np.array([op.read_bytes + op.write_bytes for op in ops], dtype=np.float64)
    memory_ns = moved_bytes * NS_PER_S / (MEMORY_RATIO * device.memory_bandwidth_bytes_per_s)
    return build_estimates(
        soft_maximum(arithmetic_ns, FLOOR_NS + memory_ns),
        relative_sigma=CONVOLUTION_SIGMA,
        provenance=Provenance.EXTRAPOLATED,
        bound=np.where(memory_ns > arithmetic_ns, Bound.MEMORY, Bound.COMPUTE),
    )


def _direct_ns(ops: Sequence[Convolution], device: Device) -> FloatColumn:
    """How long schedulers take to issue convolutions without tensor cores.

    Every position of a window is loaded, addressed and converted for one multiply-add. The
    gradient of the weights needs two operands for each, and sums up over all positions. If one
    thread does that, few weights leave most of the chip idle, and its chain takes the time.
    """
    # The gradient of weights is a sum over positions, which are many.
    is_of_weight = np.array([op.direction is Pass.BACKWARD and op.k > op.m for op in ops])
    issued_per_s = device.sm_count * device.clock_hz * ISSUED_PER_CLOCK
    steps = np.array([op.flops / 2 for op in ops])
    positions = np.array([max(op.m, op.k) * op.groups for op in ops])
    issued = DIRECT_INSTRUCTIONS * (1 + is_of_weight) * steps + POSITION_INSTRUCTIONS * positions
    chain_s = np.array([op.k * op.is_serial for op in ops]) * CHAIN_CLOCKS / device.clock_hz
    return np.asarray(FLOOR_NS + np.maximum(issued / issued_per_s, chain_s) * NS_PER_S)


COPY_FLOOR_NS = 2_000.0
PAGEABLE_RATIO = 0.5
"""A pageable copy goes through a pinned staging buffer, which halves its bandwidth."""
DEVICE_EFFICIENCY = 0.85
HOST_PASS_BYTES_PER_S = {HostLinkKind.NVLINK_C2C: 118e9}
PCIE_HOST_PASS_BYTES_PER_S = 30e9
"""What a GPU's share of the host's cores moves when all GPUs of the host have such a pass. Assumed:
0.46 of the memory's bandwidth, about what the authors of ZeRO-Offload report for their CPU-Adam on
two sockets. Two sockets with 205 or 307 GB/s each then give each of eight GPUs 24 or 35 GB/s, and a
Grace with 512 GB/s gives each of two GPUs 118. No offloaded run was compared."""


def price_copies(ops: Sequence[Copy], device: Device, _stack: SoftwareStack) -> Estimates:
    """Predict copies: a floor plus bytes over the bandwidth of the slower memory or bus."""

    def bandwidth_bytes_per_s(op: Copy) -> float:
        if op.route is CopyRoute.DEVICE_TO_DEVICE:
            # A copy inside a device reads and writes every byte.
            return DEVICE_EFFICIENCY * device.memory_bandwidth_bytes_per_s / 2
        if op.route is CopyRoute.HOST_TO_HOST:
            return HOST_PASS_BYTES_PER_S.get(device.host_link.kind, PCIE_HOST_PASS_BYTES_PER_S)
        return (1.0 if op.is_pinned else PAGEABLE_RATIO) * device.pcie_bandwidth_bytes_per_s

    sizes = np.array([op.size_bytes for op in ops], dtype=np.float64)
    moved_ns = sizes * NS_PER_S / np.array([bandwidth_bytes_per_s(op) for op in ops])
    return build_estimates(
        COPY_FLOOR_NS + moved_ns,
        relative_sigma=0.2,
        provenance=Provenance.ANALYTIC,
        bound=np.where(moved_ns > COPY_FLOOR_NS, Bound.LINK, Bound.LATENCY),
    )


HOST_SIGMA = 0.15
"""Relative: hosts of one stack differ by clock and generation."""


def price_host(
    ops: Sequence[HostWork | HostSpan], _device: Device, stack: SoftwareStack
) -> Estimates:
    """Look host work up in *stack*, whatever the GPU; a span is the sum of its parts.

    An operator that the stack does not list costs its default and is tagged assumed.
    """
    is_captured = stack.execution is Execution.CUDA_GRAPH
    known = Provenance.ANALYTIC if is_captured else Provenance.MEASURED
    duration_ns = np.empty(len(ops), dtype=np.float64)
    provenance = np.empty(len(ops), dtype=np.int8)
    for row, op in enumerate(ops):
        parts = op.parts if isinstance(op, HostSpan) else (op,)
        times = [stack.host.time(part.operator, part.part) for part in parts]
        duration_ns[row] = sum(time.duration_ns for time in times)
        assumed_ns = sum(time.duration_ns for time in times if time.is_assumed)
        # A span is as well known as the larger part of its time.
        is_assumed = assumed_ns > duration_ns[row] / 2 and not is_captured
        provenance[row] = Provenance.ASSUMED if is_assumed else known
    return build_estimates(
        duration_ns,
        relative_sigma=HOST_SIGMA,
        provenance=provenance,
        bound=Bound.HOST,
    )


def price_fixed(ops: Sequence[Fixed], _device: Device, _stack: SoftwareStack) -> Estimates:
    """The stated durations of *ops*."""
    return build_estimates(
        np.array([op.duration_ns for op in ops], dtype=np.float64),
        relative_sigma=0.0,
        provenance=np.array([op.provenance for op in ops], dtype=np.int8),
        bound=Bound.UNKNOWN,
    )


def price_attention(ops: Sequence[Attention], device: Device, stack: SoftwareStack) -> Estimates:
    """Predict attention, forward and backward."""
    from perfmodel.costs.attention import AttentionModel  # recommendation models have none

    return AttentionModel().price(ops, device, stack)


def price_experts(ops: Sequence[GroupedGemm], device: Device, stack: SoftwareStack) -> Estimates:
    """Predict the products of experts."""
    from perfmodel.costs.experts import price_grouped_gemms  # few models have any

    return price_grouped_gemms(ops, device, stack)


UNMEASURED_SHARE, UNMEASURED_SIGMA = 0.3, 0.4
"""Of the peak that tensor cores reach in small products between loads. Assumed: a third of what
large GEMMs reach, because operands are tiles of a chunk."""
CHAIN_STEP_NS = 1_500.0
"""One step of a chain: three tiles loaded, two products and a store by one multiprocessor. Assumed:
0.5 us each for loads that wait for memory, for the products, and for the store."""


def price_unmeasured(ops: Sequence[Unmeasured], device: Device, stack: SoftwareStack) -> Estimates:
    """Predict kernels by physics alone: arithmetic, traffic or a chain of steps, on top of a floor.

    Leaves out: what a kernel of its own would reach. The uncertainty is that of a guess.
    """
    rates = [machine_rates(device, stack.matmul_dtypes.get(op.dtype, op.dtype)) for op in ops]
    peaks = UNMEASURED_SHARE * np.array([one.peak_flops for one in rates])
    compute_ns = np.array([op.flops for op in ops], dtype=np.float64) * NS_PER_S / peaks
    moved_bytes = np.array([op.read_bytes + op.write_bytes for op in ops], dtype=np.float64)
    memory_ns = moved_bytes * NS_PER_S / (MEMORY_RATIO * device.memory_bandwidth_bytes_per_s)
    chain_ns = np.array([op.steps for op in ops]) * CHAIN_STEP_NS
    return build_estimates(
        FLOOR_NS + soft_maximum(compute_ns, memory_ns, chain_ns),
        relative_sigma=UNMEASURED_SIGMA,
        provenance=Provenance.ASSUMED,
        bound=np.where(memory_ns > compute_ns, Bound.MEMORY, Bound.COMPUTE),
    )


MODELS: dict[type[object], KernelModel] = {
    Gemm: GemmModel(),
    Convolution: PlainModel("gemm", price_convolutions),
    GroupedGemm: PlainModel("gemm", price_experts),
    Attention: PlainModel("attention", price_attention),
    MemoryBound: MemoryModel(),
    Unmeasured: PlainModel("attention", price_unmeasured),
    EmbeddingOp: PlainModel("embedding", price_embeddings),
    Copy: PlainModel("copy", price_copies),
    HostWork: PlainModel("host", price_host),
    HostSpan: PlainModel("host", price_host),
    Fixed: PlainModel("fixed", price_fixed),
}

COMMUNICATION_FAMILY = "communication"

FAMILIES: tuple[str, ...] = (
    *sorted({model.family for model in MODELS.values()}),
    COMMUNICATION_FAMILY,
)
"""Every family, in the order of its code."""


def family_of(op_type: type[object]) -> str:
    """The family that ops of *op_type* err with."""
    return COMMUNICATION_FAMILY if op_type is Communication else MODELS[op_type].family


UNSEEN_SIGMA = 0.15
"""Added uncertainty of a generation of GPUs that none of the constants was fitted on."""


def price_ops(
    ops: Sequence[Op], *, device: Device, stack: SoftwareStack, is_alone: bool = False
) -> Estimates:
    """Predict *ops*, of any types except Communication, in order.

    The price of a Communication depends on its group: see `price_job`. Ops are those of a long
    run; *is_alone* means that each is timed for itself, on a chip that is not under load. A device
    that the catalog lacks is never slower than one there that it equals or exceeds in everything.
    """
    found = _price_on(ops, device, stack, is_alone=is_alone)
    for worse in find_worse(device) if ops else ():
        formats = set(device.peak_flops) - set(worse.peak_flops)
        rows = [row for row, op in enumerate(ops) if getattr(op, "dtype", None) not in formats]
        most = _price_on([ops[row] for row in rows], worse, stack, is_alone=is_alone)
        durations_ns = found.duration_ns.copy()
        durations_ns[rows] = np.minimum(durations_ns[rows], most.duration_ns)
        found = replace(found, duration_ns=durations_ns)
    return adjust_ops(found, ops, device, stack)


def _price_on(
    ops: Sequence[Op], device: Device, stack: SoftwareStack, *, is_alone: bool
) -> Estimates:
    architecture = device.generation

    def price(op_type: type[object], chosen: Sequence[Op]) -> Estimates:
        priced, family = MODELS[op_type].price(chosen, device, stack), family_of(op_type)
        ratio: float | FloatColumn = stack.time_ratio(family, architecture)
        if op_type is Gemm and PLAIN_GEMM in stack.kernel_time_ratio:
            plain = stack.time_ratio(PLAIN_GEMM, architecture)
            is_plain = [is_on_vector_units(op.dtype, device, stack) for op in chosen]  # type: ignore[union-attr]  # all of one type
            ratio = np.where(is_plain, plain, ratio)
        if not is_alone:
            ratio = ratio * sustained_factors(chosen, device, stack)
        if op_type in (GroupedGemm, MemoryBound):
            ratio = ratio * np.array([op.launches for op in chosen])  # type: ignore[union-attr]  # as above
        if device.is_unseen:
            wider = np.hypot(priced.relative_sigma, UNSEEN_SIGMA)
            priced = replace(priced, relative_sigma=wider)
        is_stretched = np.any(ratio != 1)
        return replace(priced, duration_ns=priced.duration_ns * ratio) if is_stretched else priced

    return price_by_kind(ops, rows_of_kinds(type(op) for op in ops), price)
