"""What a recording knows of its tasks: where steps end, and what holds back what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.recordings import recording_info
from perfmodel.extensions.recordings.recorded_job import ImportReport, RecordedJob
from perfmodel.extensions.recordings.recording_info import (
    RecordingInfo,
    describe_recording,
    list_substitutes,
)
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph, with_own_origins
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import NO_ORIGIN, LaneKind


def build_job(stretch: int = 1, **facts) -> JobGraph:
    """Two ranks: three launches on the host, then two kernels, the second of the last launch."""
    builder = JobBuilder()
    for rank in range(2):
        program = builder.new_program()
        host = program.add_lane("host", LaneKind.HOST)
        device = program.add_lane("stream", LaneKind.COMPUTE)
        launches = [
            program.add_task(host, Fixed("launch", 10 + rank), label="launch") for _ in range(3)
        ]
        first = program.add_task(
            device, Fixed("gemm", 100 * stretch), label="gemm", after=launches[:1]
        )
        program.add_task(device, Fixed("gemm", 50 + rank), label="gemm", after=[launches[2], first])
        builder.add_rank(builder.add_program(program.build()))
    return builder.build(JobFacts("small", **facts))


JOB = with_own_origins(build_job())
"""Tasks of rank 0 are 0 to 4, those of rank 1 are 5 to 9: launches first."""
START = np.array([0, 10, 20, 30, 130, 2, 11, 22, 33, 133])
END = np.array([10, 20, 30, 130, 180, 12, 22, 33, 133, 200])


def notes(step_ends=((3, 8), (4, 9)), starts=()) -> RecordingInfo:
    return RecordingInfo(
        hold_ratio=np.arange(10) / 10,
        can_be_held=np.arange(10) % 2 == 0,
        window_starts=np.array(starts, dtype=np.int64),
        step_ends=tuple(np.array(ends) for ends in step_ends),
        recorded=JOB,
    )


def without(*tasks: int) -> JobGraph:
    """The job as if others stood where *tasks* were."""
    return replace(
        JOB,
        programs=tuple(
            replace(one, origin=np.where(np.isin(one.origin, tasks), NO_ORIGIN, one.origin))
            for one in JOB.programs
        ),
    )


def test_a_step_ends_with_the_last_of_its_tasks():
    assert notes().step_moments_ns(JOB, START, END) == [133, 200]


def test_a_single_step_is_the_longest_pass_of_a_rank_but_for_where_the_recording_begins():
    # Rank 1 takes from 2 to 200, rank 0 from 0 to 180.
    assert notes(step_ends=((4, 9),)).step_moments_ns(JOB, START, END) == [2, 200]
    # Without their first tasks: 10 to 180, and 22 to 200 if two are left out.
    assert notes(((4, 9),), starts=(0, 5, 6)).step_moments_ns(JOB, START, END) == [22, 200]
    # The rank that ends last is not the one that takes longest: 133 to 200, and 0 to 180.
    assert notes(((4, 9),), starts=range(5, 9)).step_moments_ns(JOB, START, END) == [0, 180]
    assert notes(starts=(0, 5)).span_ns(JOB, START, END) == 189
    assert notes(starts=range(5)).span_ns(JOB, START, END) == 198


def test_removed_tasks_are_replaced_by_their_launch_and_what_came_before():
    # The second kernel was launched by task 2; before it came 1 and 0.
    assert list_substitutes(JOB, 4) == [4, 2, 1, 0]
    assert list_substitutes(JOB, 8) == [8, 5]
    assert list_substitutes(JOB, 6) == [6, 6, 5]
    # Of the second step nothing is left, so the launches of both steps are used instead.
    moments = notes().step_moments_ns(without(4, 9), START, END)
    assert moments == [12, 33]
    # One rank of each step is enough.
    assert notes().step_moments_ns(without(4), START, END) == [133, 200]
    with pytest.raises(ScenarioError, match="Remove less"):
        notes().step_moments_ns(without(4, 9, 0, 5, 2, 7), START, END)


def test_substitutes_end_somewhere(monkeypatch):
    monkeypatch.setattr(recording_info, "MOST_SUBSTITUTES", 1)
    assert list_substitutes(JOB, 4) == [4, 2, 1]


def test_new_tasks_neither_hold_nor_are_held():
    rule = notes().hold_rule(without(4, 6))
    assert [one.tolist() for one in (rule.ratio, rule.can_be_held)] == [
        [0.0, 0.1, 0.2, 0.3, 0.0, 0.5, 0.0, 0.7, 0.8, 0.9],
        [True, False, True, False, False, False, False, False, True, False],
    ]


def test_a_recording_begins_with_the_first_task_of_every_rank():
    ranks: Any = (None, None)
    report = ImportReport(ranks, rendezvous=0, steps=1, recorded_starts={})
    column = np.zeros(10, dtype=np.int64)
    recorded = RecordedJob(
        build_job(), column, column, column / 1.0, column == 1, (column[:1],), report
    )
    found = describe_recording(recorded)
    assert found.window_starts.tolist() == [0, 5]
    assert found.recorded.programs[1].origin.tolist() == [5, 6, 7, 8, 9]
