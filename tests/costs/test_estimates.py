import math

import numpy as np
import pytest

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import (
    Bound,
    build_estimates,
    concatenate_estimates,
    price_by_kind,
    rows_of_kinds,
)


def some(*durations_ns: float):
    return build_estimates(
        np.array(durations_ns, dtype=np.float64),
        relative_sigma=0.1,
        provenance=Provenance.ANALYTIC,
        bound=Bound.MEMORY,
    )


def test_the_interval_is_symmetric_in_the_logarithm():
    one = some(1000.0)
    # 1.645 standard deviations of 10 % each way: a factor exp(0.1645) = 1.179.
    assert one.high_ns[0] / 1000.0 == pytest.approx(math.exp(0.16448536))
    assert one.low_ns[0] * one.high_ns[0] == pytest.approx(1000.0**2)


def test_rows_come_back_in_the_order_they_were_asked_for():
    asked = []

    def price(kind, chosen):
        asked.append((kind, [*chosen]))
        return some(*chosen)

    together = price_by_kind([10.0, 20.0, 30.0], rows_of_kinds("aba"), price)
    assert asked == [("a", [10.0, 30.0]), ("b", [20.0])]
    assert together.duration_ns.tolist() == [10.0, 20.0, 30.0]
    assert len(price_by_kind([], {}, price)) == 0


def test_nothing_concatenated_is_nothing():
    assert len(concatenate_estimates(())) == 0


def test_a_negative_duration_cannot_be_made():
    with pytest.raises(AssertionError):
        some(-1.0)
