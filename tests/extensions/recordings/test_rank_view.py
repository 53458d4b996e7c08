"""What runtime calls do, and the clocks of host and device."""

import pytest

from perfmodel.extensions.recordings.rank_view import (
    CallKind,
    is_communication,
    kind_of_call,
    view_rank,
)
from tests.traces.builders import kernel, launch, write_trace
from traces.kineto import load_kineto


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaStreamSynchronize", CallKind.STREAM_SYNCHRONISE),
        ("hipDeviceSynchronize", CallKind.DEVICE_SYNCHRONISE),
        ("cuCtxSynchronize", CallKind.DEVICE_SYNCHRONISE),
        ("cudaEventRecordWithFlags", CallKind.MARK_RECORD),
        ("cudaFree", CallKind.FREE),
        ("cudaFreeAsync", CallKind.OTHER),
        ("cudaFreeHost", CallKind.OTHER),
        ("cudaMalloc", CallKind.ALLOCATE),
        ("cudaMallocAsync", CallKind.OTHER),
        ("cudaLaunchKernel", CallKind.OTHER),
        ("INVALID", CallKind.OTHER),
    ],
)
def test_calls_are_known_by_name(name, kind):
    assert kind_of_call(name) is kind


def test_communication_kernels_are_known_by_name():
    assert is_communication("ncclDevKernel_Generic(ncclDevComm*)")
    assert is_communication("ncclKernel_AllReduce_RING_LL_Sum_float")
    assert not is_communication("volta_sgemm_128x64_tn")


def test_a_clock_that_is_late_is_not_moved_so_far_that_work_begins_before_its_launch(tmp_path):
    # Kernels launched to an idle device begin 5 ms later; one launched to a busy device only 4.
    spans = [launch(1, 0), kernel(1, 5_000, 10), launch(2, 6_000), kernel(2, 11_000, 3_000),
             launch(3, 13_000), kernel(3, 17_000, 10)]  # fmt: skip
    view = view_rank(load_kineto(write_trace(tmp_path / "rank0.json", spans)))

    # The first percentile of three delays is 2 % of the way from the first to the second.
    assert view.skew_ns == -(4_000 + 20) * 1_000 + 6_000
