"""GradientReduction: buckets of gradients reduced over ranks while the backward pass goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.workloads.buckets import BucketFill
from perfmodel.workloads.eager import EagerWriter, Stream


@dataclass(slots=True)
class GradientReduction:
    """Issues one collective of *kind* on *stream* for every bucket that fills."""

    writer: EagerWriter
    stream: Stream
    slot: int
    dtype: DType
    fill: BucketFill
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    tasks: list[int] = field(default_factory=list)
    bucket_elements: list[int] = field(default_factory=list)

    def add(self, elements: int) -> None:
        """Note that gradients of *elements* parameters were just issued."""
        self._reduce(self.fill.add(elements * self.dtype.size_bytes))

    def finish(self) -> None:
        """Reduce what is left, and let compute wait for all buckets."""
        self._reduce(self.fill.close())
        self.writer.hold(self.writer.compute, self.tasks)

    def _reduce(self, size_bytes: int) -> None:
        if not size_bytes:
            return
        self.bucket_elements.append(size_bytes // self.dtype.size_bytes)
        self.tasks.append(
            self.writer.communicate(
                self.kind.value,
                Collective(self.kind, size_bytes=size_bytes, dtype=self.dtype),
                label=f"gradients/bucket {self.fill.closed - 1} {self.kind.value}",
                stream=self.stream,
                slot=self.slot,
            )
        )
