"""RankRecord: what one rank did in its steady iterations, as plain values in a file.

The process that runs the script writes it and the one that builds the job reads it, so it knows
neither torch nor ops. A call is five numbers: type, what, thread, stream, operator.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

Call = tuple[int, int, int, int, int]
DEVICE_SHIFT = 32
"""The number of a stream is below this bit, that of its device above."""
COMPILED = "compiled "
"""How names of operators begin that are launches of compiled code."""


class CallType(IntEnum):
    """What a call is; `what` is the number of a kind, collective, event or device.

    GRAPH is where the launch of a captured graph begins (1) and ends (0).
    """

    KERNEL = 0
    NOTE = 1
    COLLECTIVE = 2
    RECORD = 3
    AWAIT = 4
    SYNC_STREAM = 5
    SYNC_EVENT = 6
    SYNC_DEVICE = 7
    LOAD = 8
    GRAPH = 9


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A process group that the script made: its ranks in order, and the line that made it."""

    name: str
    ranks: tuple[int, ...]
    family: str


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """What the script does between two boundaries, beside its calls.

    *steps* are those of the optimizer that makes most of them, *idle_optimizers* those that
    make none, and *evaluations* are spans in which the model is evaluated. *kernels_aside* are
    launched without gradients outside of optimizers.
    """

    backward_passes: int = 1
    steps: int = 1
    idle_optimizers: int = 0
    evaluations: int = 0
    kernels_aside: int = 0


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank.

    *kinds* describe kernels by operator, tensors and arguments. *collectives* are
    calls with their group, bytes and script line. *boundaries* are places in *calls*
    where an optimizer step ended: the *iterations* are between them, and those from number
    *first_steady* on are steady. *main_thread* is the thread that the script started on.
    *most_aside* is the most that any iteration launches without gradients, recorded or not.
    *pieces* are parts of batches that this rank uses, of those it moved whole: checksum and offset.
    *reserved_memory_bytes* are what torch's own allocator took, 0 where it does not run.
    *fallbacks* are regions of compiled code that ran as eager code, and why.
    """

    rank: int
    kinds: tuple[dict[str, Any], ...]
    collectives: tuple[dict[str, Any], ...]
    groups: tuple[GroupRecord, ...]
    calls: tuple[Call, ...]
    operator_names: tuple[str, ...]
    boundaries: tuple[int, ...]
    iterations: tuple[IterationRecord, ...]
    first_steady: int
    main_thread: int
    peak_memory_bytes: int
    peak_place: str
    placeholders: dict[str, int]
    notes: tuple[str, ...]
    compiled_regions: int
    fallbacks: dict[str, str]
    compile_cpu_s: float
    was_stopped: bool
    step_count: int
    torch_version: str
    step_cpu_s: tuple[float, ...]
    most_aside: int = 0
    pieces: tuple[tuple[int, int], ...] = ()
    reserved_memory_bytes: int = 0


def to_bytes(record: RankRecord) -> bytes:
    """*record* as it is stored."""
    words = json.dumps(asdict(record), separators=(",", ":"), default=lambda one: one.tolist())
    return words.encode()


def from_bytes(content: bytes) -> RankRecord:
    """The record that `to_bytes` wrote."""
    # Only the process that reads records needs it, not those that write them.
    from pydantic import TypeAdapter

    return TypeAdapter(RankRecord).validate_json(content)
