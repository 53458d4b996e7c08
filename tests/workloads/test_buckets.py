"""Buckets of gradients."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import JobBuilder
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.reduction import FIRST_BUCKET_BYTES, GradientReduction


def buckets_of(gradients, limit_bytes, *, closed=0, is_deferred=False):
    """Bytes of the buckets of *gradients*, given in bytes, in their order."""
    writer = EagerWriter(JobBuilder().new_program())
    stream = writer.add_lane("communication stream")
    words = {"closed": closed, "is_deferred": is_deferred}
    reduction = GradientReduction(writer, stream, 0, DType.INT8, limit_bytes, **words)
    for size in gradients:
        is_issued, before = reduction.is_issued_by(size), len(reduction.tasks)
        reduction.add(size)
        assert len(reduction.tasks) - before == is_issued
    reduction.finish()
    return reduction.bucket_elements


def test_the_first_bucket_is_smaller():
    # 512 KiB + 512 KiB reach the first limit of 1 MiB.
    assert buckets_of([2**19, 2**19, 2**20], 25 * 2**20) == [FIRST_BUCKET_BYTES, 2**20]


def test_the_gradient_that_reaches_the_limit_closes_the_bucket():
    assert buckets_of([60, 60, 99, 1], 100, closed=1) == [120, 100]


@given(
    gradients=st.lists(st.integers(1, 2**22), max_size=40),
    limit_bytes=st.integers(1, 2**23),
    is_deferred=st.booleans(),
)
def test_no_gradient_is_lost(gradients, limit_bytes, is_deferred):
    assert sum(buckets_of(gradients, limit_bytes, is_deferred=is_deferred)) == sum(gradients)
