import json

import numpy as np
import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.corrections import (
    LARGEST_STEP,
    Correction,
    Layer,
    Network,
    correction_from_document,
    correction_to_document,
)


def line(weight: float, bias: float) -> Network:
    return Network((Layer(np.array([[weight]], np.float32), np.array([bias], np.float32)),))


def correction(weight: float) -> Correction:
    return Correction(
        mean=np.zeros(1), scale=np.ones(1), low=np.array([-1.0]), high=np.array([1.0]),
        shift=line(weight, 0.0),
    )  # fmt: skip


def test_outside_the_fitted_range_the_edge_answers():
    answer = correction(0.02).log_ratio(np.array([[0.5], [1.0], [9.0]]))
    # 0.02 x 0.5, 0.02 x 1, and 9 is held at 1.
    assert answer == pytest.approx([0.01, 0.02, 0.02])


def test_a_step_against_the_order_is_never_larger_than_three_per_cent():
    assert LARGEST_STEP == 0.03
    wild = correction(100.0).log_ratio(np.array([[1.0], [-1.0]]))
    assert wild.tolist() == [LARGEST_STEP, -LARGEST_STEP]


def test_a_written_correction_answers_the_same():
    document = json.loads(json.dumps(correction_to_document(correction(0.02))))
    again = correction_from_document(document, place="here")
    row = np.array([[0.3]])
    assert again.log_ratio(row) == pytest.approx(correction(0.02).log_ratio(row), rel=1e-4)


def test_a_broken_document_is_refused_with_its_place():
    with pytest.raises(CalibrationError, match="over there"):
        correction_from_document({"mean": [0]}, place="over there")
