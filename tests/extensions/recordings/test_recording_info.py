"""What a recording knows of its tasks: how long they took together, and what holds back what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.engine.reasons import Window
from perfmodel.engine.replay import replay
from perfmodel.engine.settle import Rules, settle
from perfmodel.extensions.recordings.recorded_job import ImportReport, RecordedJob
from perfmodel.extensions.recordings.recording_info import RecordingInfo, describe_recording
from perfmodel.extensions.recordings.steady import SteadyJob, longest_span
from perfmodel.extensions.recordings.stream_holds import KnownEffects
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
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
            device, Fixed("gemm", 100 * stretch, waves=4.0), label="gemm", after=launches[:1]
        )
        program.add_task(device, Fixed("gemm", 50 + rank), label="gemm", after=[launches[2], first])
        builder.add_rank(builder.add_program(program.build()))
    return builder.build(JobFacts("small", **facts))


JOB = with_own_origins(build_job())
"""Tasks of rank 0 are 0 to 4, those of rank 1 are 5 to 9: launches first."""
START = np.array([0, 10, 20, 30, 130, 2, 11, 22, 33, 133])
END = np.array([10, 20, 30, 130, 180, 12, 22, 33, 133, 200])


def notes(starts=(), steps: int = 0, **known: Any) -> RecordingInfo:
    """What a recording of JOB knows: of one window, or of *steps* that repeat."""
    durations = build_durations(JOB, [np.array([op.duration_ns for op in JOB.ops])[one.op]
                                      for one in JOB.programs])  # fmt: skip
    alone_ns = durations.values_ns[:, 0].astype(float)
    settled = settle(replay, JOB, alone_ns, Rules([], rounds=1, iterations=1))
    return RecordingInfo(
        can_be_held=np.arange(10) % 2 == 0,
        window_starts=np.array(starts, dtype=np.int64),
        steady=SteadyJob(JOB, max(steps, 1), repeats=steps > 0),
        profiled=JOB,
        effects=KnownEffects(settled),
        **known,
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


def test_a_single_step_is_the_longest_pass_of_a_rank_but_for_where_the_recording_begins():
    def span(*starts: int) -> Window:
        return longest_span(JOB, np.array(starts), START, END)

    # Rank 1 takes from 2 to 200, rank 0 from 0 to 180.
    assert span() == Window(2, 200)
    # Without their first tasks: 10 to 180, and 22 to 200 if two are left out.
    assert span(0, 5, 6) == Window(22, 200)
    # The rank that ends last is not the one that takes longest: 133 to 200, and 0 to 180.
    assert span(*range(5, 9)) == Window(0, 180)


def test_of_a_job_that_was_only_retimed_the_same_tasks_hold_back_others():
    own = notes()
    assert own.rules(JOB).rules == [own.effects]
    assert own.effects not in own.rules(without(4)).rules


def test_a_kernel_holds_back_others_until_its_last_wave_and_new_tasks_are_not_held():
    rule = notes().hold_rule(without(4, 6))
    assert [one.tolist() for one in (rule.ratio, rule.can_be_held)] == [
        [0.0, 0.0, 0.0, 0.75, 0.0] * 2,
        [True, False, True, False, False, False, False, False, True, False],
    ]


def test_a_recording_begins_with_the_first_task_of_every_rank():
    ranks: Any = (None, None)
    report = ImportReport(ranks, rendezvous=0, steps=1, recorded_starts={})
    column = np.zeros(10, dtype=np.int64)
    recorded = RecordedJob(build_job(), column, column, column == 1, (column[:1],), report, column)
    found = describe_recording(recorded)
    assert found.window_starts.tolist() == [0, 5]
    assert found.profiled.programs[1].origin.tolist() == [5, 6, 7, 8, 9]
