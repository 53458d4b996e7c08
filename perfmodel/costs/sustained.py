"""Sustained load: how much longer kernels take in a long run than in a short benchmark.

A chip under long load lowers its clocks, and its memory never serves one kernel alone. Both
belong to the chip: `calibrations/sustained.yaml` states them by device or by generation. A value
of a generation is that of its *reference* device; others differ by the power they may draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Line, Positive
from perfmodel.base.forms import Form, load_document
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device, list_devices, load_device

FILE = Path(__file__).parent / "calibrations" / "sustained.yaml"
ARITHMETIC = "arithmetic"
KINDS = (ARITHMETIC, "attention", "memory")
"""Arithmetic on tensor cores, and whole kernels of two families."""
_PLAIN = (DType.FP32, DType.FP64)


def arithmetic_slowdown(device: Device, stack: SoftwareStack, dtype: DType) -> float:
    """How much longer arithmetic in *dtype* takes under *stack*, at least 1.

    Plain arithmetic does not draw the power that tensor cores do.
    """
    if not stack.loads_long or dtype in _PLAIN:
        return 1.0
    is_own = device.name in load_sustained()[ARITHMETIC]
    reference = device.name if is_own else reference_of(device)
    return max(of_chip(ARITHMETIC, device) * power_ratio(device, reference), 1.0)


def kernel_ratio(family: str, device: Device, stack: SoftwareStack) -> float:
    """How much longer kernels of *family* take on *device* under *stack* than alone."""
    if not stack.loads_long or family not in KINDS:
        return 1.0
    return of_chip(family, device)


def of_chip(kind: str, device: Device) -> float:
    """What the file states of *kind* for *device*, or for its generation."""
    values = load_sustained()[kind]
    return values.get(device.name, values.get(device.architecture.value, 1.0))


def power_ratio(device: Device, reference: str | None) -> float:
    """How much slower *device* computes than the board of *reference*, for want of power.

    Dynamic power goes with clock and the square of voltage, which goes with the clock: a chip with
    less power for its peak rate loses the cube root of what it lacks.
    """
    wanted = None if reference is None else _power_per_rate(reference)
    if wanted is None or DType.FP16 not in device.peak_flops:
        return 1.0
    return float((wanted * device.peak_flops[DType.FP16] / device.power_w) ** (1 / 3))


def reference_of(device: Device) -> str | None:
    """The device that the values of *device*'s generation are of."""
    return _load().reference.get(device.architecture.value)


@lru_cache(maxsize=32)
def _power_per_rate(name: str) -> float | None:
    """Watts that the board of device *name* has for an operation a second on tensor cores."""
    if name not in list_devices():
        return None
    device = load_device(name)
    rate = device.peak_flops.get(DType.FP16)
    return None if rate is None else device.power_w / rate


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
    memory: Mapping[str, Positive] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _load() -> SustainedFile:
    return load_document(FILE, CalibrationError).read(SustainedFile)


def load_sustained() -> Mapping[str, Mapping[str, float]]:
    """The file that comes with perfmodel: ratios by kind, then by device or generation."""
    return {kind: getattr(_load(), kind) for kind in KINDS}
