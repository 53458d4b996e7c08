"""Windows: the steady iterations of a record, and which of them is written.

Two iterations are equal if their calls are, whatever values were looked up. The one that occurs
most often is written; of several, the first.

Ranks may cut the same parameters differently (FSDP with `use_orig_params`), so that their memory-
bound kernels have other sizes and numbers. Such ranks are alike if they gather pieces and all else
is equal.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import orjson

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.rank_record import Call, CallType, RankRecord
from perfmodel.extensions.recordings.operators.works import emulated_works
from perfmodel.graph.ops import MemoryBound

_NUMBERED: dict[int, str] = {
    CallType.RECORD: "event",
    CallType.AWAIT: "event",
    CallType.SYNC_EVENT: "event",
    CallType.SYNC_DEVICE: "device",
}
"""What calls refer to by a number that depends on the rank."""


MOST_APART = 0.02
"""Memory-bound bytes by which ranks that are alike may differ, as a share."""
MOST_LAUNCHES_APART = 0.25
"""Memory-bound kernels by which they may differ: a rank may hold several small parameters."""


class Outline(NamedTuple):
    """An iteration in short: what is not memory-bound, and how much is."""

    signature: str
    memory_bytes: int
    memory_kernels: int
    gathers_pieces: bool


@dataclass(frozen=True)
class Windows:
    """A record cut into iterations; those before *record.first_steady* are warm-up."""

    record: RankRecord

    @cached_property
    def all(self) -> tuple[Sequence[Call], ...]:
        """The calls of every recorded iteration."""
        bounds = self.record.boundaries
        return tuple(self.record.calls[start:stop] for start, stop in pairwise(bounds))

    @property
    def steady_count(self) -> int:
        """How many steady iterations there are."""
        return max(len(self.all) - self.record.first_steady, 0)

    @cached_property
    def chosen(self) -> int:
        """The number of the iteration that is written."""
        first = self.record.first_steady
        signatures = [self.signature(number) for number in range(first, len(self.all))]
        if not signatures:
            raise EmulationError(f"rank {self.record.rank}: no steady iteration was recorded.")
        often = Counter(signatures).most_common(1)[0][0]
        return first + signatures.index(often)

    @cached_property
    def distinct_count(self) -> int:
        """How many kinds of steady iterations there are."""
        steady = range(self.record.first_steady, len(self.all))
        return len({self.signature(number) for number in steady})

    def signature(self, number: int) -> str:
        """A text that is the same for iterations that do the same, also of other ranks."""
        digest = hashlib.sha256()
        for line, _ in _describe(self.record, self.all[number]):
            digest.update(line)
        return digest.hexdigest()

    def outline(self, number: int) -> Outline:
        """What iteration *number* does, without views and apart from memory-bound kernels."""
        digest, sizes = hashlib.sha256(), []
        calls, collectives = self.all[number], self.record.collectives
        names = {
            collectives[what]["call"] for kind, what, *_ in calls if kind == CallType.COLLECTIVE
        }
        for line, ops in _describe(self.record, calls):
            if ops is None:
                digest.update(line)
            sizes += [op.read_bytes + op.write_bytes for op in ops or () if op.launches]
        gathers = any(name.startswith("all_gather") for name in names)
        return Outline(digest.hexdigest(), sum(sizes), len(sizes), gathers)


def are_equal(records: Sequence[RankRecord]) -> bool:
    """Whether all *records* do exactly the same in their chosen iteration."""
    all_windows = map(Windows, records)
    return len({windows.signature(windows.chosen) for windows in all_windows}) == 1


def are_alike(records: Sequence[RankRecord]) -> bool:
    """Whether all *records* do the same, but for how their parameters are cut."""
    outlines = [windows.outline(windows.chosen) for windows in map(Windows, records)]
    _, sizes, counts, gathers = zip(*outlines, strict=True)
    return are_equal(records) or (
        len({one.signature for one in outlines}) == 1
        and all(gathers)
        and max(sizes) <= (1 + MOST_APART) * min(sizes)
        and max(counts) <= (1 + MOST_LAUNCHES_APART) * min(counts)
    )


def _describe(
    record: RankRecord, calls: Sequence[Call]
) -> Iterator[tuple[bytes, Sequence[MemoryBound] | None]]:
    """Describe *calls* independently of the rank and of when things were numbered.

    Memory-bound kernels and views come with their ops.
    """
    ranks_of = {group.name: group.ranks for group in record.groups}
    kinds: dict[int, tuple[bytes, Sequence[MemoryBound] | None]] = {}
    numbers: dict[tuple[str, object], int] = {}

    def number(what: str, value: object) -> int:
        return numbers.setdefault((what, value), len(numbers))

    for kind, what, thread, stream, _ in calls:
        memory_bound: Sequence[MemoryBound] | None = None
        place = b"%d" % number("thread", thread)
        if kind != CallType.NOTE:
            place += b" %d" % number("stream", stream)
        if kind in (CallType.NOTE, CallType.KERNEL):
            if what not in kinds:
                described = {**record.kinds[what], "observed": None}
                # Numbers in arguments may differ between ranks; the work may not.
                ops = emulated_works(described) if "inputs" in described else ()
                bound = [op for op in ops if isinstance(op, MemoryBound)]
                text = f"{described['operator']} {ops}".encode()
                kinds[what] = text, bound if len(bound) == len(ops) else None
            text, memory_bound = kinds[what]
        elif kind == CallType.COLLECTIVE:
            call = record.collectives[what]
            parts = [call[name] for name in ("call", "bytes", "dtype", "splits", "root")]
            size, group = len(ranks_of[call["group"]]), number("group", call["group"])
            distance = None if call["peer"] is None else call["peer"] - record.rank
            text = orjson.dumps([*parts, size, group, distance])
        else:
            named = _NUMBERED.get(kind)
            text = b"%d" % (what if named is None else number(named, what))
        yield b"%d %s %s\n" % (kind, text, place), memory_bound
