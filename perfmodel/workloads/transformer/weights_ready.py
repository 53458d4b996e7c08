"""WeightsReady: which kernels wait for weights that are still being gathered from last iteration.

Gradients and weights of a part (a layer, the embedding, the head) lie in the
same buckets; its first kernel in an iteration waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


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
