"""Kernels of several waves hold back other streams, and who goes first on a tie."""

from __future__ import annotations

import numpy as np

from perfmodel.extensions.recordings.stream_holds import HoldRule, replay_with_holds
from tests.builders import job_of


def held_starts(ratios, lengths=(100, 100), *, ready=(0, 0)):
    """Starts of two kernels on two streams, the first ready moments after the beginning."""
    made = job_of(
        f"host launch {ready[0]}; gpu kernel {lengths[0]} <launch;"
        f"host again {ready[1]}; side other {lengths[1]} <again"
    )
    rule = HoldRule(np.array([0.0, 0.0, *ratios]), np.array([False, False, True, True]))
    return replay_with_holds(*made, rule).start_ns[2:].tolist()


def test_a_kernel_of_several_waves_holds_back_the_other_stream():
    # The second is ready at 10 and gets a place once 80 of 100 ns are over.
    assert held_starts((0.8, 0.0), ready=(0, 10)) == [0, 80]
    # Ready at 90, it is not held.
    assert held_starts((0.8, 0.0), ready=(0, 90)) == [0, 90]


def test_of_two_that_are_ready_in_the_same_nanosecond_the_one_stored_first_goes_first():
    assert held_starts((0.5, 0.5)) == [0, 50]
    assert held_starts((0.5, 0.9)) == [0, 50]
    # Only the second could hold, and the first is gone already.
    assert held_starts((0.0, 0.9)) == [0, 0]
