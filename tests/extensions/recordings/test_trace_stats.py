"""What streams spend their time on."""

import pytest

from perfmodel.extensions.recordings.trace_stats import DeviceWork, part_of, stats_document
from tests.traces.builders import kernel, launch, write_trace
from traces.job_trace import load_job_trace


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("void split_embedding_codegen_forward", DeviceWork.LOOKUP),
        ("volta_sgemm_128x64_tn", DeviceWork.GEMM),
        ("void at::native::vectorized_elementwise_kernel<4>", DeviceWork.MEMORY),
        ("Memcpy HtoD (Pinned -> Device)", DeviceWork.MEMORY),
        ("ncclDevKernel_SendRecv(args)", DeviceWork.COMMUNICATION),
        ("mystery", DeviceWork.OTHER),
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


def test_idle_time_is_the_hosts_until_the_next_launch_and_a_gap_from_there(tmp_path):
    # Busy 0..10, launched at 40 and started at 50: 30 us the host was late, 10 are a gap. The third
    # kernel was launched at 45 and waits in the queue until 70; nobody recorded the last launch.
    spans = [
        launch(1, -5), kernel(1, 0, 10), launch(2, 40), kernel(2, 50, 20),
        launch(3, 45), kernel(3, 70, 10), kernel(4, 85, 15),
    ]  # fmt: skip
    path = write_trace(tmp_path / "rank0.json", spans)

    [idle] = stats_document(load_job_trace(path))["idle"]

    assert idle["window_ms"] == 0.1
    assert idle["idle_ms"] == pytest.approx(0.045)
    assert idle["causes_ms"] == pytest.approx(
        {"host_late": 0.03, "kernel_gap": 0.01, "launch_not_recorded": 0.005}
    )
    # 5 + 10 + 25 us in the queue, of a window of 100.
    assert idle["launch_queue"] == {"mean": pytest.approx(0.4), "most": 2}
    assert idle["waiting_in_collectives_ms"] is None


def test_waiting_for_a_late_rank_is_counted_in_its_collectives(tmp_path):
    # Rank 1 arrives 60 us after rank 0; both leave at 100.
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    for rank, start in enumerate((0, 60)):
        spans = [launch(1, start - 2), kernel(1, start, 100 - start, name=name)]
        write_trace(tmp_path / f"rank{rank}.json", spans, rank=rank)

    idle = stats_document(load_job_trace(tmp_path))["idle"]

    assert [one["waiting_in_collectives_ms"] for one in idle] == [pytest.approx(0.06), 0.0]
