"""Exchange: bringing together what blocks know of the rendezvous that cross them.

A rendezvous is resolved once every block with members that others wait for
has said when the last of them was ready; the latest word counts. Nothing is
said twice, and never to a block that has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.block import Arrivals
from perfmodel.engine.layout import Int64s
from perfmodel.graph.job import NO_GROUP, JobGraph

Bools = NDArray[np.bool_]


class Exchange:
    """The rendezvous that cross blocks, in the iteration being replayed."""

    def __init__(
        self, job: JobGraph, *, blocks: Sequence[range], awaited: Iterable[Bools], vector_count: int
    ) -> None:
        """*awaited* says of every block to which rendezvous it has a word to add."""
        self._expected: NDArray[np.int32] = np.sum(list(awaited), axis=0, dtype=np.int32)
        self._has_part = _groups_of_blocks(job, blocks)
        self._missing = self._expected.copy()
        self._ready_ns: Int64s = np.zeros((len(self._expected), vector_count), dtype=np.int64)

    def begin_iteration(self) -> None:
        """Forget what was said: everybody comes to every rendezvous once more."""
        self._missing[:] = self._expected
        self._ready_ns[:] = 0

    def take(self, said: Iterable[Arrivals]) -> Arrivals:
        """Take in what blocks *said*, and return what is resolved by that."""
        complete = []
        for arrivals in said:
            rows = arrivals.rendezvous[:, 0]
            self._missing[rows] -= 1
            self._ready_ns[rows] = np.maximum(self._ready_ns[rows], arrivals.ready_ns)
            complete.append(arrivals.rendezvous[self._missing[rows] == 0])
        found = np.concatenate(complete) if complete else np.empty((0, 2), dtype=np.int64)
        return Arrivals(found, self._ready_ns[found[:, 0]])

    def share_of(self, block: int, resolved: Arrivals) -> Arrivals:
        """Those of *resolved* in which *block* has members."""
        mine = self._has_part[block, resolved.rendezvous[:, 1]]
        if mine.all():
            return resolved
        return Arrivals(resolved.rendezvous[mine], resolved.ready_ns[mine])


def _groups_of_blocks(job: JobGraph, blocks: Sequence[range]) -> Bools:
    """Blocks x groups: whether the block has a member of the group."""
    has_part = np.zeros((len(blocks), len(job.groups)), dtype=np.bool_)
    for index, ranks in enumerate(blocks):
        groups = job.rank_group[ranks.start : ranks.stop]
        has_part[index, groups[groups != NO_GROUP]] = True
    return has_part
