"""Devices: what one GPU can do, as its datasheet has it, and the files that say so.

All rates are dense (no structured sparsity) and at boost clock. A dtype that the chip cannot
multiply at its own rate is absent, so no rate is used by accident.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from perfmodel.base.documents import find_document, list_documents, load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TopologyError
from perfmodel.base.fields import (
    Bandwidth,
    Count,
    Frequency,
    Line,
    NumberFormat,
    Power,
    Rate,
    Size,
    Switch,
)
from perfmodel.base.forms import Document, Form, load_document

DEVICES = Path(__file__).parent / "devices"


def list_devices() -> tuple[str, ...]:
    """Names of the GPUs that come with the package."""
    return list_documents(DEVICES)


@cache
def list_generations() -> tuple[str, ...]:
    """The architectures of these GPUs, as their files name them."""
    texts = (path.read_text(encoding="utf-8") for path in DEVICES.glob("*.yaml"))
    return tuple(sorted({re.findall(r"^architecture: (\w+)", text, re.M)[0] for text in texts}))


def load_device(name_or_path: str | Path) -> Device:
    """The device in a file, or of a name that comes with the package."""
    return load_device_document(name_or_path).read(Device)


def load_device_document(name_or_path: str | Path) -> Document:
    """What the file of a device says, over what the device says that it is `like`."""

    def find(name: str | Path) -> Path:
        return find_document(name, folder=DEVICES, what="device", error_type=TopologyError)

    path = find(name_or_path)
    document = load_document(path, TopologyError, what="device")
    if "like" not in document.content:
        return document
    base = load_yaml(find(str(document.content["like"])), error_type=TopologyError)
    for key, value in document.content.items():
        is_section = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = {**base[key], **value} if is_section else value
    return Document(str(path), base, TopologyError)


def _iter_catalog() -> Iterator[Device]:
    yield from _catalog()


@cache
def _catalog() -> tuple[Device, ...]:
    return tuple(load_device(name) for name in list_devices())


@cache
def _kin_of(device: Device) -> Device:
    """The device of the catalog whose facts stand in for those that *device* does not state.

    It is the one that the file names as `like`; else one of its generation, else of its
    compute capability, else the one with the nearest rates per multiprocessor.
    """
    if device.like is not None:
        return load_device(device.like)
    return min(
        _catalog(),
        key=lambda one: (
            one.architecture != device.architecture,
            one.compute_capability != device.compute_capability,
            _apart(one, device),
        ),
    )


@cache
def find_twin(device: Device) -> str:
    """The name of the device of the catalog whose constants are its own.

    It has that name, or its facts under another name, as a copy of its file has; else none.
    """
    if device.name in list_devices():
        return device.name
    same = (one.name for one in _catalog() if _exceeds(one, device) and _exceeds(device, one))
    return next(same, "")


@cache
def find_worse(device: Device) -> tuple[Device, ...]:
    """The devices of the catalog that *device* is at least equal to in everything.

    One of the catalog has none, whatever it is called, nor one with constants of its own.
    """
    if device.calibrations or device.architecture == CPU or device in _catalog():
        return ()
    worse = tuple(one for one in _catalog() if _exceeds(device, one))
    return () if any(_exceeds(one, device) for one in worse) else worse


def _exceeds(one: Device, other: Device) -> bool:
    """Whether *one* is at least equal to *other* in everything that its file states."""
    mine, its = _facts(one), _facts(other)
    return one.vendor == other.vendor and all(mine.get(key, 0.0) >= its[key] for key in its)


def _facts(device: Device) -> Mapping[str, float]:
    """The amounts that its file states, of which more is better."""
    l2_bandwidth = device.l2_bandwidth_bytes_per_s
    return {
        "clock": device.clock_hz,
        "SM count": device.sm_count,
        "shared memory": device.multiprocessors.shared_memory_bytes,
        "memory": device.memory_bytes,
        "memory bandwidth": device.memory_bandwidth_bytes_per_s,
        "L2": device.l2_bytes,
        "L2 bandwidth": math.inf if l2_bandwidth is None else l2_bandwidth,
        "vector rate": device.vector_flops,
        "copies": device.pcie_bandwidth_bytes_per_s,
        "power": device.power_w,
        **{f"peak {dtype.value}": rate for dtype, rate in device.peak_flops.items()},
    }


def _apart(one: Device, other: Device) -> float:
    """How differently two chips are built: formats they multiply, and ratios of their rates."""
    formats = len(set(one.peak_flops) ^ set(other.peak_flops))
    return formats + sum(
        abs(math.log(mine / its))
        for mine, its in zip(_build_of(one), _build_of(other), strict=True)
    )


def _build_of(device: Device) -> tuple[float, ...]:
    sm_clocks = device.sm_count * device.clock_hz
    half = device.peak_flops.get(DType.FP16, device.vector_flops)
    shared_bytes = device.multiprocessors.shared_memory_bytes
    return half / sm_clocks, device.vector_flops / sm_clocks, shared_bytes, half / device.power_w


class ChipClass(Enum):
    """Which kernels libraries have for a chip; the value is the word used in files."""

    DATA_CENTRE = "data_centre"
    GRAPHICS = "graphics"


_FORMATS = (DType.FP32, DType.TF32), (DType.FP8, DType.NVFP4)
"""Formats of more than 16 bits, and of less."""
CPU = "cpu"
"""The architecture of processors that are no GPU."""


@cache
def _is_unseen(*facts: str) -> bool:
    name, *generation = facts
    # Most devices are shipped ones: the whole catalog is not read for them.
    likely = [load_device(name)] if name in list_devices() else []
    return generation[0] != CPU and not any(
        [one.architecture, one.compute_capability] == generation
        for one in chain(likely, _iter_catalog())
    )


class HostLinkKind(Enum):
    """How a GPU is wired to its CPU; the value is the word used in files."""

    PCIE = "pcie"
    NVLINK_C2C = "nvlink_c2c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced(Form):
    """A document that names where its figures are from; all that come with the package do."""

    source: Line = "its author"
    date: Line = ""
    licence: Line = ""

    @property
    def origin(self) -> str:
        """Source, date and licence in one line."""
        remarks = "; ".join(part for part in (self.date, self.licence) if part)
        return f"{self.source} ({remarks})" if remarks else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink(Form):
    """The wire from a GPU to its CPU.

    *bandwidth_bytes_per_s* is the datasheet's, one way; *effective_bytes_per_s*
    what a large copy from pinned memory reaches.
    """

    kind: HostLinkKind
    generation: Count = 1
    bandwidth_bytes_per_s: Bandwidth
    effective_bytes_per_s: Bandwidth

    @property
    def efficiency(self) -> float:
        """The share of its rate that copies reach."""
        return self.effective_bytes_per_s / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessors(Form):
    """What bounds how many blocks of threads run at once."""

    count: Count
    max_threads: Count
    shared_memory_bytes: Size
    warp_threads: Count = 32


def _state_fp32(peak_flops: Mapping[DType, float]) -> Mapping[DType, float]:
    if DType.FP32 not in peak_flops:
        raise ValueError("must state fp32")
    return peak_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Sourced):
    """One GPU.

    *peak_flops* is the rate a GEMM of that dtype runs at: tensor cores where the chip has them for
    it. FP32 is the plain FP32 rate, TF32 the tensor cores fed with FP32 storage. *vector_flops* is
    the FP32 rate without tensor cores, fused multiply-add counted as two. *power_w* is the board's
    limit; cost models decide what clock it sustains. *calibrations* are files of constants that
    were measured on it; a device file does not name them. *has_persistent_kernels* says whether
    kernels of libraries stay resident and share the last wave. What a file leaves out of a
    generation's facts is that of the device it is *like*, or of the nearest in the catalog.
    """

    sections = ("memory", "l2")

    name: Line
    description: Line = ""
    vendor: Line
    architecture: Line
    compute_capability: Annotated[Line, Field(pattern=r"^(\d{1,2}\.\d|gfx\w+|cpu)$")]
    like: Line | None = None
    kernel_class: ChipClass | None = None
    has_persistent_kernels: Annotated[Switch | None, Field(alias="persistent_kernels")] = None
    multiprocessors: Multiprocessors
    clock_hz: Frequency
    memory_bytes: Annotated[Size, Field(alias="memory.size")]
    memory_bandwidth_bytes_per_s: Annotated[Bandwidth, Field(alias="memory.bandwidth")]
    l2_bytes: Annotated[Size, Field(alias="l2.size")]
    l2_bandwidth_bytes_per_s: Annotated[Bandwidth | None, Field(alias="l2.bandwidth")] = None
    peak_flops: Annotated[Mapping[NumberFormat, Rate], AfterValidator(_state_fp32)] = field(
        hash=False
    )
    vector_flops: Annotated[Rate, Field(alias="vector_fp32")]
    host_link: HostLink
    power_w: Power
    calibrations: Annotated[tuple[str, ...], Field(max_length=0)] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "description", self.description or self.name)
        wrong = [f"{what} {value}" for what, value in _facts(self).items() if not value > 0]
        if wrong:
            raise TopologyError(
                f"device {self.name}: every quantity must be above zero, got {', '.join(wrong)}. "
                "Leave out what the chip does not have."
            )

        if self.kernel_class is None and self.architecture != CPU:
            object.__setattr__(self, "kernel_class", _kin_of(self).kernel_class)
        if self.has_persistent_kernels is None and self.architecture != CPU:
            shares = _kin_of(self).has_persistent_kernels
            object.__setattr__(self, "has_persistent_kernels", shares)

    @property
    def is_unseen(self) -> bool:
        """Whether no device of the catalog has its generation and compute capability."""
        return _is_unseen(self.name, self.architecture, self.compute_capability)

    @property
    def generation(self) -> str:
        """The architecture whose constants price it: its own, or that of the nearest device."""
        return _kin_of(self).architecture if self.is_unseen else self.architecture

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors, or compute units."""
        return self.multiprocessors.count

    @property
    def half_precision_flops(self) -> float | None:
        """The better rate of the two formats of 16 bits, where it has one."""
        rates = (self.peak_flops.get(one) for one in (DType.BF16, DType.FP16))
        return max((rate for rate in rates if rate), default=None)

    @property
    def format_gains(self) -> tuple[float, ...]:
        """How many times faster GEMMs are from one stated number format to the next smaller one."""
        wide, small = ([self.peak_flops.get(one) for one in pair] for pair in _FORMATS)
        rates = [rate for rate in (*wide, self.half_precision_flops, *small) if rate]
        return tuple(after / before for before, after in pairwise(rates))

    @property
    def pcie_bandwidth_bytes_per_s(self) -> float:
        """What a large copy between pinned host memory and the GPU reaches, one way."""
        return self.host_link.effective_bytes_per_s

    def supports(self, dtype: DType) -> bool:
        """Whether a GEMM of *dtype* has its own rate."""
        return dtype in self.peak_flops
