"""Comparison: two replays are the same to the last bit."""

from __future__ import annotations

import numpy as np

from perfmodel.engine.replay import Replay


def assert_same(found: Replay, wanted: Replay) -> None:
    assert np.array_equal(found.lane_now_ns, wanted.lane_now_ns)
    assert found.lane_now_ns.dtype == wanted.lane_now_ns.dtype
    assert len(found.timelines) == len(wanted.timelines)
    for mine, theirs in zip(found.timelines, wanted.timelines, strict=True):
        assert mine.iteration == theirs.iteration
        assert mine.end_ns.dtype == theirs.end_ns.dtype
        assert np.array_equal(mine.end_ns, theirs.end_ns)
        assert np.array_equal(mine.member_ready_ns, theirs.member_ready_ns)
