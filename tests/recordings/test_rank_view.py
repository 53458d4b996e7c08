"""What runtime calls do."""

import pytest

from perfmodel.recordings.rank_view import CallKind, is_communication, kind_of_call


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
