"""Nesting: which interval of a host thread is around a moment of that thread.

Operators, ranges and modules of a thread are nested. From an interval that has ended,
the next candidate outwards is the nearest earlier one that ends later; few such steps lead from
the last interval that began before a moment to the one around it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from perfmodel.graph.program import Int64s
from traces.trace import TraceColumns

NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False)
class _Thread:
    """The rows of one thread by start, and the place of the next candidate outwards of each."""

    rows: Int64s
    start_ns: Int64s
    end_ns: Int64s
    outwards: Int64s

    def climb(self, places: Int64s, moments_ns: Int64s) -> Int64s:
        """From each of *places*, the nearest one outwards that has not ended at its moment."""
        found = places.copy()
        left = np.flatnonzero(found != NOTHING)
        while len(left):
            left = left[self.end_ns[found[left]] <= moments_ns[left]]
            found[left] = self.outwards[found[left]]
            left = left[found[left] != NOTHING]
        return found


class Nesting:
    """The intervals in some *rows* of *columns*, by thread."""

    def __init__(self, columns: TraceColumns, rows: Int64s) -> None:
        self._threads: dict[int, _Thread] = {}
        threads = columns.thread[rows]
        for thread in np.unique(threads).tolist():
            own = rows[threads == thread]
            start_ns = columns.start_ns[own]
            end_ns = start_ns + columns.duration_ns[own]
            self._threads[thread] = _Thread(own, start_ns, end_ns, _outwards(end_ns))

    def around(self, moments_ns: Int64s, threads: Int64s, *, is_outermost: bool = False) -> Int64s:
        """The innermost row around each moment of its thread, or NOTHING."""
        result = np.full(len(moments_ns), NOTHING, dtype=np.int64)
        for thread, of in self._threads.items():
            asked = np.flatnonzero(threads == thread)
            places = np.searchsorted(of.start_ns, moments_ns[asked], side="right") - 1
            places = of.climb(places, moments_ns[asked])
            while is_outermost:
                further = np.where(places == NOTHING, NOTHING, of.outwards[places])
                if (further == NOTHING).all():
                    break
                places = np.where(further == NOTHING, places, further)
            result[asked] = np.where(places == NOTHING, NOTHING, of.rows[places])
        return result

    def parents(self) -> dict[int, int]:
        """By row, the row that it is inside of, or NOTHING."""
        found: dict[int, int] = {}
        for of in self._threads.values():
            places = of.climb(np.arange(-1, len(of.rows) - 1), of.start_ns)
            outer = np.where(places == NOTHING, NOTHING, of.rows[places])
            found.update(zip(of.rows.tolist(), outer.tolist(), strict=True))
        return found


def _outwards(end_ns: Int64s) -> Int64s:
    """By place, the nearest earlier one that ends later, or NOTHING."""
    found, open_places, open_ends = array("q"), [NOTHING], [2**63]
    # An array gives plain numbers one at a time.
    for place, end in enumerate(array("q", end_ns.tobytes())):
        while open_ends[-1] <= end:
            open_ends.pop()
            open_places.pop()
        found.append(open_places[-1])
        open_places.append(place)
        open_ends.append(end)
    return np.array(found, dtype=np.int64)
