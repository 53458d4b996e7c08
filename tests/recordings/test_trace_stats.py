"""What streams spend their time on."""

import pytest

from perfmodel.recordings.trace_stats import Part, part_of, stats_document
from tests.traces.builders import kernel, write_trace
from traces.job_trace import load_job_trace


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("void split_embedding_codegen_forward", Part.LOOKUP),
        ("volta_sgemm_128x64_tn", Part.GEMM),
        ("void at::native::vectorized_elementwise_kernel<4>", Part.MEMORY),
        ("Memcpy HtoD (Pinned -> Device)", Part.MEMORY),
        ("ncclDevKernel_SendRecv(args)", Part.COMMUNICATION),
        ("mystery", Part.OTHER),
    ],
)
def test_kernels_are_told_by_name(name, part):
    assert part_of(name) is part


def test_the_parts_of_a_stream_add_up_to_the_window(tmp_path):
    spans = [
        kernel(1, 0, 10, name="sgemm"), kernel(2, 30, 20, name="mystery"),
        kernel(3, 5, 95, stream=20, name="ncclKernel_AllReduce"),
    ]  # fmt: skip
    path = write_trace(tmp_path / "rank0.json", spans)

    compute, communication = stats_document(load_job_trace(path))["streams"]

    # From 0 to 100 us: 10 of GEMM, 20 of something else, the rest idle.
    assert compute["parts_ms"]["gemm"] == 0.01
    assert compute["parts_ms"]["other"] == 0.02
    assert compute["parts_ms"]["idle"] == 0.07
    assert communication["parts_ms"]["communication"] == 0.095
    assert compute["window_ms"] == communication["window_ms"] == 0.1
