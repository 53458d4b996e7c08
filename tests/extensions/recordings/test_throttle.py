"""Allocations of the ranks of a host share the driver. All times are in microseconds."""

import numpy as np
import pytest

from perfmodel.extensions.recordings.throttle import alone_ns, throttled_ns
from tests.extensions.recordings.builders import call, find_tasks, held_of, import_spans
from tests.traces.builders import kernel, launch

US = 1_000


def us(*values):
    return np.array(values, dtype=np.int64) * US


def test_calls_that_meet_are_parted_into_what_each_takes_alone():
    # From 0 to 10 the first is alone, then two share until 30, then the second is alone: 10 and
    # half of 20, half of 20 and 5.
    assert alone_ns(us(0, 10), us(30, 35)).tolist() == us(20, 15).tolist()
    assert alone_ns(us(0, 50), us(30, 55)).tolist() == us(30, 5).tolist()


def test_calls_that_meet_again_take_what_they_took():
    rank = np.array([0, 1])

    assert throttled_ns(us(0, 10), us(20, 25), us(20, 15), rank).tolist() == us(30, 25).tolist()


def test_what_follows_a_call_comes_as_much_later_as_it_ends_later():
    # Rank 0 calls twice, with 5 between; rank 1 once. Together until 20, so that the second
    # call of rank 0 comes at 25, when rank 1 is done at 20.
    rank = np.array([0, 0, 1])

    lengths = throttled_ns(us(0, 15, 0), us(10, 25, 10), us(10, 10, 10), rank)

    assert lengths.tolist() == us(20, 10, 20).tolist()


def test_a_call_of_another_thread_of_the_rank_meets_the_first():
    rank = np.array([0, 0])

    # 10 alone, then both: the second is done after 2 x 5, the first has 5 left of 20 then.
    assert throttled_ns(us(0, 10), us(20, 15), us(20, 5), rank).tolist() == us(25, 10).tolist()


def allocating(start, length):
    """A rank that allocates once, and launches a kernel then."""
    return [
        launch(1, 0), kernel(1, 7, 10), call("cudaMalloc", start, length, 2),
        launch(3, start + length), kernel(3, start + length + 7, 10),
    ]  # fmt: skip


@pytest.mark.parametrize("other", [100, 900])
def test_a_recording_replays_its_allocations_whether_they_met_or_not(tmp_path, other):
    lengths = {100: (400, 400), 900: (400, 200)}[other]
    job = import_spans(tmp_path, allocating(100, lengths[0]), allocating(other, lengths[1]))
    calls = [row for rank in range(2) for row in find_tasks(job, rank, "cudaMalloc")]

    alone = job.durations().values_ns[calls, 0].tolist()
    assert alone == us(*{100: (200, 200), 900: (400, 200)}[other]).tolist()
    held = held_of(job)
    assert held.end_ns[calls].tolist() == job.recorded_end_ns[calls].tolist()
    assert held.unsettled == 0


def test_ranks_that_are_kept_apart_allocate_faster(tmp_path):
    job = import_spans(tmp_path, allocating(100, 400), allocating(100, 400))
    later = held_of(job).durations.values_ns[:, 0].copy()
    [work] = [row for row in find_tasks(job, 1, "python") if later[row] > 50 * US]
    table = job.durations()
    table.values_ns[work, 0] += 1000 * US
    [mine], [other] = (find_tasks(job, rank, "cudaMalloc") for rank in range(2))

    held = held_of(job, table)

    for row in (mine, other):
        assert held.end_ns[row] - held.start_ns[row] == 200 * US
