"""The same job through every door takes the same nanoseconds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from embeddings.plan_document import to_plan_document
from embeddings.sharders import build_named_plan
from perfmodel import api
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.measurements.validation.runs import answer_run
from perfmodel.extensions.recordings.storage import save_recorded_job
from perfmodel.graph.storage import save_job
from perfmodel.planning.making import load_task
from perfmodel.planning.question import RankQuestion
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.workloads import build_workload
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch, span

TOPOLOGY = "dgx_a100"
OVERRIDES = ("batch=16384",)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    task = load_task(RankQuestion(TOPOLOGY, overrides=OVERRIDES)).task
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps(to_plan_document(build_named_plan("size_greedy", task))))
    return str(path)


@pytest.mark.parametrize("mode", list(api.Mode))
def test_a_model_takes_the_same_nanoseconds_through_every_door(plan_file, tmp_path, mode):
    scenario = api.Scenario(TOPOLOGY, overrides=OVERRIDES, plan=plan_file, mode=mode, samples=4)
    predicted = api.predict(scenario, executor="serial")
    question = build_question(load_setting(scenario))
    save_job(question.job, tmp_path / "job")
    assert question.stack is not None
    job = api.JobScenario(
        str(tmp_path / "job"), TOPOLOGY, stack=question.stack.name, mode=mode, samples=4
    )
    unchanged = api.whatif(job, ["scale:match=e,factor=1"])
    ranked = api.rank(
        RankQuestion(
            TOPOLOGY, overrides=OVERRIDES, plan_files=(plan_file,), sharders=(), mode=mode,
            samples=4,
        )
    )  # fmt: skip
    unexplained = replace(question, options=replace(question.options, is_explained=False))
    doors = {
        "predict --job": api.predict(job, executor="serial"),
        "replay": api.replay(job),
        "whatif before": unchanged.before,
        "whatif after": unchanged.after,
        "rank": ranked.plans[0].answer,
    }

    assert predicted.interference is not None
    assert predicted.interference.lost_ns > 0
    for door, found in doors.items():
        assert found.iteration_ns == predicted.iteration_ns, door
        assert (found.period_ns, found.isolated_ns) == (
            predicted.period_ns,
            predicted.isolated_ns,
        ), door
        assert found.interval == predicted.interval, door
    validated = answer_run(unexplained)
    assert validated.predicted_ns == predicted.iteration_ns
    assert validated.low_ns == predicted.interval.low_ns
    assert validated.high_ns == predicted.interval.high_ns


def test_what_differs_between_those_who_ask_is_said_in_the_question():
    scenario = api.Scenario(
        TOPOLOGY, "gpt2_xl", overrides=("batch=32", "model.layers=6"), samples=4
    )
    counted = api.predict(scenario, executor="serial")
    alone = api.predict(
        replace(scenario, interference=api.Interference.LEFT_OUT), executor="serial"
    )

    assert counted.interference is not None
    assert counted.iteration_ns - alone.iteration_ns == counted.interference.lost_ns > 0


@pytest.mark.parametrize(
    ("name", "changes", "hosts"),
    [
        ("llama3_8b", ("batch=128", "parallel.tp=2", "parallel.pp=1"), 1),
        ("gpt2_xl", ("parallel.pp=4", "parallel.tp=1", "batch=256"), 1),
    ],
)
def test_micro_batches_are_continued_within_the_bound_that_is_stated(name, changes, hosts):
    scenario = api.Scenario("dgx_h100", name, changes, hosts=hosts, samples=0)
    setting = load_setting(scenario)
    cluster = setting.cluster
    continued = build_question(setting)
    assert continued.extrapolation is not None
    whole = build_workload(
        setting.workload,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        stack=setting.stack,
        is_whole=True,
    ).job

    found = predict(continued, executor=SerialExecutor())
    truth = predict(replace(continued, job=whole, extrapolation=None), executor=SerialExecutor())

    assert found.iteration_ns == pytest.approx(truth.iteration_ns, rel=2e-3)
    assert found.facts.task_count == truth.facts.task_count
    assert any("within 0.2 %" in sentence for sentence in found.assumptions)
    assert found.explanation.time.total_ns == found.iteration_ns
    assert found.explanation.critical_path.length_ns == found.iteration_ns
    for part, length_ns in truth.explanation.time.of_part_ns.items():
        assert found.explanation.time.of_part_ns[part] == pytest.approx(
            length_ns, abs=0.01 * truth.iteration_ns
        )


def test_predict_continues_micro_batches_as_validation_does():
    layout = ("batch=128", "parallel.tp=2", "parallel.pp=1")
    scenario = api.Scenario("dgx_h100", workload="llama3_8b", overrides=layout, samples=4)
    question = build_question(load_setting(scenario))
    assert question.extrapolation is not None

    validated = answer_run(replace(question, options=replace(question.options, is_explained=False)))

    assert api.predict(scenario, executor="serial").iteration_ns == validated.predicted_ns


def test_few_micro_batches_are_all_replayed():
    # Two smaller jobs of 3 and 5 micro-batches would be as much work as one of 8.
    scenario = api.Scenario(
        "dgx_h100", workload="llama3_8b", overrides=("batch=32", "parallel.tp=2", "parallel.pp=1")
    )
    assert build_question(load_setting(scenario)).extrapolation is None
    more = replace(scenario, overrides=("batch=36", "parallel.tp=2", "parallel.pp=1"))
    assert build_question(load_setting(more)).extrapolation is not None


def test_a_recording_of_one_step_answers_with_its_span_through_every_door(tmp_path):
    # Rank 1 begins 40 us after rank 0; both take 90 us from their first call to their last kernel.
    spans = [span("user_annotation", "ProfilerStep#1", 0, 90), launch(1, 0),
             kernel(1, 10, 50, name="sgemm"), launch(2, 20), kernel(2, 60, 30)]  # fmt: skip
    late = [span("user_annotation", "ProfilerStep#1", 40, 90), launch(1, 40),
            kernel(1, 50, 50, name="sgemm"), launch(2, 60), kernel(2, 100, 30)]  # fmt: skip
    save_recorded_job(import_spans(tmp_path / "traces", spans, late), tmp_path / "job")
    job = api.JobScenario(str(tmp_path / "job"))

    changed = api.whatif(job, ["scale:match=e,factor=1"])
    doors = (api.predict(job), api.replay(job), changed.before, changed.after)

    # Without the profiler: 1.5 us of the launch that the last kernel waits for, 0.7 of the mark.
    assert {found.iteration_ns for found in doors} == {87_800}
    assert doors[0].score is not None
    assert doors[0].score.iteration.replayed_ns == 90_000


def test_the_score_of_a_recording_is_read_and_not_found_again(tmp_path, monkeypatch):
    spans = [launch(1, 0), kernel(1, 10, 50)]
    import_spans(tmp_path / "traces", spans)
    [imported] = api.import_traces([tmp_path / "traces"], tmp_path / "job")

    monkeypatch.setattr("perfmodel.extensions.recordings.self_replay.self_replay", None)

    assert api.replay(imported.folder).score == imported.score
    header = json.loads((imported.folder / "recording.json").read_text())
    del header["self_replay"]
    (imported.folder / "recording.json").write_text(json.dumps(header))
    monkeypatch.undo()
    assert api.replay(imported.folder).score == imported.score
