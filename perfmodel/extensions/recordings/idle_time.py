"""Idle time: why the GPU of a rank did nothing, and how many launches waited for it.

A GPU is idle while none of its streams runs a task. Until the next task was launched, its host was
late; from there on it is a gap between kernels: launch latency, or a wait for another stream.
Waiting for other ranks is not idle time, because it happens inside kernels of collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfmodel.base.errors import TraceError
from perfmodel.base.units import NS_PER_MS
from perfmodel.extensions.recordings.collective_calls import CollectiveKernel
from perfmodel.extensions.recordings.rank_clocks import (
    match_collectives,
    rank_offsets_ns,
    transfer_ns,
)
from perfmodel.extensions.recordings.rank_view import RankView


def describe_idle(
    views: Sequence[RankView], calls: Sequence[Sequence[CollectiveKernel]]
) -> list[dict[str, Any]]:
    """The idle time of every rank by cause, as plain values for JSON."""
    waits_ns = _waits_ns(views, calls)
    return [
        _describe_rank(view)
        | {"waiting_in_collectives_ms": None if wait is None else wait / NS_PER_MS}
        for view, wait in zip(views, waits_ns, strict=True)
    ]


def _describe_rank(view: RankView) -> dict[str, Any]:
    device = view.device
    order = np.argsort(device.start_ns, kind="stable")
    start_ns, busy_until_ns = device.start_ns[order], np.maximum.accumulate(device.end_ns[order])
    window_ns = int(busy_until_ns[-1] - start_ns[0])
    from_ns, until_ns, call = busy_until_ns[:-1], start_ns[1:], device.call[order][1:]
    idle_ns = np.maximum(until_ns - from_ns, 0)
    # A call of -1 is none, and what it looks up is not used.
    launched_ns = view.calls.start_ns[call] if len(view.calls) else np.zeros_like(from_ns)
    host_ns = np.clip(np.minimum(launched_ns, until_ns) - from_ns, 0, idle_ns)
    is_known = call >= 0
    causes_ns = {
        "host_late": int(host_ns[is_known].sum()),
        "kernel_gap": int((idle_ns - host_ns)[is_known].sum()),
        "launch_not_recorded": int(idle_ns[~is_known].sum()),
    }
    return {
        "rank": view.trace.rank,
        "window_ms": window_ns / NS_PER_MS,
        "idle_ms": int(idle_ns.sum()) / NS_PER_MS,
        "causes_ms": {cause: spent_ns / NS_PER_MS for cause, spent_ns in causes_ns.items()},
        "launch_queue": _describe_queue(view, window_ns),
    }


def _describe_queue(view: RankView, window_ns: int) -> dict[str, float]:
    """How many tasks were launched and had not started: the mean over time, and the most."""
    linked = view.device.call >= 0
    if not linked.any():
        return {"mean": 0.0, "most": 0}
    started_ns = np.sort(view.device.start_ns[linked])
    launched_ns = np.sort(view.calls.start_ns[view.device.call[linked]])
    # Launches up to each launch, minus the tasks that started by then.
    waiting = np.arange(1, len(launched_ns) + 1) - np.searchsorted(
        started_ns, launched_ns, side="right"
    )
    queued_ns = int((started_ns - launched_ns).sum())
    return {"mean": max(queued_ns / max(window_ns, 1), 0.0), "most": int(max(waiting.max(), 0))}


def _waits_ns(
    views: Sequence[RankView], calls: Sequence[Sequence[CollectiveKernel]]
) -> list[int | None]:
    """How long each rank waited for others inside collectives; None where that is not known."""
    try:
        groups = match_collectives(views, calls)
    except TraceError:
        # Ranks of different steps: their waits are unknown, all else is known.
        return [None] * len(views)
    shifts_ns = rank_offsets_ns(views, groups)
    shifted = [view.shifted(shift) for view, shift in zip(views, shifts_ns, strict=True)]
    waits: list[int | None] = [None] * len(views)
    for group in groups:
        for number in range(group.count):
            lengths_ns = transfer_ns(shifted, group, number)
            for member, rank in enumerate(group.members):
                own_ns = views[rank].device.length_ns(group.calls[member][number].task)
                waits[rank] = (waits[rank] or 0) + max(own_ns - lengths_ns[member], 0)
    return waits
