"""Routing: how much more than the mean the most loaded rank of an expert group gets.

Loads of experts follow a power law between one token and four fifths of all,
as the public tables of expert layers draw them; which expert gets which load is
drawn with a fixed seed, and the mean over draws is taken.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

_DRAWS = 32
_MOST_SHARE = 0.8
_SMALL = (0.01, 2.0)
"""Range of loads where there are fewer choices than experts."""


@dataclass(frozen=True, slots=True)
class Loads:
    """What the most loaded of the ranks that divide experts gets: *rows* in all, for *active*
    experts, and *longest* for the one with most."""

    rows: float
    active: float
    longest: float


@lru_cache(maxsize=4096)
def hottest_loads(
    *, tokens: int, top_k: int, experts: int, ranks: int, exponent: float | None
) -> Loads:
    """The loads of the most loaded of *ranks* if *tokens* choose *top_k* of *experts* each.

    Without an *exponent* every expert gets the same. One power-law exponent of 1 is as good as
    1 + 1e-6.
    """
    chosen, held = tokens * top_k, experts // ranks
    if exponent is None:
        rows = chosen / ranks
        return Loads(rows, max(1.0, min(float(held), rows)), chosen / experts)
    power = 1.0 - exponent if abs(exponent - 1.0) > 1e-6 else -1e-6
    low, high = (1.0, max(_MOST_SHARE * tokens, 2.0)) if chosen > experts else _SMALL
    first, last = low**power, high**power
    generator = random.Random(0)  # noqa: S311  # a fixed seed, so that answers repeat
    sums = [0.0, 0.0, 0.0]
    for _ in range(_DRAWS):
        drawn = [
            ((last - first) * generator.random() + first) ** (1.0 / power) for _ in range(experts)
        ]
        scale = chosen / sum(drawn)
        loads = [min(load * scale, float(tokens)) for load in drawn]
        parts = [loads[start : start + held] for start in range(0, experts, held)]
        hot = max(parts, key=sum)
        sums[0] += sum(hot)
        sums[1] += sum(load >= 0.5 for load in hot)
        sums[2] += max(hot)
    rows, active, longest = (value / _DRAWS for value in sums)
    return Loads(rows, max(1.0, active), longest)
