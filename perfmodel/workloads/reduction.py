"""GradientReduction: buckets of gradients reduced over ranks, beside the backward pass or after."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.workloads.eager import EagerWriter, Stream

# As in PyTorch's DistributedDataParallel a bucket is closed by the gradient
# that makes it reach its limit, the first limit is smaller so that communication
# starts early, and gradients arrive in the order the backward pass makes them.


FIRST_BUCKET_BYTES = 2**20


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


@dataclass(frozen=True, slots=True)
class Replicas:
    """Groups of ranks with a whole state each: *shares* ranks a group, joined by *slot*."""

    slot: int
    shares: int


@dataclass(slots=True)
class GradientReduction:
    """Issues one collective of *kind* on *stream* for every bucket that fills.

    With *is_deferred* buckets are reduced only after the last gradient. Buckets behind the first
    one queue: ranks do not wait for each other before every one of them. Where *replicas* is
    given, what a rank keeps of a bucket is then all-reduced over them.
    """

    writer: EagerWriter
    stream: Stream
    slot: int
    dtype: DType
    fill: BucketFill
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    is_deferred: bool = False
    replicas: Replicas | None = None
    tasks: list[int] = field(default_factory=list)
    deferred_bytes: list[int] = field(default_factory=list)
    bucket_elements: list[int] = field(default_factory=list)

    def is_issued_by(self, elements: int) -> bool:
        """Whether gradients of *elements* parameters would start a collective."""
        return not self.is_deferred and self.fill.is_closed_by(elements * self.dtype.size_bytes)

    def add(self, elements: int) -> None:
        """Note that gradients of *elements* parameters were just issued."""
        size_bytes = self.fill.add(elements * self.dtype.size_bytes)
        if size_bytes and self.is_deferred:
            self.deferred_bytes.append(size_bytes)
        elif size_bytes:
            self._reduce(size_bytes)

    def flush(self) -> None:
        """Note that the last gradient was issued: its bucket need not wait for what follows."""
        size_bytes = 0 if self.is_deferred else self.fill.close()
        if size_bytes:
            self._reduce(size_bytes)

    def finish(self) -> None:
        """Reduce what is left, and let compute wait for all buckets."""
        for size_bytes in (*self.deferred_bytes, self.fill.close()):
            if size_bytes:
                self._reduce(size_bytes)
        self.deferred_bytes.clear()
        self.writer.hold(self.writer.compute, self.tasks)

    def _reduce(self, size_bytes: int) -> None:
        number = len(self.tasks)
        self.bucket_elements.append(size_bytes // self.dtype.size_bytes)
        self.tasks.append(
            self.writer.communicate(
                self.kind.value,
                Collective(self.kind, size_bytes, self.dtype, is_queued=number > 0),
                label=f"gradients/bucket {number} {self.kind.value}",
                stream=self.stream,
                slot=self.slot,
            )
        )
        if self.replicas is not None:
            self.tasks.append(self._reduce_share(self.replicas, size_bytes, number))

    def _reduce_share(self, replicas: Replicas, size_bytes: int, number: int) -> int:
        kind = CollectiveKind.ALL_REDUCE
        return self.writer.communicate(
            kind.value,
            Collective(kind, size_bytes=-(-size_bytes // replicas.shares), dtype=self.dtype),
            label=f"gradients/bucket {number} share {kind.value}",
            stream=self.stream,
            slot=replicas.slot,
        )
