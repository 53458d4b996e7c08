"""Recordings: where their steps end, what is held, how sure they are, and other machines."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PerfModelError, ScenarioError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.recordings.recorded_job import Unprofiled
from perfmodel.extensions.whatif import parse_transformation
from perfmodel.extensions.whatif.answering import apply_change, check_trust, prepare_changes
from perfmodel.graph.job import JobGraph
from perfmodel.graph.storage import RECORDING_HEADER, save_job
from perfmodel.prediction import saved_jobs as asking
from perfmodel.prediction.answer import Part
from perfmodel.prediction.assumptions import NO_DOUBT
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import Ends, PredictOptions, Question
from perfmodel.prediction.saved_jobs import (
    DEFAULT_STACK,
    job_question,
    open_job,
    replay_question,
)
from perfmodel.prediction.scenario import Interference, JobScenario, Mode
from perfmodel.workloads.kernels import elementwise
from tests.extensions.recordings.test_recording_info import JOB, build_job, notes


def score(*periods_ns: int, recorded_ns: int = 100, distrust: str = "", noise_ratio: float = 0):
    return SimpleNamespace(
        periods=[SimpleNamespace(recorded_ns=one) for one in periods_ns],
        iteration=SimpleNamespace(recorded_ns=recorded_ns),
        cycle=1,
        noise_ratio=noise_ratio,
        is_trusted=not distrust,
        distrust=distrust,
    )


SURE = Unprofiled(80, 80, 80, "why")


def test_the_interval_of_a_recording_is_the_spread_of_its_periods_and_the_doubt_in_proportion():
    def asked(of: Any, unprofiled: Any = SURE) -> Any:
        return replace(notes(), score=of, unprofiled=unprofiled).interval(200)

    interval = asked(score(90, 110))
    assert (interval.low_ns, interval.high_ns) == pytest.approx((182, 218), abs=1)
    assert interval.is_known
    noisy = asked(score(90, 110, noise_ratio=0.1))
    assert (noisy.low_ns, noisy.high_ns) == pytest.approx((182 * 0.9, 218 * 1.1), abs=1)
    # 72 to 100 around 80 is wider than 91 to 109 around 100.
    wide = asked(score(90, 110), replace(SURE, low_ns=60, high_ns=100))
    assert (wide.low_ns, wide.high_ns) == (150, 250)
    assert not asked(None).is_known


def test_a_recording_says_what_its_interval_is_and_whether_it_can_be_trusted():
    def said(of: Any) -> list[str]:
        return replace(notes(), score=of, unprofiled=SURE).sentences()

    assert said(score(90, 110))[0].endswith("why")
    assert "the 2 recorded periods" in said(score(90, 110))[1]
    assert "spread is unknown" in said(score(90))[1]
    assert said(score(90, 110, distrust="it is off"))[2:] == ["It is off."]


def test_a_recording_that_is_not_trusted_is_refused():
    def asked(of: Any) -> Question:
        return Question(JOB, recording=replace(notes(), score=of))

    doubtful = score(90, 110, distrust="it is off")
    for question in (Question(JOB), asked(score(1, 2))):
        check_trust(question, force=False)
    check_trust(asked(doubtful), force=True)
    with pytest.raises(ScenarioError, match=r"it is off\. Record it again"):
        check_trust(asked(doubtful), force=False)


def answer(job: JobGraph, *, samples: int = 0, is_explained: bool = False, **known: Any):
    options = PredictOptions(samples=samples, is_explained=is_explained)
    return predict(Question(job, options, **known), executor=SerialExecutor())


def test_what_may_be_off_widens_the_interval_to_both_ends():
    ends = Ends(JOB, build_job(stretch=4), "why")
    sure, found, slow = answer(JOB), answer(JOB, ends=ends), answer(ends.slowest)
    assert found.iteration_ns == sure.iteration_ns < slow.iteration_ns
    assert found.interval.low_ns == sure.iteration_ns
    assert found.interval.high_ns == slow.iteration_ns
    assert len(found.assumptions) == len(sure.assumptions) + 1
    assert found.assumptions[-1] == "why"
    swapped = answer(JOB, ends=Ends(ends.slowest, ends.fastest, "why"))
    assert swapped.interval.high_ns == swapped.interval.low_ns == sure.iteration_ns


def test_a_question_is_explained_if_it_asks_for_that():
    found = answer(JOB)
    assert found.yardsticks is None
    assert found.interference is None
    with pytest.raises(ScenarioError, match="only times were asked for"):
        _ = found.explanation
    # Without samples nobody asked for an interval; with them, stated durations have none.
    assert NO_DOUBT not in found.assumptions
    assert NO_DOUBT in answer(JOB, samples=2).assumptions
    full = answer(JOB, is_explained=True)
    assert full.iteration_ns == found.iteration_ns
    evidence = full.evidence
    assert evidence.waits_ns(1).tolist() == [0] * JOB.program_of(0).task_count
    assert replace(evidence, priced=None).provenance_of(0, 1) is None
    assert evidence.provenance_of(0, 4) is not None


def test_a_recording_takes_as_long_as_its_steps_repeated_or_its_span():
    # Kernels of rank 0 end at 110 and 160, those of rank 1, whose launches take 11, at 111 and 162.
    found = answer(JOB, recording=notes())
    assert found.reasons is None
    assert (found.iteration_ns, found.periods_ns, found.isolated_ns) == (162, (162,), None)
    # Two steps that repeat: the kernels of rank 1 take 151 together, launched while others run.
    found = answer(JOB, is_explained=True, recording=notes(steps=2))
    assert (found.iteration_ns, found.isolated_ns) == (76, None)
    compute = [one.time.of_part_ns[Part.COMPUTE] for one in found.explanation.rank_classes]
    assert compute == [76, 76]
    assert found.explanation.critical_path.length_ns == 76


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
    for ask in (open_job, job_question):
        assert isinstance(ask(scenario).job.programs, tuple)
        dealt = ask(scenario, is_distributed=True).job
        assert isinstance(dealt.programs, tuple) is not is_outline
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
    assert total_ns(moved.ends.fastest) < total_ns(moved.job) < total_ns(moved.ends.slowest)
    # What is changed next is changed at both ends, too.
    twice, _ = apply_change(moved, parse_transformation("scale:match=gemm,factor=3"), name="x")
    assert twice.ends is not None
    for before, after in (
        (moved.ends.fastest, twice.ends.fastest),
        (moved.ends.slowest, twice.ends.slowest),
    ):
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
    kept = Question(JOB, recording=notes())
    assert prepare_changes(kept).job is JOB


def saved(tmp_path, job: JobGraph) -> str:
    save_job(job, tmp_path / "job")
    return str(tmp_path / "job")


def test_a_job_that_states_its_durations_refuses_what_it_would_not_heed(tmp_path):
    folder = saved(tmp_path, build_job())
    for build in (job_question, replay_question):
        assert build(JobScenario(folder)).cluster is None
        with pytest.raises(ScenarioError, match=r"states all its durations.*--no-interference"):
            build(JobScenario(folder, interference=Interference.LEFT_OUT))
    for build, given, words in (
        (job_question, {"calibration": ("x.yaml",)}, "--calibration would change nothing"),
        (replay_question, {}, "--topology would change nothing"),
        (job_question, {}, "Name it with --was"),
    ):
        with pytest.raises(ScenarioError, match=words):
            build(JobScenario(folder, topology="dgx_a100", **given))
    assert open_job(JobScenario(folder, topology="dgx_a100", mode=Mode.ISOLATED)).cluster is None
