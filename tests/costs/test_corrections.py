import numpy as np
import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.corrections import (
    LARGEST_STEP,
    Correction,
    Network,
    OrderedCorrection,
    OrderedNetwork,
    correction_from_document,
    ordered_from_document,
)


def line(weight: float, bias: float) -> Network:
    return Network(((np.array([[weight]], np.float32), np.array([bias], np.float32)),))


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


def test_documents_without_their_parts_are_refused():
    with pytest.raises(CalibrationError, match=r"must hold .*shift"):
        correction_from_document({"mean": [0]})
    with pytest.raises(CalibrationError, match=r"must hold .*order, spread"):
        ordered_from_document({"mean": [0.0]})


def network(weight: float = 1.0) -> OrderedNetwork:
    # tanh(tanh(x)) + x / 2 for one input, whatever the second input is.
    return OrderedNetwork(
        first=np.array([[weight], [0.0]]),
        first_bias=np.zeros(1),
        second=np.ones((1, 1)),
        second_bias=np.zeros(1),
        last=np.ones(1),
        straight=np.array([0.5, 0.0]),
        bias=np.zeros(1),
    )


def ordered() -> OrderedCorrection:
    spread = Network(((np.zeros((2, 1), np.float32), np.full(1, np.log(0.1), np.float32)),))
    return OrderedCorrection(
        mean=np.zeros(2), scale=np.ones(2), low=np.full(2, -1.0), high=np.full(2, 1.0),
        order=network(), spread=spread,
    )  # fmt: skip


def test_the_answer_is_the_ratio_to_the_first_feature():
    log_ratio, relative_sigma, is_inside = ordered().apply(np.array([[0.5, 0.0]]))
    # tanh(tanh(0.5)) + 0.25 - 0.5 = 0.4318 - 0.25.
    assert log_ratio[0] == pytest.approx(0.4318 - 0.25, abs=1e-4)
    assert relative_sigma[0] == pytest.approx(0.1, rel=1e-5)
    assert is_inside[0]


def test_beyond_the_range_time_grows_as_the_physics_says():
    log_ratio, _, is_inside = ordered().apply(np.array([[1.0, 0.0], [9.0, 0.0]]))
    assert log_ratio[0] == log_ratio[1]
    assert is_inside.tolist() == [True, False]


def test_the_order_in_which_a_cpu_adds_does_not_show():
    draw = np.random.default_rng(7)
    first, second = draw.normal(size=(8, 64)), draw.normal(size=(64, 1)) / 8
    order = draw.permutation(64)

    def answer(units):
        layers = (
            (first[:, units].astype(np.float32), np.zeros(64, np.float32)),
            (second[units].astype(np.float32), np.zeros(1, np.float32)),
        )
        return Network(layers).answer(draw_inputs)

    draw_inputs = draw.normal(size=(200, 8))
    assert np.mean(answer(np.arange(64)) == answer(order)) > 0.9


def test_a_falling_weight_is_refused():
    with pytest.raises(CalibrationError, match="at least 0"):
        network(weight=-0.1)
