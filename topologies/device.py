"""Devices: what one GPU can do, as its datasheet has it.

All rates are dense (no structured sparsity) and at boost clock. A dtype that
the chip cannot multiply at its own rate is absent, so nobody gets a rate by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TopologyError


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
class HostLink:
    """The wire from a GPU to its CPU.

    *bandwidth_bytes_per_s* is the datasheet's, one way; *effective_bytes_per_s*
    what a large copy from pinned memory reaches.
    """

    kind: HostLinkKind
    generation: int
    bandwidth_bytes_per_s: float
    effective_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessors:
    """What bounds how many blocks of threads run at once."""

    count: int
    max_threads: int
    shared_memory_bytes: int
    warp_threads: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU.

    *peak_flops* is the rate a matrix product of that dtype runs at: tensor cores where the chip
    has them for it. FP32 is the plain FP32 rate, TF32 the tensor cores fed with FP32 storage.
    *vector_flops* is the FP32 rate without tensor cores, fused multiply-add counted as two.
    *power_w* is the board's limit; what clock it sustains is the business of cost models.
    *calibrations* are files of constants that somebody measured on it, for cost models to take.
    """

    name: str
    description: str
    vendor: str
    architecture: Architecture
    compute_capability: str
    multiprocessors: Multiprocessors
    clock_hz: float
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    l2_bytes: int
    l2_bandwidth_bytes_per_s: float | None
    peak_flops: Mapping[DType, float] = field(hash=False)
    vector_flops: float
    host_link: HostLink
    power_w: float
    source: str
    calibrations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
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
        """Whether a matrix product of *dtype* has its own rate."""
        return dtype in self.peak_flops
