"""Devices: what one GPU can do, as its datasheet has it, and the files that say so.

All rates are dense (no structured sparsity) and at boost clock. A dtype that the chip cannot
multiply at its own rate is absent, so no rate is used by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from perfmodel.base.documents import find_document, list_documents
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
)
from perfmodel.base.forms import Form, load_document

DEVICES = Path(__file__).parent / "devices"


def list_devices() -> tuple[str, ...]:
    """Names of the GPUs that come with the package."""
    return list_documents(DEVICES)


def load_device(name_or_path: str | Path) -> Device:
    """The device in a file, or of a name that comes with the package."""
    path = find_document(name_or_path, folder=DEVICES, what="device", error_type=TopologyError)
    return load_document(path, TopologyError, what="device").read(Device)


class Architecture(Enum):
    """A GPU generation; the value is the word used in files."""

    PASCAL = "pascal"
    VOLTA = "volta"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA3 = "cdna3"
    CPU = "cpu"


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
    were measured on it; a device file does not name them.
    """

    sections = ("memory", "l2")

    name: Line
    description: Line = ""
    vendor: Line
    architecture: Architecture
    compute_capability: Line
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
        quantities = {
            "clock": self.clock_hz,
            "memory": self.memory_bytes,
            "memory bandwidth": self.memory_bandwidth_bytes_per_s,
            "L2": self.l2_bytes,
            "L2 bandwidth": 1.0
            if self.l2_bandwidth_bytes_per_s is None
            else self.l2_bandwidth_bytes_per_s,
            "vector rate": self.vector_flops,
            "power": self.power_w,
            "SM count": self.multiprocessors.count,
            **{f"peak {dtype.value}": rate for dtype, rate in self.peak_flops.items()},
        }
        wrong = [f"{what} {value}" for what, value in quantities.items() if not value > 0]
        if wrong:
            raise TopologyError(
                f"device {self.name}: every quantity must be above zero, got {', '.join(wrong)}. "
                "Leave out what the chip does not have."
            )

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors, or compute units."""
        return self.multiprocessors.count

    @property
    def pcie_bandwidth_bytes_per_s(self) -> float:
        """What a large copy between pinned host memory and the GPU reaches, one way."""
        return self.host_link.effective_bytes_per_s

    def supports(self, dtype: DType) -> bool:
        """Whether a GEMM of *dtype* has its own rate."""
        return dtype in self.peak_flops
