"""`predict --job` and `replay` of jobs that lie in folders: recorded, built, of shapes."""

import json
from dataclasses import replace

import pytest

from perfmodel.extensions.recordings.storage import save_recorded_job
from perfmodel.graph.storage import save_job
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.scenario import Scenario
from tests.extensions.recordings.builders import call, import_spans
from tests.extensions.whatif.jobs import training_job
from tests.traces.builders import kernel, launch, span

KEYS = {
    "schema_version", "iteration_time_ms", "interval_ms", "breakdown_ms", "ranks",
    "critical_path", "waits", "provenance", "assumptions", "scenario", "run",
}  # fmt: skip

COLLECTIVE = "\x1b[mncclDevKernel_AllReduce"


def recorded_steps(folder, *step_starts):
    """Two ranks; a product and a collective a step; rank 1 launches both 300 us later."""
    ranks = []
    for late in (0, 300):
        spans = []
        for step, start in enumerate(step_starts):
            at = start + late
            spans += [
                launch(2 * step, at), kernel(2 * step, at + 7, 100, name="sgemm"),
                launch(2 * step + 1, at + 200),
                kernel(2 * step + 1, at + 207, 350 - late, 20, name=COLLECTIVE),
            ]  # fmt: skip
        ranks.append(spans)
    return import_spans(folder, *ranks)


@pytest.fixture
def record(tmp_path):
    """Write a recording with steps that start at these moments, changed by a function."""

    def write(*step_starts, change=lambda job: job):
        job = recorded_steps(tmp_path / "traces", *step_starts)
        save_recorded_job(change(job), tmp_path / "recorded")
        return tmp_path / "recorded"

    return write


@pytest.fixture
def recorded(record):
    return record(0, 1000, 2100, 3100)


@pytest.fixture
def built(tmp_path):
    save_job(training_job(slow_rank=1), tmp_path / "built")
    return tmp_path / "built"


@pytest.fixture
def of_shapes(tmp_path):
    scenario = Scenario("dgx_h100", "dlrm_mlperf", stack="pytorch_eager")
    save_job(build_question(load_setting(scenario)).job, tmp_path / "shapes")
    return tmp_path / "shapes"


def test_a_recording_is_answered_with_the_keys_of_a_workload_and_its_score(recorded, ask):
    answer = ask("predict --job", recorded)

    assert answer.keys() >= KEYS
    # Steps end 1000, 1100 and 1000 us after one another. Their launches cost the profiler 3 us.
    assert answer["iteration_time_ms"] == pytest.approx(3.1 / 3, rel=0.001)
    assert answer["unprofiled"]["iteration_time_ms"] == pytest.approx(3.1 / 3 - 0.003, rel=0.001)
    assert answer["self_replay"]["iteration_error_pct"] == pytest.approx(0, abs=1)
    assert answer["scenario"]["job"] == str(recorded)
    assert answer["memory_gib"] is answer["isolated_ms"] is None
    assert answer["provenance"] == {"recorded": 1.0}
    # The interval is the spread of the periods: 95 % of the way from 1.0 over 1.0 to 1.1 ms.
    assert answer["interval_ms"] == [pytest.approx(1.0, rel=0.01), pytest.approx(1.09, rel=0.01)]
    assert any("spread of the 3 recorded periods" in line for line in answer["assumptions"])
    # Breakdown, path and waits add up.
    whole = pytest.approx(answer["unprofiled"]["iteration_time_ms"], abs=1e-5)
    assert sum(answer["breakdown_ms"].values()) == whole
    assert sum(share["ms"] for share in answer["critical_path"]["by_kind"]) == whole
    # Rank 1 began late once; repeated steps begin together, and nobody waits in them.
    assert answer["waits"] == []
    assert {one["breakdown_ms"]["waiting_for_other_ranks"] for one in answer["ranks"]} == {0.0}


def test_the_interval_of_a_recording_of_one_step_is_the_doubt_about_the_profiler(record, ask):
    answer = ask("predict --job", record(0))
    low, high = answer["interval_ms"]
    assert low < answer["unprofiled"]["iteration_time_ms"] < high
    assert any("fewer than two periods" in line for line in answer["assumptions"])


def test_the_screen_shows_a_recording_in_the_same_look_without_control_letters(recorded, typed):
    shown = typed("predict --job", recorded).out
    assert "per iteration" in shown
    assert "replays itself with an error of" in shown
    assert "What decides it: the critical path" in shown
    assert "?[mnccl" in shown
    assert "\x1b" not in shown


def test_a_recording_that_replays_badly_is_answered_with_a_warning(record, ask):
    twice = record(0, change=lambda job: replace(job, recorded_end_ns=2 * job.recorded_end_ns))
    answer = ask("predict --job", twice)
    assert answer["self_replay"]["is_trusted"] is False
    assert any("above the limit of 10 %" in line for line in answer["assumptions"])


def test_page_and_timeline_are_written_for_a_recording(recorded, tmp_path, typed):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    typed("predict --job", recorded, "--report", page, "--trace-out", trace)
    assert "<h2>Memory</h2>" not in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_job_of_shapes_is_answered_as_its_workload_is(of_shapes, ask):
    words = "predict --topology dgx_h100 --stack pytorch_eager --samples 8"
    of_job, of_workload = ask(words, "--job", of_shapes), ask(words, "--workload", "dlrm_mlperf")
    for key in ("iteration_time_ms", "interval_ms", "breakdown_ms", "critical_path", "waits"):
        assert of_job[key] == of_workload[key]
    assert of_job["scenario"]["hosts"] == 1
    assert "self_replay" not in of_job
    assert of_job["memory_gib"] is None


def test_a_job_that_states_its_durations_needs_no_machine(built, ask):
    answer = ask("predict --isolated --job", built)
    assert answer["iteration_time_ms"] == 0.00119
    assert answer["interval_ms"] == [0.00119, 0.00119]


@pytest.mark.parametrize("words", ["--workload llama3_8b", "--set batch=8", "--ranks-per-host 2"])
def test_a_model_beside_a_job_is_a_wrong_command_line(recorded, words, typed):
    said = typed(f"predict {words} --job", recorded, code=2).said
    assert "cannot be combined with --job" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict --topology dgx_h100 --was quad_gv200 --job", "quad_gv200"),
        ("predict --topology dgx_h100 --calibration own.yaml --job", "would change nothing"),
        ("predict --was dgx_h100 --job", "Add --topology"),
        ("predict --isolated --job", "no isolated iteration"),
        ("predict --no-interference --job", "would change nothing"),
        ("replay --topology dgx_h100", "would change nothing"),
    ],
)
def test_what_a_recording_cannot_answer_is_refused(recorded, words, message, typed):
    assert message in typed(words, recorded, code=1).said


def test_a_recording_moves_to_another_machine_as_its_what_if_does(recorded, ask):
    moved = ask("predict --topology dgx_h100 --was dgx1_v100 --job", recorded)
    changed = ask("whatif --apply machine:topology=dgx_h100,was=dgx1_v100", recorded)

    assert moved["iteration_time_ms"] == changed["iteration_time_ms"]
    assert moved["interval_ms"] == changed["interval_ms"]
    # The step is host time, 1.03 ms of it, and a thread there does 3.8 x 1.57 / 3.6 times as much.
    assert moved["iteration_time_ms"] == pytest.approx(1.03 * 3.6 / (3.8 * 1.57), rel=0.02)
    assert moved["interval_ms"][0] < moved["iteration_time_ms"] / 1.1
    assert moved["scenario"]["was"] == "dgx1_v100"
    assert any("could be priced again" in one for one in moved["assumptions"])


def test_on_its_own_machine_a_recording_takes_what_it_took(recorded, ask):
    here = ask("predict --job", recorded)
    moved = ask("predict --topology dgx_a100 --was dgx_a100 --job", recorded)
    assert moved["iteration_time_ms"] == here["unprofiled"]["iteration_time_ms"]


def test_a_thread_that_sleeps_does_not_wake_up_earlier_on_a_faster_host(record, ask):
    # Every step rank 1 is 20 ms late, and launches nothing in that time.
    job = record(0, 20_000, 40_000, 60_000)
    moved = ask("predict --topology dgx_h100 --was dgx1_v100 --job", job)
    # 19.8 ms of it is one pause, the rest host time that takes 0.6 times as long.
    assert 19.7 < moved["iteration_time_ms"] < 20
    # It may have been work after all.
    assert moved["interval_ms"][0] < 13


@pytest.fixture
def recorded_on(record):
    def write(device):
        def change(job):
            facts = replace(job.graph.facts, device=device, gpus_per_host=8)
            return replace(job, graph=replace(job.graph, facts=facts))

        return record(0, 1000, 2100, 3100, change=change)

    return write


@pytest.mark.parametrize("device", ["", "a GPU that nobody knows"])
def test_a_recording_of_an_unknown_machine_does_not_move(recorded_on, device, typed):
    said = typed("predict --topology dgx_h100 --job", recorded_on(device), code=1).said
    assert "Name it with --was" in said


def test_a_recording_names_the_machine_that_it_was_made_on(recorded_on, ask):
    job = recorded_on("NVIDIA A100-SXM4-80GB")
    moved = ask("predict --topology dgx_h100 --job", job)
    assert moved["scenario"]["was"] == "dgx_a100"
    assert moved["scenario"]["hosts"] == 1
    changed = ask("whatif --apply machine:topology=dgx_h100", job)
    assert changed["iteration_time_ms"] == moved["iteration_time_ms"]


def test_a_folder_without_a_job_is_one_message(tmp_path, typed):
    assert typed("predict --job", tmp_path, code=1).said.startswith("perfmodel: ")


def test_a_built_job_is_replayed_without_a_score(built, typed, ask):
    answer = ask("replay", built)
    assert "self_replay" not in answer
    assert answer["span_ms"] == 0.00119
    assert "680 ns per step" in typed("replay", built).out


def test_a_job_of_shapes_is_replayed_on_the_machine_that_is_named(of_shapes, typed, ask):
    assert "--topology" in typed("replay", of_shapes, code=1).said
    assert ask("replay --topology dgx_h100", of_shapes)["ranks"] == 8


def test_tables_that_a_recording_cannot_fill_are_named(recorded, tmp_path, typed):
    out = typed("trace extract", tmp_path / "traces", "--out", tmp_path / "tables").out
    assert "no gemm.csv: no GEMM has recorded shapes" in out


def test_tables_of_a_recording_are_accepted_by_validate(tmp_path, typed, ask):
    shapes = {"Input Dims": [[16, 256, 64], [16, 64, 512]], "Input type": ["float", "float"]}
    reduced = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1_000_000,
        "Out msg nelems": 1_000_000, "Group size": 2,
    }  # fmt: skip
    spans = [
        span("cpu_op", "aten::bmm", 0, 60, **shapes),
        call("cudaLaunchKernel", 20, 5, 1),
        kernel(1, 30, 70, name="volta_sgemm_128x64"),
        call("cudaLaunchKernel", 70, 5, 2),
        kernel(2, 110, 190, 20, name="ncclDevKernel_AllReduce_Sum_f32", **reduced),
    ]
    import_spans(tmp_path / "traces", spans, spans)
    tables = tmp_path / "tables"
    typed("trace extract --topology dgx1_v100", tmp_path / "traces", "--out", tables)

    products = ask("validate gemm", tables / "gemm.csv")
    collectives = ask("validate collectives", tables / "collectives.csv")

    # The GPU of the trace is called V100, which could be any of several.
    assert [row["reason"][:12] for row in products["unsupported"]] == ["gemm on V100"]
    # The link between these GPUs takes 4 MB in 160 us at least.
    assert [row["measured"] for row in collectives["rows"]] == [190.0]
    table = tables / "gemm.csv"
    table.write_text(table.read_text().replace("V100", "Tesla V100-SXM2-32GB"))
    [row] = ask("validate gemm", table)["rows"]
    # 16 products of 2 * 256 * 512 * 64 operations at up to 15.7 TFLOP/s: at least 17 us, all of
    # them together, and not the 55 us that the timer of the fp32 benchmark adds.
    assert row["measured"] == 0.07
    assert 0.017 < row["predicted"] < 0.055
