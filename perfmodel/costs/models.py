"""The table of cost models: which one prices which type of op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.convolution import ConvolutionModel
from perfmodel.costs.copies import CopyModel
from perfmodel.costs.embedding import EmbeddingModel
from perfmodel.costs.estimates import Estimates, concatenate_estimates, scatter_estimates
from perfmodel.costs.fixed import FixedModel
from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.host import HostModel
from perfmodel.costs.kernel_model import KernelModel
from perfmodel.costs.memory import MemoryModel
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    HostSpan,
    HostWork,
    MemoryBound,
    Op,
)
from topologies import Device

MODELS: dict[type[object], KernelModel] = {
    Gemm: GemmModel(),
    Convolution: ConvolutionModel(),
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
    rows_of_type: dict[type[object], list[int]] = defaultdict(list)
    for row, op in enumerate(ops):
        rows_of_type[type(op)].append(row)
    parts = [
        _price_type(op_type, [ops[row] for row in rows], device, stack)
        for op_type, rows in rows_of_type.items()
    ]
    if len(parts) == 1:
        return parts[0]
    places = [np.array(rows, dtype=np.intp) for rows in rows_of_type.values()]
    return scatter_estimates(parts, places) if parts else concatenate_estimates(())


def _price_type(
    op_type: type[object], ops: Sequence[Op], device: Device, stack: SoftwareStack
) -> Estimates:
    priced = MODELS[op_type].price(ops, device, stack)
    ratio = stack.time_ratio(family_of(op_type), device.architecture.value)
    if ratio == 1:
        return priced
    # A ratio fitted to runs is as unsure as the profile it stands in.
    sigma = np.hypot(priced.relative_sigma, stack.relative_sigma)
    return replace(priced, duration_ns=priced.duration_ns * ratio, relative_sigma=sigma)
