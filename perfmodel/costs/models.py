"""The table of cost models: which one prices which type of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.attention.model import AttentionModel
from perfmodel.costs.convolution import ConvolutionModel
from perfmodel.costs.embedding.model import EmbeddingModel
from perfmodel.costs.estimates import (
    Bound,
    Estimates,
    FloatColumn,
    KernelModel,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.costs.experts.model import GroupedGemmModel
from perfmodel.costs.gemm.model import GemmModel, is_on_vector_units
from perfmodel.costs.memory.model import MemoryModel
from perfmodel.costs.sustained import kernel_ratio
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
)
from perfmodel.stacks.stack import PLAIN_GEMM, Execution, SoftwareStack
from topologies import Device

# A pageable copy goes through a pinned staging buffer, so it reaches about half
# the bandwidth of the bus.


COPY_FLOOR_NS = 2_000.0


PAGEABLE_RATIO = 0.5
DEVICE_EFFICIENCY = 0.85


class CopyModel:
    """Prices copies: a floor plus bytes over the bandwidth of the slower memory or bus."""

    family = "copy"

    def price(self, ops: Sequence[Copy], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device*; *stack* does not matter."""
        del stack
        sizes = np.array([op.size_bytes for op in ops], dtype=np.float64)
        bandwidth = np.array([_bandwidth_bytes_per_s(op, device) for op in ops])
        return build_estimates(
            COPY_FLOOR_NS + sizes * NS_PER_S / bandwidth,
            relative_sigma=0.2,
            provenance=Provenance.ANALYTIC,
            bound=np.where(sizes * NS_PER_S / bandwidth > COPY_FLOOR_NS, Bound.LINK, Bound.LATENCY),
        )


def _bandwidth_bytes_per_s(op: Copy, device: Device) -> float:
    if op.route is CopyRoute.DEVICE_TO_DEVICE:
        # A copy inside a device reads and writes every byte.
        return DEVICE_EFFICIENCY * device.memory_bandwidth_bytes_per_s / 2
    ratio = 1.0 if op.is_pinned else PAGEABLE_RATIO
    return ratio * device.pcie_bandwidth_bytes_per_s


# Host times belong to the software stack, not to the GPU. An operator the stack
# does not know costs its default and is tagged assumed; it is never free.


HOST_SIGMA = 0.15
"""Relative: hosts of one stack differ by clock and generation."""


class HostModel:
    """Prices host work by table."""

    family = "host"

    def price(
        self, ops: Sequence[HostWork | HostSpan], device: Device, stack: SoftwareStack
    ) -> Estimates:
        """Look *ops* up in *stack*; *device* does not matter. A span is the sum of its parts."""
        del device
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


class FixedModel:
    """Hands durations through."""

    family = "fixed"

    def price(self, ops: Sequence[Fixed], device: Device, stack: SoftwareStack) -> Estimates:
        """The stated durations of *ops*."""
        del device, stack
        return build_estimates(
            np.array([op.duration_ns for op in ops], dtype=np.float64),
            relative_sigma=0.0,
            provenance=np.array([op.provenance for op in ops], dtype=np.int8),
            bound=Bound.UNKNOWN,
        )


MODELS: dict[type[object], KernelModel] = {
    Gemm: GemmModel(),
    Convolution: ConvolutionModel(),
    GroupedGemm: GroupedGemmModel(),
    Attention: AttentionModel(),
    MemoryBound: MemoryModel(),
    EmbeddingOp: EmbeddingModel(),
    Copy: CopyModel(),
    HostWork: HostModel(),
    HostSpan: HostModel(),
    Fixed: FixedModel(),
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


def price_ops(ops: Sequence[Op], *, device: Device, stack: SoftwareStack) -> Estimates:
    """Predict *ops*, of any types except Communication, in order.

    A Communication has no price without the group that carries it out; ask
    `price_job`.
    """
    return price_by_kind(
        ops,
        rows_of_kinds(type(op) for op in ops),
        lambda op_type, chosen: _price_type(op_type, chosen, device, stack),
    )


def _price_type(
    op_type: type[object], ops: Sequence[Op], device: Device, stack: SoftwareStack
) -> Estimates:
    priced = MODELS[op_type].price(ops, device, stack)
    family = family_of(op_type)
    architecture = device.architecture.value
    ratio: float | FloatColumn = stack.time_ratio(family, architecture)
    if op_type is Gemm and PLAIN_GEMM in stack.kernel_time_ratio:
        plain = stack.time_ratio(PLAIN_GEMM, architecture)
        is_plain = [is_on_vector_units(op.dtype, device, stack) for op in ops]  # type: ignore[union-attr]  # all of one type
        ratio = np.where(is_plain, plain, ratio)
    ratio = ratio * kernel_ratio(family, device, stack)
    is_stretched = np.any(ratio != 1)
    return replace(priced, duration_ns=priced.duration_ns * ratio) if is_stretched else priced
