"""The Python door says the same as the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfmodel import api
from perfmodel.base.errors import CalibrationError, InputError, MeasurementError, OutputError
from perfmodel.extensions.recordings.storage import load_recorded_job
from perfmodel.graph.storage import save_job
from tests.extensions.recordings.builders import import_spans
from tests.extensions.whatif.jobs import training_job
from tests.traces.builders import kernel, launch, span


@pytest.fixture
def imported(tmp_path):
    spans = [span("user_annotation", "ProfilerStep#1", 0, 90), launch(1, 0),
             kernel(1, 10, 50, name="sgemm"), launch(2, 20), kernel(2, 60, 30)]  # fmt: skip
    import_spans(tmp_path / "traces", spans, spans)
    [found] = api.import_traces([tmp_path / "traces"], tmp_path / "job")
    return found


def test_an_imported_job_is_in_its_folder_with_a_score(imported):
    assert api.load_job(imported.folder).rank_count == 2
    assert load_recorded_job(imported.folder).report == imported.job.report
    assert imported.score.iteration.error_pct == 0


def test_a_recording_is_replayed_predicted_and_changed_alike(imported):
    # From the first call to the end of the second kernel: 60 + 30 us, of which the profiler took
    # 1.5 us in the launch that the first kernel waits for, and 0.7 for the mark.
    assert api.replay(imported.folder).iteration_ns == 87_800
    assert api.predict(api.JobScenario(str(imported.folder))).iteration_ns == 87_800
    changed = api.whatif(imported.folder, ["scale:match=sgemm,factor=0.5"])
    assert changed.before.iteration_ns == 87_800
    # The first kernel takes 25 us less, and the second follows at once.
    assert changed.after.iteration_ns == 62_800
    assert changed.score == imported.score


@pytest.mark.parametrize(("batch", "is_noted"), [(76, False), (84, False), (104, True)])
def test_what_is_far_too_large_is_noted_before_the_replay(batch, is_noted):
    # Activations and logits decide: 0.95, 1.04 and 1.28 times the memory.
    changes = (f"batch={batch}", f"parallel.micro_batch={batch}", "model.layers=12",
               "training.recompute=none")  # fmt: skip
    scenario = api.Scenario(
        "dgx_a100", "gpt2_124m", ranks_per_host=1, overrides=changes, stack="pytorch_fused",
        samples=0,
    )  # fmt: skip
    notes: list[str] = []
    api.predict(scenario, on_phase=lambda phase, _: notes.append(phase))

    assert any(note.startswith("note: ") for note in notes) == is_noted
    if batch > 76:
        with pytest.raises(InputError, match=r"gpt2_124m on dgx_a100.*training.recompute=full"):
            api.predict(scenario, require_fit=True)


def test_a_built_job_is_replayed_without_a_score(tmp_path):
    save_job(training_job(), tmp_path / "job")

    found = api.replay(tmp_path / "job")

    assert (found.iteration_ns, found.span_ns, found.score) == (680, 690, None)
    assert found.reasons is None
    assert api.replay(tmp_path / "job", is_explained=True).reasons is not None


def test_a_calibration_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(OutputError, match="--out"):
        api.calibrate_embedding(
            tmp_path / "no cases", data=tmp_path, out=tmp_path / "nowhere" / "fit.yaml"
        )


def test_tables_are_validated(tmp_path):
    table = tmp_path / "collectives.csv"
    table.write_text(
        "topology,hosts,nranks,collective,size_bytes,time_us\ndgx_h100,1,8,all_reduce,1048576,30\n"
    )

    [row] = api.validate("collectives", [table]).deviations

    assert row.measured == 30.0


def test_the_door_opens_without_what_is_heavy():
    heavy = "{'torch', 'ray', 'matplotlib', 'perfmodel.planning', 'perfmodel.extensions.ui'}"
    program = f"import sys, perfmodel.api; print({heavy} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert shown.stdout.strip() == "set()"


def test_all_names_are_there_without_torch():
    program = "import sys; sys.modules['torch'] = None; from perfmodel.api import *; print(predict)"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "function predict" in shown.stdout, shown.stderr


def test_own_measurements_become_a_calibration_of_a_scenario(tmp_path):
    table, out = tmp_path / "calls.csv", tmp_path / "my.yaml"
    rows = "".join(f"dgx_a100,2,16,all_reduce,{4**n},{100 + 4**n / 1e4}\n" for n in range(9, 15))
    table.write_text(f"topology,hosts,nranks,collective,size_bytes,time_us\n{rows}")

    [sentence] = api.calibrate_collectives([table], out).lines
    found = api.validate("collectives", [table], calibration=[str(out)])
    shipped = api.validate("collectives", [table])

    assert "dgx_a100, between hosts, 6 rows" in sentence
    assert found.overall.mape_pct < shipped.overall.mape_pct
    assert found.overall.inside_interval_pct == 100


def test_one_kernel_and_one_collective_have_a_price():
    product = api.Gemm(m=4096, n=4096, k=4096, dtype=api.DType.BF16)
    found = api.price_kernel(product, device="h100_sxm")
    small, large = (
        api.price_collective("allreduce", size, topology="dgx_h100") for size in ("1MiB", "1GiB")
    )

    # 2 x 4096 ** 3 = 137.4 GFLOP, at 989 TFLOP/s in no less than 0.139 ms.
    assert found.time_ms > 0.139
    assert found.tflops == pytest.approx(0.1374 / (found.time_ms / 1e3), rel=1e-3)
    assert small.duration_ns < large.duration_ns


def test_a_price_of_what_is_no_kernel_is_refused():
    with pytest.raises(InputError, match="must be a Gemm, Attention, MemoryBound, EmbeddingOp"):
        api.price_kernel("gemm", device="h100_sxm")


def test_constants_of_one_kernel_come_from_a_file_of_kernels(tmp_path):
    (tmp_path / "machine.yaml").write_text("name: a\n")
    product = api.Gemm(m=64, n=64, k=64, dtype=api.DType.BF16)
    with pytest.raises(
        CalibrationError, match=r"must be a file of constants of kernels, .* and is none"
    ):
        api.price_kernel(product, device="h100_sxm", calibration=[str(tmp_path / "machine.yaml")])


def test_recordings_are_looked_into(imported, tmp_path):
    traces = tmp_path / "traces"

    [stats] = api.trace_stats([traces])
    assert len(stats["streams"]) == 2
    assert api.trace_diff(traces, traces)["change_ms"] == 0
    # Neither operators nor shapes were recorded.
    assert api.trace_extract([traces], tmp_path / "tables") == ()


def test_one_value_stands_for_a_list_of_one():
    question = api.LayoutQuestion("dgx_h100", "llama3_8b", {"batch": 64}, hosts=2)

    assert (question.hosts, question.overrides) == ((2,), ("batch=64",))
    assert api.RankQuestion("dgx_h100", sharders="balanced").sharders == ("balanced",)


def test_kernels_taken_from_a_table_price_what_was_timed(tmp_path):
    table, out = tmp_path / "memory.csv", tmp_path / "mine.yaml"
    # Two reads and a write of four bytes at 400 GB/s, less than half of what a V100 does.
    sizes = [(2**rows, 2**columns) for rows in range(10, 18) for columns in (9, 10, 11)]
    rows = [f"add,Tesla V100-PCIE-32GB,{12 * b * h / 4e8},{b},{h}" for b, h in sizes]
    table.write_text("\n".join(["op,device,latency_ms,B,H", *rows, ""]))

    assert api.calibrate_kernels([table], out).sets == 24
    mine = api.validate("memory", [table], calibration=[str(out)])
    shipped = api.validate("memory", [table])

    # A known price is doubted as little as 15 %, so of a factor of two a part remains.
    assert mine.overall.median_pct < 10
    assert shipped.overall.median_pct > 30


def test_a_schema_names_the_type_of_each_field():
    lines = api.describe_schema("workload").splitlines()
    for line in (
        "  batch: int; must be given",
        "  model.kv_heads: int; default left open",
        "  model.positions: learned | rotary | yarn; default learned",
        "  dense.bottom_mlp: list of int; must be given",
    ):
        assert line in lines


def test_collectives_of_one_rank_cannot_be_fitted(tmp_path):
    table = tmp_path / "collectives.csv"
    table.write_text(
        "topology,hosts,nranks,collective,size_bytes,time_us\ndgx_h100,1,1,all_reduce,1048576,3\n"
    )
    with pytest.raises(MeasurementError, match="at least 2 to fit a collective, and is 1 in row 0"):
        api.calibrate_collectives([table], tmp_path / "out.yaml")
