import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TopologyError
from tests.topologies.machines import build_device


def test_a_device_has_no_rate_for_a_dtype_it_cannot_multiply():
    device = build_device()

    assert device.peak_flops[DType.BF16] == 8e12
    assert device.supports(DType.BF16)
    assert not device.supports(DType.FP8)


def test_a_device_refuses_quantities_that_are_not_above_zero():
    with pytest.raises(TopologyError, match="memory 0, peak fp32 -1"):
        build_device(memory_bytes=0, peak_flops={DType.FP32: -1.0})
