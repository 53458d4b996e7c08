"""Batches: how many samples and tokens an iteration trains.

They are counted from what the script moves to the device. The first size of the largest tensor is
taken for the samples of a micro-batch. As many micro-batches are counted as there are backward
passes, if each has a tensor of its own. Integers of two dimensions are tokens, unless numbers that
are no integers are moved, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from perfmodel.emulation.rank_record import CallType, RankRecord
from perfmodel.emulation.request import Emulation
from perfmodel.emulation.windows import Windows

COPY = "host_to_device"
_INTEGERS = "int"


@dataclass(frozen=True, slots=True)
class Batch:
    """What an iteration trains; 0 where it is not known."""

    samples: int = 0
    tokens: int = 0


def count_batch(request: Emulation, records: Mapping[int, RankRecord]) -> Batch:
    """What one iteration of all ranks trains; ranks that were not run do as the last one does."""
    found = {rank: _moved_by(record) for rank, record in records.items()}
    last = found[max(found)]
    each = [found.get(rank, last) for rank in range(request.ranks)]
    moved = Batch(sum(one.samples for one in each), sum(one.tokens for one in each))
    stated = request.samples_per_iteration
    if stated is None:
        return moved
    return Batch(stated, moved.tokens * stated // moved.samples if moved.samples else 0)


def describe_batch(request: Emulation, batch: Batch) -> str:
    """A sentence about *batch*, and how to state another."""
    if request.samples_per_iteration is not None:
        return f"An iteration trains {batch.samples:,} samples, as --samples-per-iteration states."
    if not batch.samples:
        return (
            "How many samples an iteration trains is not known, because the script moves no batch "
            "to the device; --samples-per-iteration states it."
        )
    tokens = f" ({batch.tokens:,} tokens)" if batch.tokens else ""
    return (
        f"An iteration trains {batch.samples:,} samples{tokens}, counted from what all ranks move "
        "to the device, as if each had data of its own; --samples-per-iteration states another "
        "number."
    )


def _moved_by(record: RankRecord) -> Batch:
    """The samples and tokens that one rank moves to its device in the iteration that is written."""
    windows = Windows(record)
    copies = [
        (tuple(kind["outputs"][0][1]), str(kind["outputs"][0][2]))
        for call_type, what, *_ in windows.all[windows.chosen]
        if call_type == CallType.KERNEL and (kind := record.kinds[what])["operator"] == COPY
    ]
    copies = [copy for copy in copies if copy[0] and prod(copy[0]) > 1]
    if not copies:
        return Batch()
    numbers = [copy for copy in copies if not copy[1].startswith(_INTEGERS)]
    main = max(numbers or copies, key=lambda copy: prod(copy[0]))
    shape, _ = main
    passes = max(min(record.backward_count, copies.count(main)), 1)
    has_tokens = not numbers and len(shape) > 1
    return Batch(shape[0] * passes, prod(shape[:2]) * passes if has_tokens else 0)
