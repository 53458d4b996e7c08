"""Arrivals: when ranks that were not recorded came to a collective.

A kernel that took longer than the shortest of its like waited for somebody.
The time from the end of the collective before to that arrival is an input
taken from the recording; it is the others' work, and moves with that end.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.rank_program import Arrival
from perfmodel.recordings.rank_view import RankView


def find_arrivals(view: RankView, calls: Sequence[CollectiveCall]) -> dict[int, Arrival]:
    """The arrivals of others at *calls*, by device task."""
    device = view.device
    shortest: dict[tuple[object, ...], int] = {}
    for call in calls:
        length_ns = int(device.end_ns[call.task] - device.start_ns[call.task])
        key = (call.group, *call.signature)
        shortest[key] = min(shortest.get(key, length_ns), length_ns)
    arrivals = {}
    previous: dict[str, int] = {}
    for call in calls:
        transfer_ns = shortest[(call.group, *call.signature)]
        came_ns = int(device.end_ns[call.task]) - transfer_ns
        before = previous.get(call.group)
        since_ns = 0 if before is None else int(device.end_ns[before])
        if came_ns > int(device.start_ns[call.task]):
            arrivals[call.task] = Arrival(before, came_ns - since_ns, transfer_ns)
        previous[call.group] = call.task
    return arrivals
