"""GradientReduction: gradients reduced in buckets, during the backward pass or after it.

As in PyTorch's DistributedDataParallel, the gradient that reaches the limit
closes a bucket, the first limit is smaller so that communication starts early,
and gradients arrive in the order in which the backward pass makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.issuing import OpenLane
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise

FIRST_BUCKET_BYTES = 2**20
ONE_BUCKET_BYTES = 2**40
"""A bucket that no model fills."""


def reduces_once(stack: SoftwareStack) -> bool:
    """Whether *stack* reduces all gradients in one piece by default."""
    return stack.has(FrameworkBehaviour.ONE_REDUCTION)


def bucket_defaults(stack: SoftwareStack) -> dict[str, int]:
    """The size of buckets that *stack* sets where a workload states none."""
    return {"bucket_size": ONE_BUCKET_BYTES} if reduces_once(stack) else {}


@dataclass(slots=True)
class GradientReduction:
    """Issues one collective of *kind* on *stream* for every bucket that fills.

    A bucket is closed by the gradient that reaches *limit_bytes*; *closed* counts buckets, and the
    first is closed by *first_bytes*. With *is_deferred* buckets are reduced only after the last
    gradient. Buckets after the first one queue: ranks do not wait for each other before each of
    them. Where a *replica_slot* is given, the share of a bucket that a rank keeps, one of *shares*,
    is then all-reduced over it. Before it is reduced, the host reads the norm of a bucket that
    *is_checked*, and all of a bucket that *is_scaled* is divided by the number of ranks.
    """

    writer: EagerWriter
    stream: OpenLane
    slot: int
    dtype: DType
    limit_bytes: int
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    is_deferred: bool = False
    replica_slot: int | None = None
    shares: int = 1
    first_bytes: int = FIRST_BUCKET_BYTES
    is_checked: bool = False
    is_scaled: bool = False
    closed: int = 0
    filled_bytes: int = 0
    tasks: list[int] = field(default_factory=list)
    deferred_bytes: list[int] = field(default_factory=list)
    bucket_elements: list[int] = field(default_factory=list)

    def is_issued_by(self, elements: int) -> bool:
        """Whether gradients of *elements* parameters would start a collective."""
        return not self.is_deferred and self._is_closed_by(elements)

    def add(self, elements: int) -> None:
        """Note that gradients of *elements* parameters were just issued."""
        is_closed = self._is_closed_by(elements)
        self.filled_bytes += elements * self.dtype.size_bytes
        if is_closed and self.is_deferred:
            self.deferred_bytes.append(self._close())
        elif is_closed:
            self._reduce(self._close())

    def flush(self) -> None:
        """Note that the last gradient was issued: its bucket need not wait for what follows."""
        if not self.is_deferred:
            self._reduce(self._close())

    def finish(self) -> None:
        """Reduce what is left, and make compute wait for all buckets."""
        for size_bytes in (*self.deferred_bytes, self._close()):
            self._reduce(size_bytes)
        self.deferred_bytes.clear()
        self.writer.hold(self.writer.compute, *self.tasks)

    def _is_closed_by(self, elements: int) -> bool:
        limit_bytes = self.limit_bytes if self.closed else min(self.limit_bytes, self.first_bytes)
        return self.filled_bytes + elements * self.dtype.size_bytes >= limit_bytes

    def _close(self) -> int:
        """Close the bucket as it is; its bytes."""
        size_bytes, self.filled_bytes = self.filled_bytes, 0
        self.closed += bool(size_bytes)
        return size_bytes

    def _reduce(self, size_bytes: int) -> None:
        if not size_bytes:
            return
        number, label = len(self.tasks), f"gradients/bucket {len(self.tasks)}"
        elements = size_bytes // self.dtype.size_bytes
        self.bucket_elements.append(elements)
        if self.is_checked:
            norm = MemoryBound("gradient_norm", size_bytes, 0, self.dtype)
            checked = self.writer.run("norm", [norm], label=f"{label} checked")
            self.writer.synchronize(checked, label=f"{label} checked")
        if self.is_scaled:
            scale = elementwise("scale", elements, self.dtype)
            self.writer.run("mul", [scale], label=f"{label} scaled")
        collective = Collective(self.kind, size_bytes, self.dtype, is_queued=number > 0)
        self._issue(collective, f"{label} {self.kind.value}", self.slot)
        if self.replica_slot is not None:
            share_bytes = -(-size_bytes // self.shares)
            collective = Collective(CollectiveKind.ALL_REDUCE, share_bytes, self.dtype)
            self._issue(collective, f"{label} share all_reduce", self.replica_slot)

    def _issue(self, collective: Collective, label: str, slot: int) -> None:
        self.tasks.append(
            self.writer.communicate(collective, label=label, stream=self.stream, slot=slot)
        )
