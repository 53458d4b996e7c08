"""Windows: the steady iterations of a record, and which of them is written.

Two iterations are equal if their calls are, whatever values were looked up. The one that occurs
most often is written; of several, the first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import orjson

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.rank_record import Call, CallType, RankRecord
from perfmodel.extensions.recordings.operators.works import emulated_works

_NUMBERED: dict[int, str] = {
    CallType.RECORD: "event",
    CallType.AWAIT: "event",
    CallType.SYNC_EVENT: "event",
    CallType.SYNC_DEVICE: "device",
}
"""What calls refer to by a number that depends on the rank."""


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
        for line in _describe(self.record, self.all[number]):
            digest.update(line)
        return digest.hexdigest()


def are_alike(records: Sequence[RankRecord]) -> bool:
    """Whether all *records* do the same in their chosen iteration."""
    signatures = set()
    for record in records:
        windows = Windows(record)
        signatures.add(windows.signature(windows.chosen))
    return len(signatures) == 1


def _describe(record: RankRecord, calls: Sequence[Call]) -> Iterator[bytes]:
    """Describe *calls* independently of the rank and of when things were numbered."""
    ranks_of = {group.name: group.ranks for group in record.groups}
    kinds: dict[int, bytes] = {}
    numbers: dict[tuple[str, object], int] = {}

    def number(what: str, value: object) -> int:
        return numbers.setdefault((what, value), len(numbers))

    for kind, what, thread, stream, _ in calls:
        place = b"%d" % number("thread", thread)
        if kind != CallType.NOTE:
            place += b" %d" % number("stream", stream)
        if kind in (CallType.NOTE, CallType.KERNEL):
            if what not in kinds:
                described = {**record.kinds[what], "observed": None}
                # Numbers in arguments may differ between ranks; the work may not.
                ops = emulated_works(described) if "inputs" in described else ()
                kinds[what] = f"{described['operator']} {ops}".encode()
            text = kinds[what]
        elif kind == CallType.COLLECTIVE:
            call = record.collectives[what]
            parts = [call[name] for name in ("call", "bytes", "dtype", "splits", "root")]
            size, group = len(ranks_of[call["group"]]), number("group", call["group"])
            distance = None if call["peer"] is None else call["peer"] - record.rank
            text = orjson.dumps([*parts, size, group, distance])
        else:
            named = _NUMBERED.get(kind)
            text = b"%d" % (what if named is None else number(named, what))
        yield b"%d %s %s\n" % (kind, text, place)
