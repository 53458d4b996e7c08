"""Amounts that nothing can have, through every door: refused, warned of, or without effect."""

from __future__ import annotations

import copy
import random

import pytest

from tests.fuzz.doors import IMPOSSIBLE, Damage, build_doors, iter_places, judge, scaled

FINE = ("refused", "same answer", "said", "assumed", "verdict", "not a file")
DOORS = {door.name: door for door in build_doors()}


@pytest.mark.parametrize("factor", [*IMPOSSIBLE[:2], 1000])
@pytest.mark.parametrize("name", DOORS)
def test_an_amount_beyond_physics_is_not_answered_in_silence(name, factor):
    """One amount of every kind of file, another for each factor; `make fuzz` draws all."""
    door = DOORS[name]
    content = copy.deepcopy(door.good)
    amounts = [
        (path, holder, key)
        for path, holder, key in iter_places(content)
        if scaled(holder[key], 1) is not None and scaled(holder[key], 0) != holder[key]
    ]
    if not amounts:
        pytest.skip("states no amount")
    path, holder, key = random.Random(f"{name} {factor}").choice(amounts)
    holder[key] = scaled(holder[key], factor)
    word, detail = judge(
        door, Damage("impossible" if factor != 1000 else "scale", str(key), content)
    )
    # A thousand times the batch is another question.
    assert word in (*FINE, "another value") if factor == 1000 else word in FINE, f"{path}: {detail}"
