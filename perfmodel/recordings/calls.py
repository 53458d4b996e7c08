"""Calls: what a runtime call of CUDA or ROCm does to the thread that makes it.

Only calls that launch, wait or allocate matter; all others are host time like
any other.
"""

from __future__ import annotations

from enum import IntEnum


class CallKind(IntEnum):
    """What a call does."""

    OTHER = 0
    STREAM_SYNCHRONISE = 1
    DEVICE_SYNCHRONISE = 2
    MARK_SYNCHRONISE = 3
    ELAPSED_TIME = 4
    STREAM_WAIT = 5
    FREE = 6
    ALLOCATE = 7
    MARK_RECORD = 8


# The first prefix that fits decides; names without cuda, hip or cu in front.
_PREFIXES = (
    ("StreamSynchronize", CallKind.STREAM_SYNCHRONISE),
    ("DeviceSynchronize", CallKind.DEVICE_SYNCHRONISE),
    ("CtxSynchronize", CallKind.DEVICE_SYNCHRONISE),
    ("EventSynchronize", CallKind.MARK_SYNCHRONISE),
    ("EventElapsedTime", CallKind.ELAPSED_TIME),
    ("EventRecord", CallKind.MARK_RECORD),
    ("StreamWaitEvent", CallKind.STREAM_WAIT),
    ("FreeAsync", CallKind.OTHER),
    ("FreeHost", CallKind.OTHER),
    ("Free", CallKind.FREE),
    ("MemFree", CallKind.FREE),
    ("MallocAsync", CallKind.OTHER),
    ("MallocHost", CallKind.OTHER),
    ("MallocFromPool", CallKind.OTHER),
    ("Malloc", CallKind.ALLOCATE),
    ("MemAlloc", CallKind.ALLOCATE),
)
_RUNTIMES = ("cuda", "hip", "cu")


def kind_of_call(name: str) -> CallKind:
    """What the call *name* does, such as `cudaStreamSynchronize`."""
    for runtime in _RUNTIMES:
        if name.startswith(runtime):
            word = name.removeprefix(runtime)
            return next(
                (kind for prefix, kind in _PREFIXES if word.startswith(prefix)), CallKind.OTHER
            )
    return CallKind.OTHER


def is_communication(kernel: str) -> bool:
    """Whether *kernel* is one of NCCL or RCCL."""
    word = kernel.lower()
    return word.startswith(("nccldevkernel", "ncclkernel", "rccl")) or "nccldevkernel" in word
