"""Buckets of gradients."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.workloads.reduction import FIRST_BUCKET_BYTES, BucketFill


def test_the_first_bucket_is_smaller():
    fill = BucketFill(25 * 2**20)
    assert fill.add(2**19) == 0
    # 512 KiB + 512 KiB reach the first limit of 1 MiB.
    assert fill.add(2**19) == FIRST_BUCKET_BYTES
    assert fill.add(2**20) == 0


def test_the_gradient_that_reaches_the_limit_closes_the_bucket():
    fill = BucketFill(100, closed=1)
    assert [fill.add(60), fill.add(60), fill.add(99), fill.add(1)] == [0, 120, 0, 100]
    assert fill.close() == 0


@given(gradients=st.lists(st.integers(1, 2**22), max_size=40), limit_bytes=st.integers(1, 2**23))
def test_no_gradient_is_lost(gradients, limit_bytes):
    fill = BucketFill(limit_bytes)
    closed = [fill.add(size) for size in gradients]
    assert sum(closed) + fill.close() == sum(gradients)
