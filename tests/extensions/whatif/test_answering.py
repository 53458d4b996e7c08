"""Jobs before and after what-ifs: chains, sweeps, recordings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.recording_info import recording_question
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.extensions.whatif import parse_sweep, parse_transformation
from perfmodel.extensions.whatif.answering import answer_changes, prepare_changes
from perfmodel.extensions.whatif.report import path_by_kind_ns
from perfmodel.graph.storage import save_job
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.saved_jobs import (
    NO_MEMORY,
    STATED_MEMORY,
    job_question,
    open_job,
)
from perfmodel.prediction.scenario import JobScenario, Mode
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_job, load_workload
from tests.extensions.whatif.jobs import training_job
from traces.job_trace import load_job_trace

ISOLATED = PredictOptions(mode=Mode.ISOLATED)


def answered(question):
    return predict(question, executor=SerialExecutor())


def changed(question, *texts, **options):
    changes = [(text, parse_transformation(text)) for text in texts]
    return answer_changes(question, changes, **options)


def test_changes_are_applied_one_after_the_other():
    asked = Question(training_job(), ISOLATED)
    answer = changed(asked, "remove:match=all_reduce", "scale:match=gemm,factor=0.5")
    # 690 ns; without collectives 570; then 10 + 130 + 150 + 80 = 370.
    assert answer.before.iteration_ns == 690
    assert [step.outcome.iteration_ns for step in answer.steps] == [570, 370]
    assert answer.after is answer.steps[-1].outcome


def test_the_time_of_a_built_job_is_its_period():
    answer = changed(Question(training_job()), "scale:match=gemm,factor=1")
    # Compute waits for the buckets: 560 ns of kernels and 120 of bucket 1, no launch at its front.
    assert answer.before.iteration_ns == answer.after.iteration_ns == 680


def test_a_sweep_comes_on_top_of_the_changes():
    sweep, asked = (
        parse_sweep("scale:match=all_reduce,factor=0.5..1"),
        Question(training_job(), ISOLATED),
    )
    answer = changed(asked, "scale:match=gemm,factor=1", sweep=sweep)
    assert answer.sweep is not None
    assert answer.sweep.values == ("0.5", "1")
    assert [step.outcome.iteration_ns for step in answer.sweep.steps] == [630, 690]


def test_what_was_touched_is_a_share_of_the_time_of_all_ranks():
    answer = changed(Question(training_job(), ISOLATED), "scale:match=gemm,factor=0.5")
    # Products take 100 + 200 + 100 of the 690 ns of each of two ranks.
    assert answer.steps[0].share == pytest.approx(400 / 690)


@pytest.mark.parametrize(
    ("sweep", "share"), [(None, 1 / 2), ("scale:match=all_reduce,factor=0.5..1", 1 / 3)]
)
def test_the_job_each_change_and_the_sweep_are_equal_pieces_of_the_work(sweep, share):
    told = []
    changed(
        Question(training_job(), ISOLATED),
        "scale:match=gemm,factor=0.5",
        sweep=None if sweep is None else parse_sweep(sweep),
        on_phase=lambda phase, done: told.append((phase, done)),
    )
    assert told[:2] == [("replaying the job", 0.0), ("after scale:match=gemm,factor=0.5", share)]


def test_the_critical_path_and_the_breakdown_add_up_to_the_iteration():
    outcome = answered(Question(training_job(slow_rank=1), ISOLATED))
    assert sum(path_by_kind_ns(outcome).values()) == pytest.approx(outcome.iteration_ns, abs=3)
    assert outcome.explanation.time.total_ns == outcome.iteration_ns
    assert {wait.awaited_rank for wait in outcome.explanation.waits} == {1}


def test_assumptions_of_all_changes_are_listed_once():
    answer = changed(Question(training_job()), "recompute", "host_overhead", "host_overhead")
    assert len(answer.assumptions) == 4


def test_ranks_that_do_the_same_are_answered_once_whatever_memory_they_state():
    job = training_job(ranks=4)
    facts = replace(job.facts, peak_memory_bytes=(7,) * 4)

    stated, plain = (
        predict(Question(one), executor=SerialExecutor())
        for one in (replace(job, facts=facts), job)
    )

    assert stated.iteration_ns == plain.iteration_ns


def test_a_job_of_shapes_needs_a_machine(tmp_path):
    spec = load_workload("dlrm_mlperf")
    save_job(build_job(spec, rank_count=2, ranks_per_host=2), tmp_path / "job")

    with pytest.raises(ScenarioError, match="--topology"):
        job_question(JobScenario(str(tmp_path / "job")))
    scenario = JobScenario(str(tmp_path / "job"), "dgx_h100")
    assert NO_MEMORY in open_job(scenario).assumptions
    stated = prepare_changes(open_job(scenario))
    assert answered(stated).iteration_ns == answered(job_question(scenario)).iteration_ns


@pytest.mark.parametrize("named", ["", "pytorch_eager"])
@pytest.mark.parametrize("stack", ["torch_compile", "pytorch_eager"])
def test_eager_code_is_compiled_where_the_stack_that_is_asked_for_does(tmp_path, named, stack):
    spec, eager = load_workload("dlrm_mlperf"), load_stack("pytorch_fused")
    job = build_job(spec, rank_count=2, ranks_per_host=2, stack=eager)
    facts = replace(job.facts, stack=named, peak_memory_bytes=(5, 7))
    save_job(replace(job, facts=facts), tmp_path / "job")
    asked = open_job(JobScenario(str(tmp_path / "job"), "dgx_h100", stack=stack))
    is_compiled = asked.job.task_count < job.task_count
    assert is_compiled is (bool(named) and stack == "torch_compile")
    assert [memory.total_bytes for memory in asked.memory_of_rank] == [5, 7]
    assert STATED_MEMORY in asked.assumptions


def test_a_fault_names_the_change_as_it_was_typed():
    with pytest.raises(ScenarioError, match="what-if 'scale:match=conv,factor=2'"):
        changed(Question(training_job()), "scale:match=conv,factor=2")


@pytest.fixture(scope="module")
def recording(shared_data):
    folder = shared_data / "traces" / "dlrm_torchrec_v100x4"
    recorded = with_score(import_job(load_job_trace(folder / "s2_a2a_opt_2_runA")))
    return recording_question(recorded, PredictOptions())


def test_a_recording_that_is_not_changed_takes_as_long_as_without_the_profiler(recording):
    outcome = answered(recording)
    assert recording.score is not None
    assert recording.recording.unprofiled.iteration_ns == outcome.iteration_ns
    assert outcome.recorded.iteration_ns == recording.score.iteration.recorded_ns


def test_the_long_sleep_made_two_short_ones_gives_the_other_run(recording):
    # In s2 rank 2 sleeps once for 1001.7 ms; in n2 twice for 20.5 ms. Measured there: 158.8 and
    # 159.9 ms in the steady steps.
    shorter = "set:match=host work,lane=host,rank=2,longer=900ms,to=20.5ms"
    answer = changed(recording, shorter, "gap:before=SendRecv,rank=2,to=20.5ms,number=0+5")
    assert answer.after.recorded.iteration_ns / 1e6 == pytest.approx(159.3, rel=0.05)


def test_structure_of_a_recording_can_be_changed_and_its_interval_keeps_in_proportion(recording):
    answer = changed(recording, "no_straggler:rank=2", "host_overhead", "optimizer")
    times = [step.outcome.iteration_ns for step in answer.steps]
    assert times[0] < 0.25 * answer.before.iteration_ns
    assert times[1] < times[0]
    before, after = answer.before, answer.steps[0].outcome
    ratio = after.iteration_ns / before.iteration_ns
    ends = (before.interval.low_ns * ratio, before.interval.high_ns * ratio)
    assert (after.interval.low_ns, after.interval.high_ns) == pytest.approx(ends, rel=1e-6)
