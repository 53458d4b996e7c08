"""What streams spend their time on."""

import pytest

from perfmodel.recordings.trace_stats import Part, part_of, split_streams
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

    compute, communication = split_streams(load_job_trace(path))

    # From 0 to 100 us: 10 of GEMM, 20 of something else, the rest idle.
    assert compute.parts_ns[Part.GEMM] == 10_000
    assert compute.parts_ns[Part.OTHER] == 20_000
    assert compute.parts_ns[Part.IDLE] == 70_000
    assert communication.parts_ns[Part.COMMUNICATION] == 95_000
    assert compute.window_ns == communication.window_ns == 100_000
