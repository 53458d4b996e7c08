"""Whole predictions of small scenarios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import replay
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.assumptions import NO_DOUBT
from perfmodel.prediction.interference import fold_costs
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.scenario import Mode, Scenario

DLRM = Scenario(topology="dgx_h100", workload="dlrm_mlperf", samples=16)
TRANSFORMER = Scenario(
    topology="dgx_a100",
    workload="gpt2_xl",
    overrides=("model.layers=4", "batch=32"),
    hosts=2,
    samples=16,
)


@pytest.fixture(scope="module")
def dlrm() -> Prediction:
    return api.predict(DLRM, executor="serial")


@pytest.fixture(scope="module")
def transformer() -> Prediction:
    return api.predict(TRANSFORMER, executor="serial")


@pytest.fixture(params=["dlrm", "transformer"])
def prediction(request) -> Prediction:
    answer: Prediction = request.getfixturevalue(request.param)
    return answer


def test_the_parts_add_up_to_the_iteration_for_every_class_of_ranks(prediction):
    why = prediction.explanation
    assert why.time.total_ns == prediction.iteration_ns
    for entry in why.rank_classes:
        assert entry.time.total_ns == prediction.iteration_ns


def test_every_rank_is_in_one_class(prediction):
    ranks = [rank for entry in prediction.explanation.rank_classes for rank in entry.ranks]

    assert sorted(ranks) == list(range(prediction.facts.rank_count))


def test_the_interval_holds_the_answer_and_has_a_width(prediction):
    interval = prediction.interval
    assert interval.low_ns <= prediction.iteration_ns <= interval.high_ns
    assert interval.low_ns < interval.high_ns


def test_provenance_shares_add_up_to_one(prediction):
    assert sum(prediction.explanation.provenance_ratio.values()) == pytest.approx(1.0)


def test_the_critical_path_is_as_long_as_the_iteration(prediction):
    assert prediction.explanation.critical_path.length_ns == prediction.iteration_ns


def test_waits_add_up_to_the_waiting_part_of_their_ranks(dlrm):
    for entry in dlrm.explanation.rank_classes:
        waited_ns = sum(
            wait.duration_ns for wait in dlrm.explanation.waits if wait.waiting_ranks == entry.ranks
        )
        parts = {part.value: value for part, value in entry.time.of_part_ns.items()}
        assert waited_ns == parts["waiting_for_other_ranks"]


def test_an_isolated_iteration_is_answered_on_request():
    period = api.predict(DLRM, executor="serial")
    isolated = api.predict(replace(DLRM, mode=Mode.ISOLATED), executor="serial")

    assert isolated.iteration_ns == isolated.isolated_ns == period.isolated_ns
    assert isolated.period_ns == period.period_ns
    assert isolated.explanation.time.total_ns == isolated.isolated_ns
    assert isolated.facts.iterations_replayed == 1 < period.facts.iterations_replayed
    assert NO_DOUBT not in period.assumptions


def test_folding_does_not_move_the_answer_by_a_nanosecond(transformer):
    question = build_question(load_setting(TRANSFORMER))
    priced = price_job(question.job, cluster=question.cluster, stack=question.stack)
    folded = fold_costs(priced)
    assert folded.priced.job.rank_count < priced.job.rank_count

    whole = replay(priced.job, priced.durations, iterations=2)
    small = replay(folded.priced.job, folded.priced.durations, iterations=2)

    assert whole.iteration_end_ns.tolist() == small.iteration_end_ns.tolist()


def test_folding_keeps_every_sample_too():
    question = build_question(load_setting(TRANSFORMER))
    priced = price_job(question.job, cluster=question.cluster, stack=question.stack)
    folded = fold_costs(priced)

    whole = replay(priced.job, priced.sample(3, seed=7))
    small = replay(folded.priced.job, folded.priced.sample(3, seed=7))

    assert whole.iteration_end_ns.tolist() == small.iteration_end_ns.tolist()


def test_a_faster_machine_is_faster_for_the_right_reason():
    by_machine = {
        topology: api.predict(Scenario(topology=topology, samples=2), executor="serial")
        for topology in ("dgx_h100", "dgx_a100", "a100_pcie")
    }
    h100, a100, no_nvlink = by_machine.values()
    assert h100.iteration_ns < a100.iteration_ns < no_nvlink.iteration_ns

    def part_ns(prediction: Prediction, part: Part) -> int:
        return prediction.explanation.time.of_part_ns[part]

    # A newer GPU computes faster; the same GPU without NVLink only communicates longer.
    assert part_ns(h100, Part.COMPUTE) < part_ns(a100, Part.COMPUTE)
    assert part_ns(no_nvlink, Part.EXPOSED_COMMUNICATION) > 2 * part_ns(
        a100, Part.EXPOSED_COMMUNICATION
    )


def test_a_workload_that_is_nowhere_is_refused():
    with pytest.raises(InputError, match="no_such_model"):
        api.predict(replace(DLRM, workload="no_such_model"), executor="serial")


def test_an_override_that_is_no_field_is_refused():
    with pytest.raises(InputError, match="bach"):
        api.predict(replace(DLRM, overrides=("bach=3",)), executor="serial")
