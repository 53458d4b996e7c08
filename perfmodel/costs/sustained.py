"""Sustained load: how much longer kernels take in a long run than in a short benchmark.

A chip under sustained load lowers its clocks, and its memory never serves one kernel alone. Both
belong to the chip: `calibrations/sustained.yaml` states them by device or by generation. A value
of a generation is that of its *reference* device; others differ by their power limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

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

    Plain arithmetic draws less power than tensor cores.
    """
    if not stack.loads_long or dtype in _PLAIN:
        return 1.0
    is_own = device.name in load_sustained()[ARITHMETIC]
    reference = device.name if is_own else reference_of(device)
    return max(of_chip(ARITHMETIC, device) * power_ratio(device, reference), 1.0)


def kernel_ratio(family: str, device: Device, stack: SoftwareStack) -> float:
    """How much longer kernels of *family* take on *device* under *stack* than alone."""
    return of_chip(family, device) if stack.loads_long and family in KINDS else 1.0


def of_chip(kind: str, device: Device) -> float:
    """The stated ratio of *kind* for *device*, or for its generation."""
    values = load_sustained()[kind]
    return values.get(device.name, values.get(device.architecture.value, 1.0))


def power_ratio(device: Device, reference: str | None) -> float:
    """How much slower *device* computes than the board of *reference*, for lack of power.

    Dynamic power is proportional to clock and voltage squared, and voltage to clock: a chip with
    less power per peak rate is slower by the cube root of the ratio. The rate is that of the
    catalog: a chip with another peak than there is taken to need no more power, and so is never
    slower for a higher one.
    """
    wanted = None if reference is None else _shipped(reference)
    if wanted is None or DType.FP16 not in device.peak_flops:
        return 1.0
    shipped = _shipped(device.name)
    rate = device.peak_flops[DType.FP16] if shipped is None else shipped.rate
    return float((wanted.power_w / wanted.rate * rate / device.power_w) ** (1 / 3))


def reference_of(device: Device) -> str | None:
    """The device that the values of *device*'s generation are of."""
    return _load().reference.get(device.architecture.value)


class _Board(NamedTuple):
    """Watts, and operations per second on tensor cores."""

    power_w: float
    rate: float


@lru_cache(maxsize=32)
def _shipped(name: str) -> _Board | None:
    """The board of device *name* of the catalog."""
    if name not in list_devices():
        return None
    device = load_device(name)
    rate = device.peak_flops.get(DType.FP16)
    return None if rate is None else _Board(device.power_w, rate)


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
