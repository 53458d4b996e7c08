"""What the calls of an iteration become: events, synchronisations, loaders, threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from perfmodel.extensions.emulation.programs import build_program
from perfmodel.extensions.emulation.rank_record import CallType
from perfmodel.extensions.emulation.windows import Windows
from perfmodel.graph.program import LaneKind
from perfmodel.graph.tables import Tables
from tests.extensions.emulation.test_communicators import LATENCY_NS, record
from tests.extensions.emulation.test_windows import ADD, VIEW


def call(kind, what=0, *, stream=1, thread=1, operator=0):
    return (int(CallType[kind]), what, thread, stream, operator)


def written(*iterations):
    """The program of the last of *iterations*, and its labels."""
    tables = Tables()
    one = replace(
        record(0, []), calls=sum(iterations, ()), kinds=(ADD, VIEW), operator_names=("", "node"),
        boundaries=(0, *accumulate(map(len, iterations))), first_steady=len(iterations) - 1,
    )  # fmt: skip
    program = build_program(Windows(one), tables, LATENCY_NS, {})
    return program, [list(tables.label_index)[label] for label in program.label]


def awaited(program, task):
    """The tasks that *task* waits for, with the distance."""
    deps = slice(program.dep_start[task], program.dep_start[task + 1])
    pairs = zip(program.dep_task[deps].tolist(), program.dep_distance[deps].tolist(), strict=True)
    return list(pairs)


KERNEL, MARK = call("KERNEL"), call("RECORD", 7)
OVERLAPPING = (call("AWAIT", 7, stream=2), call("KERNEL", stream=2, operator=1))


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [
        # Host 0 to 2, the kernel that waits 3, the kernel before the mark 4.
        ([(*OVERLAPPING, KERNEL, MARK)], [(0, 0)]),
        ([(*OVERLAPPING, KERNEL, MARK)] * 2, [(0, 0), (4, 1)]),
        ([(KERNEL, MARK), (KERNEL,), (*OVERLAPPING, KERNEL)], [(0, 0), (3, 2)]),
        # Three tasks: the fourth of the first iteration is not there.
        ([(KERNEL, KERNEL, MARK), OVERLAPPING], [(0, 0)]),
        # A distance is at most 255 iterations.
        ([(KERNEL, MARK), *[(KERNEL,)] * 254, (*OVERLAPPING, KERNEL)], [(0, 0), (3, 255)]),
        ([(KERNEL, MARK), *[(KERNEL,)] * 255, (*OVERLAPPING, KERNEL)], [(0, 0)]),
    ],
)
def test_an_event_of_an_earlier_iteration_is_awaited_over_that_distance(iterations, expected):
    program, labels = written(*iterations)
    assert program.lanes[1].name == "compute stream 0"
    waiting = labels.index("node/add_", int(program.lane_start[1]))
    assert awaited(program, waiting) == expected
    assert program.dep_lag_ns[program.dep_start[waiting]] == LATENCY_NS


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        (call("SYNC_STREAM", stream=2), [5]),
        (call("SYNC_EVENT", 7), [4]),
        (call("SYNC_DEVICE"), [4, 5]),
    ],
)
def test_a_synchronisation_waits_for_what_it_names(sync, expected):
    program, labels = written((KERNEL, MARK, call("KERNEL", stream=2, operator=1), sync))
    # Host: two launches, the rest of the second operator, the wait. Then one kernel per stream.
    assert labels[2:4] == ["synchronize"] * 2
    assert [task for task, _ in awaited(program, 3)] == expected


def test_a_loader_with_workers_has_a_lane_and_room_for_two_batches():
    load, view = call("LOAD", 1), call("NOTE", 1)
    program, labels = written((load, view, load, KERNEL))
    assert program.lanes[-1].kind is LaneKind.LOADER
    assert labels[:3] == ["take batch", "before the batch", "take batch"]
    first = labels.index("load batch")
    assert awaited(program, 0) == [(first, 0)]
    assert awaited(program, first) == [(0, 2)]
    alone, _ = written((call("LOAD", 0), KERNEL))
    assert LaneKind.LOADER not in {lane.kind for lane in alone.lanes}


def test_threads_take_turns_and_streams_are_named_after_what_they_do():
    backward = call("KERNEL", thread=9, operator=1)
    program, labels = written((KERNEL, backward, call("KERNEL", thread=30, stream=3), KERNEL))
    names = [lane.name for lane in program.lanes]
    assert names == [
        "main thread", "compute stream 0", "compute stream 1", "autograd thread", "thread 2"
    ]  # fmt: skip
    assert labels.count("hand-over") == 3
