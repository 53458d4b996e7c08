"""Routing: the load of the most loaded rank of an expert group.

Loads of experts follow a power law between one token and 80 % of all, as in the public tables of
expert layers. Which expert gets which load is drawn with a fixed seed; the result is the mean over
draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_DRAWS = 64
_NEAR_ONE = 1e-6
_LEAST_LOAD = 0.5
_MOST_SHARE = 0.8
_SMALL = (0.01, 2.0)
"""Range of loads if there are fewer choices than experts."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Load of the most loaded rank: its *rows*, and its *active* experts, which get any rows."""

    rows: float
    active: float


@lru_cache(maxsize=4096)
def hottest_loads(
    *, tokens: int, top_k: int, experts: int, ranks: int, exponent: float | None
) -> Loads:
    """The loads of the most loaded of *ranks* if *tokens* choose *top_k* of *experts* each.

    Without an *exponent* every expert gets the same.
    """
    chosen, held = tokens * top_k, experts // ranks
    if exponent is None:
        rows = chosen / ranks
        return Loads(rows, max(1.0, min(float(held), rows)))
    power = 1.0 - exponent if abs(exponent - 1.0) > _NEAR_ONE else -_NEAR_ONE
    low, high = (1.0, max(_MOST_SHARE * tokens, 2.0)) if chosen > experts else _SMALL
    first, last = low**power, high**power
    uniform = np.random.default_rng(0).random((_DRAWS, experts))
    drawn = ((last - first) * uniform + first) ** (1.0 / power)
    loads = np.minimum(drawn * chosen / drawn.sum(axis=1, keepdims=True), tokens)
    of_rank = loads.reshape(_DRAWS, ranks, held)
    hot = of_rank[np.arange(_DRAWS), of_rank.sum(axis=2).argmax(axis=1)]
    active = float((hot >= _LEAST_LOAD).sum(axis=1).mean())
    return Loads(float(hot.sum(axis=1).mean()), max(1.0, active))
