"""Windows: the steady iterations of a record, and which of them is written.

Two iterations are alike if their calls are, whatever values were looked up. The one that occurs
most often is written; of several, the first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import orjson

from perfmodel.base.errors import EmulationError
from perfmodel.emulation.op_translation import ops_of_call
from perfmodel.emulation.rank_record import Call, CallType, RankRecord


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
        describe = _Describer(self.record)
        digest = hashlib.sha256()
        for call in self.all[number]:
            digest.update(describe.call(call))
        return digest.hexdigest()


def are_alike(records: Sequence[RankRecord]) -> bool:
    """Whether all *records* do the same in their chosen iteration."""
    signatures = set()
    for record in records:
        windows = Windows(record)
        signatures.add(windows.signature(windows.chosen))
    return len(signatures) == 1


class _Describer:
    """Describes calls independently of the rank and of when things were numbered."""

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self._kinds: dict[int, bytes] = {}
        self._numbers: dict[tuple[str, object], int] = {}
        self._ranks_of = {group.name: group.ranks for group in record.groups}

    def call(self, call: Call) -> bytes:
        kind, what, thread, stream, _ = call
        at_thread = self._number("thread", thread)
        if kind == CallType.NOTE:
            return b"%d %s %d\n" % (kind, self._kind(what), at_thread)
        place = b"%d %d" % (at_thread, self._number("stream", stream))
        if kind == CallType.KERNEL:
            return b"%d %s %s\n" % (kind, self._kind(what), place)
        if kind == CallType.COLLECTIVE:
            return b"%d %s %s\n" % (kind, self._collective(what), place)
        if kind in (CallType.RECORD, CallType.AWAIT, CallType.SYNC_EVENT):
            what = self._number("event", what)
        elif kind == CallType.SYNC_DEVICE:
            what = self._number("device", what)
        return b"%d %d %s\n" % (kind, what, place)

    def _kind(self, number: int) -> bytes:
        known = self._kinds.get(number)
        if known is None:
            kind = {**self._record.kinds[number], "observed": None}
            # Numbers in arguments may differ between ranks; the work may not.
            ops = ops_of_call(kind, major_capability=0) if "inputs" in kind else ()
            known = self._kinds[number] = f"{kind['operator']} {ops}".encode()
        return known

    def _collective(self, number: int) -> bytes:
        call = self._record.collectives[number]
        size = len(self._ranks_of[call["group"]])
        group = self._number("group", call["group"])
        distance = None if call["peer"] is None else call["peer"] - self._record.rank
        parts = [call[name] for name in ("call", "bytes", "dtype", "splits")]
        return orjson.dumps([*parts, size, group, distance, call["root"]])

    def _number(self, what: str, value: object) -> int:
        return self._numbers.setdefault((what, value), len(self._numbers))
