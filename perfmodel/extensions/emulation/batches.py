"""Batches: how many samples and tokens an iteration trains.

They are counted from what the script moves to the device. The first size that most tensors have is
taken for the samples of a micro-batch. As many micro-batches are counted as there are backward
passes, if each has tensors of its own. Integers of two dimensions are tokens, unless there are more
numbers that are no integers.

Ranks that work on one batch together count it once. They are those of a group whose members moved
the same values while others moved different ones, those that reduce activations or send to each
other before the backward pass ends, and all that moved one batch and use different parts of it.
Equal values alone prove nothing where all ranks have them: scripts that make up their data often
start every rank with the same seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from perfmodel.extensions.emulation.rank_record import CallType, RankRecord
from perfmodel.extensions.emulation.request import Emulation
from perfmodel.extensions.emulation.windows import Windows

COPY = "host_to_device"
_INTEGERS, _BYTES = ("int32", "int64"), "int8"
"""Formats of tokens and labels; of masks and raw images."""
_SUMS = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Batch:
    """What an iteration trains; 0 where it is not known."""

    samples: int = 0
    tokens: int = 0
    values: tuple[int, ...] = ()
    """Checksums of what one rank moved."""


def count_batch(request: Emulation, records: Mapping[int, RankRecord]) -> Batch:
    """What one iteration of all ranks trains; ranks that were not run do as the last one does."""
    found = {rank: _moved_by(record) for rank, record in records.items()}
    last = found[max(found)]
    first = _first_with_batch(records, found)
    batches: dict[int, list[Batch]] = {}
    if _share_one(records):
        first = dict.fromkeys(range(request.ranks), 0)
    for rank in range(request.ranks):
        batches.setdefault(first.get(rank, rank), []).append(found.get(rank, last))
    moved = Batch(
        sum(max(one.samples for one in batch) for batch in batches.values()),
        sum(max(one.tokens for one in batch) for batch in batches.values()),
    )
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
            "The number of samples per iteration is unknown, because the script moves no batch to "
            "the device; state it with --samples-per-iteration."
        )
    tokens = f" ({batch.tokens:,} tokens)" if batch.tokens else ""
    return (
        f"An iteration trains {batch.samples:,} samples{tokens}, counted from the data that all "
        f"ranks move to the device, once for ranks that share a batch; --samples-per-iteration "
        f"overrides it."
    )


def _share_one(records: Mapping[int, RankRecord]) -> bool:
    """Whether all ranks moved the same batch, and each uses another part of it."""
    found = [record.pieces for record in records.values()]
    checksums = {tuple(checksum for checksum, _ in pieces) for pieces in found}
    return len(checksums) == 1 and bool(found[0]) and len(set(found)) == len(found) > 1


def _first_with_batch(
    records: Mapping[int, RankRecord], found: Mapping[int, Batch]
) -> dict[int, int]:
    """The lowest rank that works on the same batch, for ranks that share one."""
    first: dict[int, int] = {}
    for ranks in _ranks_together(records, found):
        joined = {first.get(rank, rank) for rank in ranks}
        sharing = {*ranks, *(rank for rank, one in first.items() if one in joined)}
        first.update(dict.fromkeys(sharing, min(joined)))
    return first


def _ranks_together(
    records: Mapping[int, RankRecord], found: Mapping[int, Batch]
) -> Iterator[tuple[int, ...]]:
    """Ranks that work on one batch: peers of the forward pass, and groups that moved the same."""
    has_own_data = len({batch.values for batch in found.values() if batch.values}) > 1
    is_same: dict[str, bool] = {}
    for record in records.values():
        groups = {group.name: group for group in record.groups}
        summing = set()
        for call in _forward_calls(record):
            if call["peer"] is not None:
                yield record.rank, call["peer"]
            # A sum of losses has fewer numbers than there are samples.
            elif call["call"] in _SUMS and call["bytes"] > 4 * found[record.rank].samples:
                summing.add(call["group"])
        for name, group in groups.items():
            moved = [found[rank].values for rank in group.ranks if rank in found]
            if (has_own_data or name in summing) and sum(map(bool, moved)) > 1:
                is_equal = len(set(filter(None, moved))) == 1
                is_same[group.family] = is_equal and is_same.get(group.family, True)
    for record in records.values():
        yield from (group.ranks for group in record.groups if is_same.get(group.family))


def _forward_calls(record: RankRecord) -> Iterator[Mapping[str, Any]]:
    """Collectives of the chosen iteration that the script makes before its last backward pass ends.

    The backward pass runs on threads of its own.
    """
    windows = Windows(record)
    calls = windows.all[windows.chosen]
    behind = [place for place, call in enumerate(calls) if call[2] != record.main_thread]
    for call_type, what, thread, *_ in calls[: behind[-1] if behind else 0]:
        if call_type == CallType.COLLECTIVE and thread == record.main_thread:
            yield record.collectives[what]


def _moved_by(record: RankRecord) -> Batch:
    """The samples and tokens that one rank moves to its device in the iteration that is written."""
    copies = list(_copies(record))
    if not copies:
        return Batch()
    # Inputs and labels have a first size in common; a mask or a table may be larger than both. A
    # list belongs to them only if a tensor of more dimensions has its length.
    lengths = {copy.shape[0] for copy in copies if len(copy.shape) > 1}
    sizes = Counter(copy.shape[0] for copy in copies if copy.shape[0] in lengths or not lengths)
    copies = [copy for copy in copies if sizes[copy.shape[0]] == max(sizes.values())]
    words = [copy for copy in copies if copy.dtype in _INTEGERS]
    most = max((prod(copy.shape) for copy in words if len(copy.shape) > 1), default=0)
    # Weights of losses come with tokens and are no larger.
    numbers = [c for c in copies if c.dtype not in (*_INTEGERS, _BYTES) and prod(c.shape) > most]
    main = max(numbers or words or copies, key=lambda copy: prod(copy.shape))
    seen = [copy for copy in copies if (copy.shape, copy.dtype) == (main.shape, main.dtype)]
    has_tokens = main in words and len(main.shape) > 1
    # Tokens are moved as inputs and as targets.
    passes = _passes(_backward_count(record), seen, copies_each=2 if has_tokens else 1)
    return Batch(
        main.shape[0] * passes,
        prod(main.shape[:2]) * passes if has_tokens else 0,
        tuple(copy.checksum for copy in seen),
    )


@dataclass(frozen=True, slots=True)
class _Copy:
    """A tensor that came from the host, *after* so many spans of the backward pass."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int
    after: int


def _copies(record: RankRecord) -> Iterator[_Copy]:
    windows = Windows(record)
    spans, was_behind = 0, False
    for call_type, what, thread, *_ in windows.all[windows.chosen]:
        is_behind = thread != record.main_thread
        spans += is_behind and not was_behind
        was_behind = is_behind
        if call_type != CallType.KERNEL or record.kinds[what]["operator"] != COPY:
            continue
        shape, dtype = record.kinds[what]["outputs"][0][1:3]
        if shape and prod(shape) > 1:
            yield _Copy(tuple(shape), dtype, record.kinds[what]["arguments"]["checksum"], spans)


def _backward_count(record: RankRecord) -> int:
    """Backward passes of the iteration; spans of them where torch's engine is asked directly."""
    windows = Windows(record)
    threads = [thread != record.main_thread for _, _, thread, *_ in windows.all[windows.chosen]]
    spans = sum(now and not before for before, now in pairwise([False, *threads]))
    return record.iterations[windows.chosen].backward_passes or spans


def _passes(backward_count: int, copies: Sequence[_Copy], *, copies_each: int) -> int:
    """Micro-batches: moved between backward passes, or all before; a pipeline splits one batch."""
    moments = len({copy.after for copy in copies})
    if moments > 1:
        return max(min(backward_count, moments), 1)
    return backward_count if len(copies) >= backward_count * copies_each > 0 else 1
