"""Tables out of recordings."""

from perfmodel.extensions.measurements.extraction import (
    extract_host_overheads,
    extract_tables,
    write_tables,
)
from perfmodel.extensions.recordings.rank_view import view_rank
from perfmodel.graph.ops import HostPart
from tests.traces.builders import kernel, launch, span, write_trace
from traces.job_trace import load_job_trace
from traces.kineto import load_kineto


def test_host_parts_are_told_apart_and_the_profiler_is_taken_out(tmp_path):
    spans = [
        span("cpu_op", "aten::mm", 0, 60),
        span("cuda_runtime", "cudaLaunchKernel", 20, 16, correlation=1), kernel(1, 40, 5),
        span("cuda_runtime", "cudaLaunchKernel", 42, 16, correlation=2), kernel(2, 62, 5),
        span("cpu_op", "aten::view", 70, 9),
    ]  # fmt: skip
    lines = extract_host_overheads([view_rank(load_kineto(write_trace(tmp_path / "a", spans)))])
    found = {(HostPart(line["type"]), line["op"]): line["mean_us"] for line in lines}

    assert found[(HostPart.BETWEEN_OPERATORS, "")] == 70 - 60 - 2
    assert found[(HostPart.BEFORE_LAUNCH, "aten::mm")] == 20
    assert found[(HostPart.AFTER_LAUNCH, "aten::mm")] == 60 - 58
    assert found[(HostPart.LAUNCH, "cudaLaunchKernel")] == 16 - 2 - 4
    assert found[(HostPart.BETWEEN_LAUNCHES, "aten::mm")] == 42 - 36
    assert found[(HostPart.BETWEEN_LAUNCHES, "aten::view")] == 9


def test_products_come_with_their_shapes(tmp_path):
    shapes = {"Input Dims": [[32, 64], [64, 16]], "Input type": ["float", "float"]}
    spans = [
        span("cpu_op", "aten::mm", 0, 60, **shapes),
        launch(1, 20), kernel(1, 30, 12.5, name="volta_sgemm_32x32"),
    ]  # fmt: skip
    traces = load_job_trace(write_trace(tmp_path / "rank0.json", spans))

    [line] = extract_tables(traces, topology="dgx1_v100")["gemm"]

    assert (line["m"], line["n"], line["k"]) == (32, 16, 64)
    assert line["latency_ms"] == 0.0125


def test_collectives_come_with_their_sizes(shared_data, tmp_path):
    traces = load_job_trace(shared_data / "traces" / "gpt_tp2_v100x2")
    tables = extract_tables(traces, topology="two_v100")

    assert {line["collective"] for line in tables["collectives"]} == {"all_reduce"}
    assert {line["nranks"] for line in tables["collectives"]} == {2}
    assert all(line["time_us"] > 0 for line in tables["collectives"])
    assert (tmp_path / "collectives.csv") in write_tables(tables, tmp_path)
