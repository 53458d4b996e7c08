"""The budget: no room grows without saying so."""

from __future__ import annotations

from tests.contract.budget import find_overruns, load_limits, measure_rooms


def test_no_room_is_larger_than_it_promised():
    assert not find_overruns(measure_rooms(), load_limits())


def test_one_token_too_many_is_noticed():
    limits = load_limits()
    measured = {room: dict(counts) for room, counts in limits.items()}
    measured["perfmodel/engine"]["tokens"] += 1
    measured["perfmodel/attic"] = {"files": 1}

    first, second = find_overruns(measured, limits)
    assert first.startswith("perfmodel/engine: ")
    assert second == "perfmodel/attic: 1 files, limit 0"
