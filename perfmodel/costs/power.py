"""Power: what a board with fewer watts for its rate loses."""

from __future__ import annotations

from functools import lru_cache

from perfmodel.base.dtypes import DType
from topologies import Device, list_devices, load_device


def power_ratio(device: Device, reference: str | None) -> float:
    """How much slower *device* computes than the board of *reference*, for lack of power.

    Dynamic power is proportional to clock and voltage squared, and voltage to clock: a chip with
    less power per peak rate is slower by the cube root of the ratio. The rate is that of the
    catalog: a chip with another peak than there is taken to need no more power, and so is never
    slower for a higher one.
    """
    wanted = None if reference is None else find_shipped(reference)
    rate = (find_shipped(device.name) or device).peak_flops.get(DType.FP16)
    if wanted is None or rate is None or DType.FP16 not in wanted.peak_flops:
        return 1.0
    wanted_w = wanted.power_w / wanted.peak_flops[DType.FP16] * rate
    return float((wanted_w / device.power_w) ** (1 / 3))


@lru_cache(maxsize=32)
def find_shipped(name: str) -> Device | None:
    """The device *name* as the catalog has it."""
    return load_device(name) if name in list_devices() else None
