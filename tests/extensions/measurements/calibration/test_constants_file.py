"""Files of constants: what is written can be read again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.fitting.kernels.constants_file import (
    correction_to_document,
    entries_to_text,
    ordered_to_document,
)
from perfmodel.costs.calibration_files import parse_entries
from perfmodel.costs.corrections import correction_from_document, ordered_from_document
from tests.costs.test_calibration_files import ABOUT, entry
from tests.costs.test_corrections import correction, ordered


def test_what_is_written_can_be_read_again():
    text = entries_to_text(ABOUT, [entry("h100_sxm"), entry("l40s")])
    assert [one.device for one in parse_entries(text, document="here")] == ["h100_sxm", "l40s"]


def test_a_written_correction_answers_the_same():
    document = json.loads(json.dumps(correction_to_document(correction(0.02))))
    again = correction_from_document(document)
    row = np.array([[0.3]])
    assert again.log_ratio(row) == pytest.approx(correction(0.02).log_ratio(row), rel=1e-4)


def test_it_is_written_and_read_again():
    features = np.array([[0.3, -0.2], [-0.8, 0.9]])
    read = ordered_from_document(ordered_to_document(ordered()))
    np.testing.assert_allclose(read.apply(features)[0], ordered().apply(features)[0], rtol=1e-5)
