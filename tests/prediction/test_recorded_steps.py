"""Recordings: where their steps end, what is held, how sure they are, and other machines."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PerfModelError, ScenarioError
from perfmodel.engine.breakdown import Window
from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import NO_ORIGIN, LaneKind
from perfmodel.graph.storage import save_job
from perfmodel.prediction import question as asking
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.answering import (
    NO_DOUBT,
    _distrust,
    _recorded_interval,
    answer,
    answer_in_full,
    prepare_changes,
)
from perfmodel.prediction.moving import (
    about_machine,
    apply_change,
    check_trust,
    recorded_machine,
)
from perfmodel.prediction.question import (
    PredictOptions,
    Question,
    RecordingInfo,
    _stand_ins,
    job_question,
    open_job,
    recording_question,
    replay_question,
)
from perfmodel.prediction.scenario import Interference, JobScenario, Mode
from perfmodel.recordings.recorded_job import RecordedJob
from perfmodel.recordings.storage import RECORDING_HEADER
from perfmodel.whatif import parse_transformation
from perfmodel.whatif.pinning import DEFAULT_STACK, with_own_origins
from perfmodel.workloads.kernels import elementwise

EXECUTOR = SerialExecutor()


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


def test_tasks_that_were_taken_out_are_stood_for_by_their_launch_and_what_came_before():
    # The second kernel was launched by task 2; before it came 1 and 0.
    assert _stand_ins(JOB, 4) == [4, 2, 1, 0]
    assert _stand_ins(JOB, 8) == [8, 5]
    assert _stand_ins(JOB, 6) == [6, 6, 5]
    # Of the second step nothing is left, so the launches of both steps stand for them.
    moments = notes().step_moments_ns(without(4, 9), START, END)
    assert moments == [12, 33]
    # One rank of each step is enough.
    assert notes().step_moments_ns(without(4), START, END) == [133, 200]
    with pytest.raises(ScenarioError, match="Take less out"):
        notes().step_moments_ns(without(4, 9, 0, 5, 2, 7), START, END)


def test_stand_ins_end_somewhere(monkeypatch):
    monkeypatch.setattr(asking, "MOST_STAND_INS", 1)
    assert _stand_ins(JOB, 4) == [4, 2, 1]


def test_new_tasks_neither_hold_nor_are_held():
    rule = notes().hold_rule(without(4, 6))
    assert [one.tolist() for one in (rule.ratio, rule.can_be_held)] == [
        [0.0, 0.1, 0.2, 0.3, 0.0, 0.5, 0.0, 0.7, 0.8, 0.9],
        [True, False, True, False, False, False, False, False, True, False],
    ]


def score(*periods_ns: int, replayed_ns: int = 100, distrust: str = ""):
    return SimpleNamespace(
        periods=[SimpleNamespace(recorded_ns=one) for one in periods_ns],
        iteration=SimpleNamespace(replayed_ns=replayed_ns),
        is_trusted=not distrust,
        distrust=distrust,
    )


def test_the_interval_of_a_recording_is_the_spread_of_its_periods_in_proportion():
    interval, sentence = _recorded_interval(score(90, 110), 200)
    assert (interval.low_ns, interval.high_ns) == pytest.approx((182, 218), abs=1)
    assert interval.is_known
    assert "the 2 recorded periods" in sentence
    for few in (None, score(90)):
        interval, sentence = _recorded_interval(few, 200)
        assert (interval.low_ns, interval.high_ns, interval.is_known) == (200, 200, False)
        assert "unknown from one step" in sentence
    for replayed_ns in (0, 1):
        interval, _ = _recorded_interval(score(1, 1, replayed_ns=replayed_ns), 7)
        assert (interval.low_ns, interval.high_ns) == (7, 7)


def test_a_recording_that_is_not_trusted_says_so_or_is_refused():
    doubtful = score(90, 110, distrust="it is off")
    assert (_distrust(None), _distrust(score(1, 2)), _distrust(doubtful)) == (
        (),
        (),
        ("It is off.",),
    )
    for question in (Question(JOB), Question(JOB, score=score(1, 2))):
        check_trust(question, force=False)
    check_trust(Question(JOB, score=doubtful), force=True)
    with pytest.raises(ScenarioError, match=r"it is off\. Record it again"):
        check_trust(Question(JOB, score=doubtful), force=False)


def test_what_may_be_off_widens_the_interval_to_both_ends():
    asked = PredictOptions(samples=0, is_explained=False)
    sure = answer(Question(JOB, asked), executor=EXECUTOR)
    ends = (JOB, build_job(stretch=4))
    found = answer(Question(JOB, asked, ends=ends), executor=EXECUTOR)
    slow = answer(Question(ends[1], asked), executor=EXECUTOR)
    assert found.iteration_ns == sure.iteration_ns < slow.iteration_ns
    assert found.interval.low_ns == sure.iteration_ns
    assert found.interval.high_ns == slow.iteration_ns
    assert len(found.assumptions) == len(sure.assumptions) + 1
    swapped = answer(Question(JOB, asked, ends=ends[::-1]), executor=EXECUTOR)
    assert swapped.interval.high_ns == swapped.interval.low_ns == sure.iteration_ns


def test_a_question_is_explained_if_it_asks_for_that_or_is_answered_in_full():
    question = Question(JOB, PredictOptions(samples=0, is_explained=False))
    found = answer(question, executor=EXECUTOR)
    assert found.yardsticks is None
    # Without samples nobody asked for an interval; with them, stated durations have none.
    assert NO_DOUBT not in found.assumptions
    drawn = answer(Question(JOB, PredictOptions(samples=2, is_explained=False)), executor=EXECUTOR)
    assert NO_DOUBT in drawn.assumptions
    full = answer_in_full(question, executor=EXECUTOR)
    assert full.iteration_ns == found.iteration_ns
    evidence = full.evidence
    assert evidence.waits_ns(1).tolist() == [0] * JOB.program_of(0).task_count
    assert replace(evidence, priced=None).provenance_of(0, 1) is None
    assert evidence.provenance_of(0, 4) is not None


def test_a_recording_takes_as_long_as_its_steps_are_apart():
    # Kernels of rank 0 end at 110 and 160, those of rank 1, whose launches take 11, at 111 and 162.
    unheld = replace(notes(), hold_ratio=np.zeros(10), can_be_held=np.zeros(10, dtype=bool))
    question = Question(JOB, PredictOptions(is_explained=False), notes=unheld)
    found = answer(question, executor=EXECUTOR)
    assert not isinstance(found, Prediction)
    assert (found.iteration_ns, found.periods_ns, found.isolated_ns) == (51, (51,), None)
    assert found.span_ns == 162
    assert found.facts.iterations_replayed == 1
    full = answer_in_full(question, executor=EXECUTOR)
    assert (full.evidence.window, full.evidence.iteration) == (Window(111, 162), 0)
    # From 111 on rank 0 computes for 49 and idles for 2.
    compute = [one.time.of_part_ns[Part.COMPUTE] for one in full.explanation.rank_classes]
    assert compute == [49, 51]
    assert full.explanation.critical_path.length_ns == 51


def test_a_recording_begins_with_the_first_task_of_every_rank():
    none: Any = None
    column = np.zeros(10, dtype=np.int64)
    recorded = RecordedJob(
        build_job(), column, column, column / 1.0, column == 1, (column[:1],), report=none
    )
    asked = recording_question(recorded, PredictOptions())
    assert asked.notes is not None
    assert asked.notes.window_starts.tolist() == [0, 5]
    assert asked.job.programs[1].origin.tolist() == [5, 6, 7, 8, 9]


def test_of_a_recording_no_isolated_iteration_is_known(tmp_path):
    (tmp_path / RECORDING_HEADER).write_text("{}")
    with pytest.raises(ScenarioError, match="no isolated iteration is known"):
        open_job(JobScenario(str(tmp_path), mode=Mode.ISOLATED))
    with pytest.raises(PerfModelError) as caught:
        open_job(JobScenario(str(tmp_path)))
    assert "isolated" not in str(caught.value)


@pytest.mark.parametrize(("most", "is_outline"), [(9, True), (10, False)])
def test_a_job_that_is_dealt_is_read_here_unless_it_is_large(
    tmp_path, monkeypatch, most, is_outline
):
    monkeypatch.setattr(asking, "MOST_NEAR_TASKS", most)
    scenario = JobScenario(saved(tmp_path, build_job()))
    # What is read here has its programs in memory, of an outline they are in the folder.
    assert isinstance(open_job(scenario).job.programs, tuple)
    assert isinstance(job_question(scenario).job.programs, tuple)
    assert isinstance(open_job(scenario, is_distributed=True).job.programs, tuple) is not is_outline
    assert (
        isinstance(job_question(scenario, is_distributed=True).job.programs, tuple)
        is not is_outline
    )
    moved = replace(scenario, topology="dgx_h100", was="dgx_a100", force=True)
    assert isinstance(job_question(moved, is_distributed=True).job.programs, tuple)


def test_a_job_with_a_task_that_has_to_be_priced_is_read_here(tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "MOST_NEAR_TASKS", 0)
    stated = build_job()
    kernel = elementwise("add", 64, DType.FP32)
    scenario = JobScenario(
        saved(tmp_path, replace(stated, ops=(*stated.ops[:-1], kernel))), topology="dgx_a100"
    )
    assert isinstance(open_job(scenario, is_distributed=True).job.programs, tuple)


def test_a_job_that_is_moved_is_kept_at_both_ends_of_what_could_be_so(tmp_path):
    def total_ns(job: JobGraph) -> int:
        return sum(job.ops[op].duration_ns for rank in range(2) for op in job.program_of(rank).op)

    folder = saved(tmp_path, build_job())
    with pytest.raises(ScenarioError, match="--force"):
        job_question(JobScenario(folder, topology="dgx_h100", was="dgx_a100"))
    scenario = JobScenario(folder, topology="dgx_h100", was="dgx_a100", force=True)
    moved = job_question(scenario)
    assert moved.scenario == replace(scenario, hosts=1, stack=DEFAULT_STACK)
    assert moved.job.programs[1].origin.tolist() == [5, 6, 7, 8, 9]
    assert moved.ends is not None
    fastest, slowest = moved.ends
    assert total_ns(fastest) < total_ns(moved.job) < total_ns(slowest)
    # What is changed next is changed at both ends, too.
    twice, _ = apply_change(moved, parse_transformation("scale:match=gemm,factor=3"), name="x")
    assert twice.ends is not None
    for before, after in zip(moved.ends, twice.ends, strict=True):
        kernels_ns = sum(
            before.ops[op].duration_ns for rank in range(2) for op in before.program_of(rank).op[3:]
        )
        assert total_ns(after) == total_ns(before) + 2 * kernels_ns
    alone, _ = apply_change(
        Question(JOB), parse_transformation("scale:match=gemm,factor=3"), name="x"
    )
    assert alone.ends is None


def test_changes_are_made_to_a_job_whose_tasks_are_told_apart():
    own = prepare_changes(Question(build_job()))
    assert own.job.programs[1].origin.tolist() == [5, 6, 7, 8, 9]
    kept = Question(JOB, notes=notes())
    assert prepare_changes(kept).job is JOB


def test_the_machine_of_a_recording_is_told_by_its_gpus():
    named = build_job(device="NVIDIA A100-SXM4-80GB", gpus_per_host=8)
    assert recorded_machine(named) == "dgx_a100"
    assert "8 x NVIDIA A100-SXM4-80GB: taken for dgx_a100" in about_machine(named)
    assert recorded_machine(build_job()) is None
    assert recorded_machine(build_job(device="TPU v9", gpus_per_host=8)) is None


def saved(tmp_path, job: JobGraph) -> str:
    save_job(job, tmp_path / "job")
    return str(tmp_path / "job")


def test_a_job_that_states_its_durations_refuses_what_it_would_not_heed(tmp_path):
    folder = saved(tmp_path, build_job())
    for build in (job_question, replay_question):
        assert build(JobScenario(folder)).cluster is None
        with pytest.raises(ScenarioError, match=r"states all its durations.*--no-interference"):
            build(JobScenario(folder, interference=Interference.LEFT_OUT))
    with pytest.raises(ScenarioError, match="--calibration would change nothing"):
        job_question(JobScenario(folder, topology="dgx_a100", calibration=("x.yaml",)))
    with pytest.raises(ScenarioError, match="--topology would change nothing"):
        replay_question(JobScenario(folder, topology="dgx_a100"))
    with pytest.raises(ScenarioError, match="Name it with --was"):
        job_question(JobScenario(folder, topology="dgx_a100"))
    assert open_job(JobScenario(folder, topology="dgx_a100", mode=Mode.ISOLATED)).cluster is None
