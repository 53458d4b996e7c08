"""LayerGathering: fully sharded weights, gathered layer by layer just ahead of their use.

At most two layers are gathered at a time: the gather of a layer waits until
compute is done with the layer two before it. A stack that does not overlap
gathers with compute starts one only when compute has come to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.workloads.eager import EagerWriter, Stream
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.transformer.slots import Slot

# Gradients and weights of a part (a layer, the embedding, the head) lie in the
# same buckets; its first kernel in an iteration waits for all of them.


@dataclass(slots=True)
class WeightsReady:
    """First kernels of parts, and the buckets of each part; *users* are kernels by bucket."""

    first_task: dict[str, int] = field(default_factory=dict)
    users: dict[int, list[int]] = field(default_factory=dict)

    def note_use(self, part: str, task: int | None) -> None:
        """Note that *task* works on *part*; only the first one waits."""
        if part and task is not None:
            self.first_task.setdefault(part, task)

    def note_bucket(self, part: str, bucket: int) -> None:
        """Note that gradients of *part* go into *bucket*."""
        waiting = self.users.setdefault(bucket, [])
        if part in self.first_task and self.first_task[part] not in waiting:
            waiting.append(self.first_task[part])

    def iter_waits(self, gathers: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Kernel and gather it waits for; *gathers* are tasks by bucket."""
        for bucket, gather in gathers.items():
            for task in self.users.get(bucket, []):
                yield task, gather


_AHEAD = 2


@dataclass(slots=True)
class LayerGathering:
    """Gathers of weights in *dtype* on *stream*; *used* are the last kernels of past layers.

    Without *is_ahead* a gather waits for all compute issued before it. With *is_kept* what was
    gathered stays until the iteration ends, as stages of a pipeline need it again at once. With
    *is_copied* it is copied to where each weight belongs before it is used.
    """

    writer: EagerWriter
    stream: Stream
    dtype: DType
    is_ahead: bool = True
    is_kept: bool = False
    is_copied: bool = False
    used: list[int] = field(default_factory=list)
    gathered: dict[str, int] = field(default_factory=dict)

    def state(self) -> list[list[Any]]:
        """Weights that are gathered, and the layers that the next gather may wait for."""
        return [self.used[-_AHEAD:], [*self.gathered], [*self.gathered.values()]]

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Go on from what `state` said."""
        self.used, names, tasks = cells
        self.gathered = dict(zip(names, tasks, strict=True))

    def gather(self, name: str, parameters: int) -> None:
        """Start to gather the weights called *name*, unless that was done."""
        if name in self.gathered:
            return
        kind = CollectiveKind.ALL_GATHER
        if len(self.used) >= _AHEAD and not self.is_kept:
            self.writer.hold(self.stream, [self.used[-_AHEAD]])
        self.gathered[name] = self.writer.communicate(
            kind.value,
            Collective(kind, parameters * self.dtype.size_bytes, self.dtype),
            label=f"{name}/weights all_gather",
            stream=self.stream,
            slot=Slot.DATA,
            is_behind_compute=not self.is_ahead,
        )

    def use(self, name: str, parameters: int) -> None:
        """Let compute wait for the weights called *name*."""
        self.writer.hold(self.writer.compute, [self.gathered[name]])
        if self.is_copied:
            copy = elementwise("split", parameters, self.dtype)
            self.writer.run("split_with_sizes_copy", [copy], label=f"{name}/weights copied out")
        if not self.is_kept:
            del self.gathered[name]

    def release(self) -> None:
        """Note that compute is done with the weights it used last."""
        if self.writer.compute.last_task is not None:
            self.used.append(self.writer.compute.last_task)
