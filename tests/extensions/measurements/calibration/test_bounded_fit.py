"""Constants between their limits."""

import numpy as np
import pytest

from perfmodel.extensions.measurements.calibration.bounded_fit import minimise


def fitted(pull: float, *, wanted: float = 3.0, low: float = -10.0) -> float:
    limits = {"a": (1.0, low, 10.0)}

    def errors(constants):
        return np.array([constants["a"] - wanted])

    return minimise(limits, errors, evaluations=200, step=1e-6, pull=pull)["a"]


def test_without_a_pull_the_errors_alone_decide():
    assert fitted(0.0) == pytest.approx(3.0, abs=1e-4)


def test_a_pull_as_strong_as_the_error_stops_half_way_from_the_start():
    # (a - 3)^2 + (a - 1)^2 is least at 2; with a pull of 2 at 3 / 5 + 4 / 5.
    assert fitted(1.0) == pytest.approx(2.0, abs=1e-4)
    assert fitted(2.0) == pytest.approx(1.4, abs=1e-4)


def test_positive_constants_are_pulled_by_their_logarithm():
    # At the best a: (a - 3) a + ln(a) = 0.
    best = fitted(1.0, low=0.1)
    assert (best - 3) * best + np.log(best) == pytest.approx(0.0, abs=1e-3)


def test_limits_hold():
    assert fitted(0.0, wanted=30.0) == pytest.approx(10.0, rel=1e-3)
