"""Ops: what a cost model can price, each described once however often it runs.

An op says what must be done, never how long it takes and never on which
machine. Two tasks with equal ops cost the same on the same device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from collectives.collective import Collective
from embeddings.table import Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance


class HostPart(Enum):
    """Which part of an operator's host time a task is (T1 to T5 of the paper)."""

    BETWEEN_OPERATORS = "t1"
    BEFORE_LAUNCH = "t2"
    AFTER_LAUNCH = "t3"
    LAUNCH = "t4"
    BETWEEN_LAUNCHES = "t5"
    WAIT = "wait"
    __hash__ = object.__hash__


class CopyRoute(Enum):
    """Between which memories a copy runs."""

    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    DEVICE_TO_DEVICE = "device_to_device"
    HOST_TO_HOST = "host_to_host"


class Pass(Enum):
    """Which pass of training an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Gemm:
    """*batch* products C[m, n] = A[m, k] B[k, n].

    With *loads_singly* rows of an operand begin at odd places, so that no two of its elements can
    be loaded together. A product that is added to an earlier result moves *added_bytes* for it.
    """

    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1
    loads_singly: bool = False
    added_bytes: int = 0

    @property
    def flops(self) -> int:
        """Multiplications and additions, each counted."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, or its gradient with respect to one operand, over *batch* images.

    It is the implicit product whose rows are the positions of the output, whose
    columns are the output channels of a group and whose depth is the window times the
    input channels of a group: *m* x *n* x *k*, *groups* times. A depthwise one has as many
    groups as input channels. A serial one has a thread for each value of its result.
    """

    m: int
    n: int
    k: int
    dtype: DType
    groups: int = 1
    read_bytes: int = 0
    write_bytes: int = 0
    direction: Pass = Pass.FORWARD
    is_depthwise: bool = False
    is_serial: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions, each counted."""
        return 2 * self.groups * self.m * self.n * self.k

    @property
    def product(self) -> Gemm:
        """The implicit product."""
        return Gemm(self.m, self.n, self.k, self.dtype, self.groups)


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """Products C[m, n] = A[m, k] B[k, n] of *groups* experts in one launch.

    Several *launches* are kernels like this one after the other, held as one task. Products that
    are added to earlier results move *added_bytes* for them.
    """

    groups: int
    m: int
    n: int
    k: int
    dtype: DType
    launches: int = 1
    added_bytes: int = 0

    @property
    def flops(self) -> int:
        """Multiplications and additions of one launch, each counted."""
        return 2 * self.groups * self.m * self.n * self.k


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

    @property
    def flops(self) -> int:
        """Multiplications and additions that are needed: a causal mask halves them.

        Two products of scores forward; backward has five, one of which is the
        forward's again.
        """
        whole = 4 * self.batch * self.heads * self.query_length * self.key_length * self.head_dim
        products = whole if self.direction is Pass.FORWARD else whole * 5 // 2
        return products // 2 if self.is_causal else products


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """A kernel whose time is the traffic it makes: norm, activation, optimizer, cast, copy.

    *operator* is a word such as `layer_norm`; *row_length* is the length that
    a reduction runs over, 0 where there is none. Several *launches* are kernels like this one
    after the other, held as one task.
    """

    operator: str
    read_bytes: int
    write_bytes: int
    dtype: DType
    flops: int = 0
    row_length: int = 0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Kernels that nobody measured, by their physics: operations on tensor cores, and traffic.

    Of a chain of *steps* each waits for the one before, as chunks of a sequence do.
    """

    operator: str
    flops: int
    read_bytes: int
    write_bytes: int
    dtype: DType
    steps: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingOp:
    """The fused lookup of all tables of a rank, or its backward pass with the update."""

    lookup: Lookup
    direction: Pass = Pass.FORWARD

    @property
    def flops(self) -> int:
        """Additions of pooling, or of summing gradients up."""
        tables = self.lookup.tables
        return round(sum(self.lookup.lookup_count(table) * table.width for table in tables))


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between memories. A pageable one (not pinned) also blocks the host.

    Inside the host it is any pass over memory that moves *size_bytes*, read or written.
    """

    route: CopyRoute
    size_bytes: int
    is_pinned: bool = True
    flops: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class HostWork:
    """Time a host thread spends on an operator outside any wait."""

    operator: str
    part: HostPart
    flops: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Pieces of host time one after the other, held as one task that takes their sum."""

    parts: tuple[HostWork, ...]
    flops: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Communication:
    """This rank's part in a collective; the group is the rendezvous' business."""

    collective: Collective
    flops: ClassVar[int] = 0


ESTIMATED = ", estimated"
"""Ends the name of a recorded task whose work was estimated, not counted."""

Work = (
    Gemm
    | Convolution
    | GroupedGemm
    | Attention
    | MemoryBound
    | Unmeasured
    | EmbeddingOp
    | Copy
    | HostWork
    | HostSpan
    | Communication
)
Works = tuple[Work, ...]
"""The work of the kernels of one call, in order."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A task whose duration is known already, such as a recorded one.

    *work* says what was done, if the recording shows it; then the task can be
    priced anew for another machine. *waves* is how often its blocks fill the device, 0 if unknown.
    """

    name: str
    duration_ns: int
    provenance: Provenance = Provenance.RECORDED
    work: Work | None = None
    waves: float = field(default=0.0, repr=False)

    @property
    def is_estimated(self) -> bool:
        """Whether the work was estimated from the duration rather than counted."""
        return self.name.endswith(ESTIMATED)

    @property
    def flops(self) -> int:
        """Those of the work, where it is known."""
        return 0 if self.work is None else self.work.flops


Op = Work | Fixed


def work_of(op: Op) -> Work | None:
    """What *op* does, where that is known."""
    return op.work if isinstance(op, Fixed) else op


def signature_of(op: Op) -> Collective | None:
    """The collective that *op* is a part of: what members of a rendezvous must agree on."""
    work = work_of(op)
    return work.collective if isinstance(work, Communication) else None


def duration_of(op: Op) -> int:
    """The duration that *op* states; one that is still to be priced is refused."""
    if isinstance(op, Fixed):
        return op.duration_ns
    raise ScenarioError(
        f"{type(op).__name__} has no duration yet, so it cannot be changed. Name the machine that "
        f"runs the job (--topology), or price it with `pin_job` first."
    )
