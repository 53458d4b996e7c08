import json

import numpy as np
import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.correction import (
    LARGEST_CORRECTION,
    Correction,
    Layer,
    Network,
    correction_from_document,
    correction_to_document,
)


def line(weight: float, bias: float) -> Network:
    return Network((Layer(np.array([[weight]], np.float32), np.array([bias], np.float32)),))


def correction() -> Correction:
    return Correction(
        mean=np.zeros(1), scale=np.ones(1), low=np.array([-1.0]), high=np.array([1.0]),
        shift=line(0.5, 0.0), spread=line(0.0, np.log(0.1)),
    )  # fmt: skip


def test_outside_the_fitted_range_the_edge_answers_and_says_so():
    answer = correction().apply(np.array([[0.5], [1.0], [9.0]]))
    assert answer.log_ratio.tolist() == [0.25, 0.5, 0.5]
    assert answer.is_inside.tolist() == [True, True, False]
    assert answer.relative_sigma == pytest.approx(0.1)


def test_a_correction_never_more_than_doubles():
    wild = Correction(
        mean=np.zeros(1), scale=np.ones(1), low=np.array([-1.0]), high=np.array([1.0]),
        shift=line(100.0, 0.0), spread=line(0.0, 9.0),
    )  # fmt: skip
    assert wild.apply(np.array([[1.0]])).log_ratio.tolist() == [LARGEST_CORRECTION]


def test_a_written_correction_answers_the_same():
    document = json.loads(json.dumps(correction_to_document(correction())))
    again = correction_from_document(document, place="here")
    row = np.array([[0.3]])
    assert again.apply(row).log_ratio == pytest.approx(correction().apply(row).log_ratio, rel=1e-4)


def test_a_broken_document_is_refused_with_its_place():
    with pytest.raises(CalibrationError, match="over there"):
        correction_from_document({"mean": [0]}, place="over there")
