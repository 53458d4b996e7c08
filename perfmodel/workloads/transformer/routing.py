"""Routing: rows that the most loaded rank of an expert group works on, and copies that travel."""

from __future__ import annotations

import math

from perfmodel.graph.routing import hottest_loads
from perfmodel.workloads.transformer.spec import Routing, TransformerSpec


def routed_rows(spec: TransformerSpec, *, tokens: int, ep: int) -> int:
    """Rows that the most loaded of *ep* ranks works on if each has *tokens* tokens."""
    model, training = spec.model, spec.training
    is_even = training.routing is Routing.BALANCED
    loads = hottest_loads(
        tokens=tokens * ep,
        top_k=model.top_k,
        experts=model.experts,
        ranks=ep,
        exponent=None if is_even else training.routing_exponent,
    )
    rows = loads.rows
    if training.capacity_factor is not None:
        rows = min(rows, training.capacity_factor * tokens * model.top_k)
    return math.ceil(rows)


def distinct_places(choices: int, places: int) -> float:
    """Of *places*, how many *choices* made evenly and independently are expected to fall on."""
    return places * (1.0 - (1.0 - 1.0 / places) ** choices)
