"""Clock faults: stamps of one rank that contradict each other.

None of them stops an import, because a few are in many recordings; each is
counted and reported, and shows in the self-replay.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.units import format_duration
from perfmodel.recordings.rank_view import Int64s, RankView

_TOLERANCE_NS = 1_000_000
_OVERLAP_NS = 10_000
_PAUSE_RATIO = 0.5
_PAUSE_NS = 100_000_000


def find_clock_faults(view: RankView) -> tuple[str, ...]:
    """What contradicts itself in the stamps of *view*, in sentences."""
    sentences = []
    early = _started_before_launch(view)
    if early:
        sentences.append(f"{early} device tasks start before the call that launches them")
    overlapping = _overlapping_on_stream(view)
    if overlapping:
        sentences.append(f"{overlapping} device tasks overlap the one before on their stream")
    pause_ns = _longest_pause_ns(view)
    if pause_ns:
        sentences.append(
            f"nothing happens for {format_duration(pause_ns)}, more than half of the window: "
            "a pause, or a clock that jumped"
        )
    return tuple(sentences)


def _started_before_launch(view: RankView) -> int:
    linked = view.device.call >= 0
    calls = view.device.call[linked]
    delay_ns = view.device.start_ns[linked] - view.calls.start_ns[calls]
    return int((delay_ns < -_TOLERANCE_NS).sum())


def _overlapping_on_stream(view: RankView) -> int:
    count = 0
    for stream in np.unique(view.device.stream).tolist():
        chosen = view.device.stream == stream
        start_ns, end_ns = view.device.start_ns[chosen], view.device.end_ns[chosen]
        count += int((start_ns[1:] < np.maximum.accumulate(end_ns)[:-1] - _OVERLAP_NS).sum())
    return count


def _longest_pause_ns(view: RankView) -> int:
    """The longest time without a call or device task, if it is most of the window."""
    start_ns: Int64s = np.concatenate([view.calls.start_ns, view.device.start_ns])
    end_ns: Int64s = np.concatenate([view.calls.end_ns, view.device.end_ns])
    order = np.argsort(start_ns, kind="stable")
    reached_ns = np.maximum.accumulate(end_ns[order])
    pauses = start_ns[order][1:] - reached_ns[:-1]
    longest = int(pauses.max(initial=0))
    window_ns = int(reached_ns[-1] - start_ns[order][0])
    is_long = longest > _PAUSE_NS and longest > _PAUSE_RATIO * window_ns
    return longest if is_long else 0
