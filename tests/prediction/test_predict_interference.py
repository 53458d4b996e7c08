"""What predictions say about interference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel import api
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.scenario import Interference, Mode, Scenario

DLRM = Scenario(topology="dgx_h100", samples=4)
LLAMA = Scenario(
    topology="dgx_h100",
    workload="llama3_8b",
    overrides=("model.layers=4", "batch=32"),
    hosts=2,
    samples=4,
)
BLACKWELL = replace(LLAMA, topology="dgx_b200")


def predict(scenario: Scenario, **changes: object) -> Prediction:
    return api.predict(replace(scenario, **changes), executor="serial")


@pytest.fixture(scope="module", params=[DLRM, LLAMA], ids=["dlrm", "llama"])
def scenario(request) -> Scenario:
    return request.param


@pytest.fixture(scope="module")
def counted(scenario) -> Prediction:
    return predict(scenario)


@pytest.fixture(scope="module")
def left_out(scenario) -> Prediction:
    return predict(scenario, interference=Interference.LEFT_OUT)


def test_the_loss_is_the_difference_to_a_prediction_without_interference(counted, left_out):
    assert counted.interference.lost_ns == counted.iteration_ns - left_out.iteration_ns
    assert counted.interference.lost_ns > 0
    assert left_out.interference is None


def test_the_loss_of_an_isolated_iteration_is_its_own(scenario, counted, left_out):
    isolated = predict(scenario, mode=Mode.ISOLATED)
    assert isolated.interference.lost_ns == counted.isolated_ns - left_out.isolated_ns


def test_the_parts_still_add_up(counted, left_out):
    for prediction in (counted, left_out):
        why = prediction.explanation
        assert why.time.total_ns == prediction.iteration_ns
        assert why.critical_path.length_ns == prediction.iteration_ns
        assert all(entry.time.total_ns == prediction.iteration_ns for entry in why.rank_classes)


def test_compute_takes_longer_beside_collectives(counted, left_out):
    compute = [one.explanation.time.of_part_ns[Part.COMPUTE] for one in (counted, left_out)]
    assert compute[0] > compute[1]


def test_the_answer_says_what_it_counted(counted, left_out):
    assert any("Interference adds" in sentence for sentence in counted.assumptions)
    assert any("Contention is not modelled" in sentence for sentence in left_out.assumptions)


def test_constants_of_another_generation_are_said_to_be_assumed():
    sentences = " ".join(predict(BLACKWELL).assumptions)
    assert "assumed as on hopper" in sentences


def test_one_rank_has_nothing_beside_its_kernels():
    alone = predict(DLRM, ranks_per_host=1)
    assert alone.interference.lost_ns == 0
    assert (
        alone.period_ns
        == predict(DLRM, ranks_per_host=1, interference=Interference.LEFT_OUT).period_ns
    )
