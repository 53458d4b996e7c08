"""Sustained load: how much longer kernels take in a training run than in a short benchmark.

Tensor cores that are never idle for long draw more than a board may use, and the chip lowers its
clock. That belongs to the chip and to the watts of its board: `calibrations/sustained.yaml` states
one value by device or by generation for GEMMs, and one for attention. Grouped GEMMs of training
also take longer than the serving kernels that their constants are fitted to, and GEMMs in eight
bits than those in sixteen: one value more each. A value of a generation is that of its *reference*
device; others differ by their power limit. Kernel models price a kernel alone; whole jobs take
these factors on top, whatever software runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Line, Positive
from perfmodel.base.forms import Form, load_document
from perfmodel.costs.calibration_files import find_shipped, power_ratio
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm_features import is_on_vector_units, machine_rates
from perfmodel.graph.ops import Attention, Convolution, Gemm, GroupedGemm, Op
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

LEAST_TENSOR_COLUMNS = 8
"""Output channels per group below which a kernel does not use tensor cores (depthwise)."""
FILE = Path(__file__).parent / "calibrations" / "sustained.yaml"
ARITHMETIC = "arithmetic"
ATTENTION = "attention"
GROUPED = "grouped"
NARROW, GROUPED_NARROW = "narrow", "grouped_narrow"
KINDS = (ARITHMETIC, ATTENTION, GROUPED, NARROW, GROUPED_NARROW)
"""GEMMs on tensor cores, attention, and what grouped GEMMs, those in eight bits, and grouped ones
in eight bits take on top."""


def sustained_factors(
    ops: Sequence[Op], device: Device, stack: SoftwareStack
) -> float | FloatColumn:
    """How much longer *ops*, all of one type, take on *device* in a long run than alone."""
    if isinstance(ops[0], Attention):
        from perfmodel.costs.attention import (
            is_sustained,
        )  # recommendation models have no attention

        slowed = chip_factor(ATTENTION, device)
        return np.where([is_sustained(op, device, stack) for op in ops], slowed, 1.0)  # type: ignore[arg-type]  # all of one type
    if isinstance(ops[0], Gemm | GroupedGemm | Convolution):
        on_top = {kind: of.get(device.generation, 1.0) for kind, of in load_sustained().items()}
        narrow = np.array([op.dtype.size_bits == BITS_PER_BYTE for op in ops])  # type: ignore[union-attr]  # as below
        whole = chip_factor(ARITHMETIC, device) * np.where(narrow, on_top[NARROW], 1.0)
        shares = hot_shares(ops, device, stack)  # type: ignore[arg-type]  # all of one type
        hot: FloatColumn = 1.0 + (whole - 1.0) * shares
        if not isinstance(ops[0], GroupedGemm):
            return hot
        return hot * on_top[GROUPED] * np.where(narrow, on_top[GROUPED_NARROW], 1.0)
    return 1.0


def chip_factor(kind: str, device: Device) -> float:
    """The factor of *kind* for a kernel that does nothing but multiply on *device*, at least 1."""
    stated = load_sustained()[kind]
    if device.name in stated:
        return max(stated[device.name] * power_ratio(device, device.name), 1.0)
    value = stated.get(device.generation)
    if value is None:
        return 1.0
    return max(value * power_ratio(device, reference_of(device)), 1.0)


def hot_shares(
    ops: Sequence[Gemm | GroupedGemm | Convolution], device: Device, stack: SoftwareStack
) -> FloatColumn:
    """What share of the chip's factor each of *ops* takes, from 0 to 1.

    Tensor cores that wait for memory draw less, and so do kernels between them: a narrow model
    has few operations per byte in its GEMMs, and more memory-bound kernels for each. So the
    share is one less the time of a product's bytes over that of its operations, both as the
    datasheet has them. Vector arithmetic is never slowed.
    """
    shipped = find_shipped(device.name) or device
    byte_s = 1.0 / shipped.memory_bandwidth_bytes_per_s
    rate_of: dict[DType, float] = {}
    shares = np.zeros(len(ops))
    for row, op in enumerate(ops):
        if op.dtype not in rate_of:
            dtype = stack.matmul_dtypes.get(op.dtype, op.dtype)
            is_plain = is_on_vector_units(op.dtype, device, stack)
            rate_of[op.dtype] = 0.0 if is_plain else machine_rates(shipped, dtype).peak_flops
        rate = rate_of[op.dtype]
        is_thin = isinstance(op, Convolution) and (
            op.is_depthwise or op.is_serial or op.n < LEAST_TENSOR_COLUMNS
        )
        if rate and not is_thin:
            shares[row] = 1.0 - _least_bytes(op) * byte_s * rate / op.flops
    return np.maximum(shares, 0.0)


def _least_bytes(op: Gemm | GroupedGemm | Convolution) -> float:
    """Operands and result once; sums of narrow formats come out in two bytes."""
    if isinstance(op, Convolution):
        return op.read_bytes + op.write_bytes
    count = op.groups if isinstance(op, GroupedGemm) else op.batch
    width = op.dtype.size_bits / BITS_PER_BYTE
    return count * ((op.m + op.n) * op.k * width + op.m * op.n * max(width, 2.0))


def reference_of(device: Device) -> str | None:
    """The device that the values of *device*'s generation are of."""
    return _load().reference.get(device.generation)


@dataclass(frozen=True, slots=True)
class SustainedFile(Form):
    """`sustained.yaml`: ratios by device or generation, and the *reference* of each generation."""

    source: Line
    date: Line
    licence: Line
    command: Line
    hardware: Line
    reference: Mapping[str, str] = field(default_factory=dict)
    arithmetic: Mapping[str, Positive] = field(default_factory=dict)
    attention: Mapping[str, Positive] = field(default_factory=dict)
    grouped: Mapping[str, Positive] = field(default_factory=dict)
    narrow: Mapping[str, Positive] = field(default_factory=dict)
    grouped_narrow: Mapping[str, Positive] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _load() -> SustainedFile:
    return load_document(FILE, CalibrationError).read(SustainedFile)


def load_sustained() -> Mapping[str, Mapping[str, float]]:
    """The file that comes with perfmodel: ratios by kind, then by device or generation."""
    return {kind: getattr(_load(), kind) for kind in KINDS}
