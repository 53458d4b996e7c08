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
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.eager import EagerWriter

FIRST_BUCKET_BYTES = 2**20


def reduces_once(stack: SoftwareStack) -> bool:
    """Whether *stack* reduces all gradients in one piece by default."""
    return stack.has(FrameworkBehaviour.ONE_REDUCTION)


@dataclass(slots=True)
class BucketFill:
    """The bucket being filled, and how many were closed before it."""

    limit_bytes: int
    closed: int = 0
    filled_bytes: int = 0

    def is_closed_by(self, gradient_bytes: int) -> bool:
        """Whether a gradient makes the bucket reach its limit."""
        limit_bytes = self.limit_bytes
        if self.closed == 0:
            limit_bytes = min(limit_bytes, FIRST_BUCKET_BYTES)
        return self.filled_bytes + gradient_bytes >= limit_bytes

    def add(self, gradient_bytes: int) -> int:
        """Add a gradient; bytes of the bucket that this closes, or 0."""
        is_closed = self.is_closed_by(gradient_bytes)
        self.filled_bytes += gradient_bytes
        return self.close() if is_closed else 0

    def close(self) -> int:
        """Close the bucket as it is; its bytes, or 0 if it is empty."""
        size_bytes, self.filled_bytes = self.filled_bytes, 0
        self.closed += 1 if size_bytes else 0
        return size_bytes


@dataclass(slots=True)
class GradientReduction:
    """Issues one collective of *kind* on *stream* for every bucket that fills.

    With *is_deferred* buckets are reduced only after the last gradient. Buckets behind the first
    one queue: ranks do not wait for each other before each of them. Where a *replica_slot* is
    given, the share of a bucket that a rank keeps, one of *shares*, is then all-reduced over it.
    """

    writer: EagerWriter
    stream: OpenLane
    slot: int
    dtype: DType
    fill: BucketFill
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    is_deferred: bool = False
    replica_slot: int | None = None
    shares: int = 1
    tasks: list[int] = field(default_factory=list)
    deferred_bytes: list[int] = field(default_factory=list)
    bucket_elements: list[int] = field(default_factory=list)

    def is_issued_by(self, elements: int) -> bool:
        """Whether gradients of *elements* parameters would start a collective."""
        return not self.is_deferred and self.fill.is_closed_by(elements * self.dtype.size_bytes)

    def add(self, elements: int) -> None:
        """Note that gradients of *elements* parameters were just issued."""
        size_bytes = self.fill.add(elements * self.dtype.size_bytes)
        if self.is_deferred:
            self.deferred_bytes.append(size_bytes)
        else:
            self._reduce(size_bytes)

    def flush(self) -> None:
        """Note that the last gradient was issued: its bucket need not wait for what follows."""
        if not self.is_deferred:
            self._reduce(self.fill.close())

    def finish(self) -> None:
        """Reduce what is left, and make compute wait for all buckets."""
        for size_bytes in (*self.deferred_bytes, self.fill.close()):
            self._reduce(size_bytes)
        self.deferred_bytes.clear()
        self.writer.hold(self.writer.compute, *self.tasks)

    def _reduce(self, size_bytes: int) -> None:
        if not size_bytes:
            return
        number = len(self.tasks)
        self.bucket_elements.append(size_bytes // self.dtype.size_bytes)
        self.tasks.append(
            self.writer.communicate(
                Collective(self.kind, size_bytes, self.dtype, is_queued=number > 0),
                label=f"gradients/bucket {number} {self.kind.value}",
                stream=self.stream,
                slot=self.slot,
            )
        )
        if self.replica_slot is not None:
            share_bytes = -(-size_bytes // self.shares)
            self.tasks.append(
                self.writer.communicate(
                    Collective(CollectiveKind.ALL_REDUCE, share_bytes, self.dtype),
                    label=f"gradients/bucket {number} share all_reduce",
                    stream=self.stream,
                    slot=self.replica_slot,
                )
            )
