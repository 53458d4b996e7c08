"""Time parts: whole nanoseconds that add up, however they are averaged.

Shares are rounded by largest remainder: every part is rounded down, and the
nanoseconds left over go to the parts that lost most; ties to the first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from perfmodel.engine.breakdown import Breakdown
from perfmodel.prediction.answer import Part, TimeParts


def from_breakdown(breakdown: Breakdown, *, total_ns: int) -> TimeParts:
    """The parts of *breakdown*, stretched to an iteration of *total_ns*.

    The window of a breakdown is one iteration of a rhythm that may take
    several, so that its length and the mean iteration can differ.
    """
    weights = [
        Fraction(breakdown.compute_ns),
        Fraction(breakdown.exposed_communication_ns),
        Fraction(breakdown.exposed_copy_ns),
        Fraction(breakdown.waiting_for_ranks_ns),
        Fraction(breakdown.host_bound_idle_ns),
    ]
    return _as_parts(weights, total_ns)


def mean_parts(parts: Sequence[TimeParts], class_sizes: Sequence[int]) -> TimeParts:
    """The mean of *parts* of equal length, each counted as often as its class has ranks."""
    weights = [
        Fraction(
            sum(
                size * entry.of_part_ns[part]
                for entry, size in zip(parts, class_sizes, strict=True)
            )
        )
        for part in Part
    ]
    return _as_parts(weights, parts[0].total_ns)


def share_out(weights: Sequence[Fraction], total_ns: int) -> list[int]:
    """*total_ns* in whole parts in proportion to *weights*; all 0 where the weights are."""
    whole = sum(weights)
    if whole == 0:
        return [0] * len(weights)
    exact = [weight * total_ns / whole for weight in weights]
    floors = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda place: (floors[place] - exact[place], place))
    for place in order[: total_ns - sum(floors)]:
        floors[place] += 1
    return floors


def _as_parts(weights: Sequence[Fraction], total_ns: int) -> TimeParts:
    return TimeParts(dict(zip(Part, share_out(weights, total_ns), strict=True)))
