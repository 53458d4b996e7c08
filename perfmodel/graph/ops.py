"""Ops: what a cost model can price, each described once however often it runs.

An op says what must be done, never how long it takes and never on which
machine. Two tasks with equal ops cost the same on the same device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from collectives.collective import Collective
from embeddings.table import Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance


class HostPart(Enum):
    """Which part of an operator's host time a task is (T1 to T5 of the paper)."""

    BETWEEN_OPERATORS = "t1"
    BEFORE_LAUNCH = "t2"
    AFTER_LAUNCH = "t3"
    LAUNCH = "t4"
    BETWEEN_LAUNCHES = "t5"
    WAIT = "wait"


class CopyRoute(Enum):
    """Between which memories a copy runs."""

    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    DEVICE_TO_DEVICE = "device_to_device"


class Pass(Enum):
    """Which pass of training an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Gemm:
    """*batch* products C[m, n] = A[m, k] B[k, n]."""

    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """Products C[m, n] = A[m, k] B[k, n] of *groups* experts in one launch."""

    groups: int
    m: int
    n: int
    k: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Attention:
    """Scaled dot-product attention of one layer, all heads of a rank.

    *kernel* names the implementation, such as `flash2`, `flash3`, `unfused`;
    `auto` is the one the software stack takes on the device.
    """

    batch: int
    query_length: int
    key_length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: DType
    is_causal: bool
    direction: Pass = Pass.FORWARD
    kernel: str = "auto"


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """A kernel whose time is the traffic it makes: norm, activation, optimizer, cast, copy.

    *operator* is a word such as `layer_norm`; *row_length* is the length that
    a reduction runs over, 0 where there is none.
    """

    operator: str
    read_bytes: int
    write_bytes: int
    dtype: DType
    flops: int = 0
    row_length: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingOp:
    """The fused lookup of all tables of a rank, or its backward pass with the update."""

    lookup: Lookup
    direction: Pass = Pass.FORWARD


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between memories. A pageable one (not pinned) also blocks the host."""

    route: CopyRoute
    size_bytes: int
    is_pinned: bool = True


@dataclass(frozen=True, slots=True)
class HostWork:
    """Time a host thread spends on an operator outside any wait."""

    operator: str
    part: HostPart


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Pieces of host time one after the other, held as one task that takes their sum."""

    parts: tuple[HostWork, ...]


@dataclass(frozen=True, slots=True)
class Communication:
    """This rank's part in a collective; the group is the rendezvous' business."""

    collective: Collective


Work = (
    Gemm
    | GroupedGemm
    | Attention
    | MemoryBound
    | EmbeddingOp
    | Copy
    | HostWork
    | HostSpan
    | Communication
)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A task whose duration is known already, such as a recorded one.

    *work* says what was done, where the recording tells; then the task can be
    priced anew for another machine.
    """

    name: str
    duration_ns: int
    provenance: Provenance = Provenance.RECORDED
    work: Work | None = None


Op = Work | Fixed
