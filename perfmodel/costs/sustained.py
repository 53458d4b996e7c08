"""Sustained load: how much longer kernels take in a long run than in a short benchmark.

A chip under long load lowers its clocks, and its memory never serves one kernel alone. Both
belong to the chip: `calibrations/sustained.yaml` states them by device or by generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from perfmodel.base.documents import FaultList, load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device, list_devices, load_device

FILE = Path(__file__).parent / "calibrations" / "sustained.yaml"
ARITHMETIC = "arithmetic"
KINDS = (ARITHMETIC, "attention", "memory")
"""Arithmetic on tensor cores, and whole kernels of two families."""
_PLAIN = (DType.FP32, DType.FP64)
_HEADING = {"source", "date", "licence", "command", "hardware"}


def arithmetic_slowdown(device: Device, stack: SoftwareStack, dtype: DType) -> float:
    """How much longer arithmetic in *dtype* takes under *stack*, at least 1.

    Plain arithmetic does not draw the power that tensor cores do. A limit below the board's own
    takes as much as the cube root of what it leaves: dynamic power goes with clock and voltage.
    """
    if not stack.loads_long or dtype in _PLAIN:
        return 1.0
    return max(_of_chip(ARITHMETIC, device) * _limited(device), 1.0)


def kernel_ratio(family: str, device: Device, stack: SoftwareStack) -> float:
    """How much longer kernels of *family* take on *device* under *stack* than alone."""
    if not stack.loads_long or family not in KINDS:
        return 1.0
    return _of_chip(family, device)


def _of_chip(kind: str, device: Device) -> float:
    values = load_sustained()[kind]
    return values.get(device.name, values.get(device.architecture.value, 1.0))


@lru_cache(maxsize=32)
def _board_power_w(name: str) -> float | None:
    return load_device(name).power_w if name in list_devices() else None


def _limited(device: Device) -> float:
    board_w = _board_power_w(device.name)
    if board_w is None or device.power_w >= board_w:
        return 1.0
    return float((board_w / device.power_w) ** (1 / 3))


@lru_cache(maxsize=1)
def load_sustained() -> Mapping[str, Mapping[str, float]]:
    """The file that comes with perfmodel: ratios by kind, then by device or generation."""
    content = load_yaml(FILE, error_type=CalibrationError)
    faults = FaultList(FILE.name)
    for key in sorted(set(content) - _HEADING - set(KINDS)):
        faults.add(key, f"unknown key; known: {', '.join((*sorted(_HEADING), *KINDS))}")
    for kind in KINDS:
        for chip, value in content.get(kind, {}).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                faults.add(f"{kind}.{chip}", f"must be a number above 0, got {value!r}")
    faults.check(CalibrationError)
    return {kind: content.get(kind, {}) for kind in KINDS}
