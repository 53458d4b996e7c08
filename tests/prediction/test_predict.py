"""Whole predictions of small scenarios."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import replay
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.assumptions import NO_DOUBT
from perfmodel.prediction.interference import fold_costs
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.scenario import Interference, Mode, Scenario

DLRM = Scenario(topology="dgx_h100", workload="dlrm_mlperf", samples=16)
SMALLER = ("model.layers=4", "batch=32")
TRANSFORMER = Scenario("dgx_a100", "gpt2_xl", SMALLER, hosts=2, samples=16)
OVERLAPPING = Scenario("dgx_h100", samples=4)
LLAMA = Scenario("dgx_h100", "llama3_8b", SMALLER, hosts=2, samples=4)


@cache
def predict(scenario: Scenario, **changes: object) -> Prediction:
    return api.predict(replace(scenario, **changes), executor="serial")


def check_sums(prediction: Prediction) -> None:
    why = prediction.explanation
    assert why.time.total_ns == why.critical_path.length_ns == prediction.iteration_ns
    assert all(entry.time.total_ns == prediction.iteration_ns for entry in why.rank_classes)


@pytest.mark.parametrize("scenario", [DLRM, TRANSFORMER], ids=["dlrm", "transformer"])
def test_parts_path_and_shares_add_up_over_all_ranks_and_the_interval_has_a_width(scenario):
    prediction = predict(scenario)
    check_sums(prediction)
    why, interval = prediction.explanation, prediction.interval
    ranks = [rank for entry in why.rank_classes for rank in entry.ranks]
    assert sorted(ranks) == list(range(prediction.facts.rank_count))
    assert sum(why.provenance_ratio.values()) == pytest.approx(1.0)
    assert interval.low_ns <= prediction.iteration_ns <= interval.high_ns
    assert interval.low_ns < interval.high_ns


def test_waits_add_up_to_the_waiting_part_of_their_ranks():
    dlrm = predict(DLRM)
    for entry in dlrm.explanation.rank_classes:
        waited_ns = sum(
            wait.duration_ns for wait in dlrm.explanation.waits if wait.waiting_ranks == entry.ranks
        )
        parts = {part.value: value for part, value in entry.time.of_part_ns.items()}
        assert waited_ns == parts["waiting_for_other_ranks"]


def test_waits_for_a_rank_name_the_tables_that_hold_it_up():
    naive = replace(OVERLAPPING, overrides=("sharding.sharder=naive",))
    found = api.predict(naive, executor="serial")
    worst = found.explanation.waits[0]
    # The only table with a hundred lookups per sample.
    assert worst.label.startswith("embedding/")
    assert worst.tables[0] == "table_20"


def test_an_isolated_iteration_is_answered_on_request():
    period, isolated = predict(DLRM), predict(DLRM, mode=Mode.ISOLATED)
    assert isolated.iteration_ns == isolated.isolated_ns == period.isolated_ns
    assert isolated.period_ns == period.period_ns
    assert isolated.explanation.time.total_ns == isolated.isolated_ns
    assert isolated.facts.iterations_replayed == 1 < period.facts.iterations_replayed
    assert NO_DOUBT not in period.assumptions


def test_folding_moves_neither_the_answer_nor_a_sample_by_a_nanosecond():
    question = build_question(load_setting(TRANSFORMER))
    priced = price_job(question.job, cluster=question.cluster, stack=question.stack)
    folded = fold_costs(priced).priced
    assert folded.job.rank_count < priced.job.rank_count
    whole, small = (replay(one.job, one.durations, 2) for one in (priced, folded))
    assert whole.iteration_end_ns.tolist() == small.iteration_end_ns.tolist()
    whole, small = (
        replay(one.job, one.sample(3, seed=7).vectors(0, 3)) for one in (priced, folded)
    )
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


@pytest.mark.parametrize(
    ("wrong", "word"), [({"workload": "no_such_model"}, "no_such_model"),
                        ({"overrides": ("bach=3",)}, "bach")],
)  # fmt: skip
def test_a_workload_that_is_nowhere_or_has_no_such_field_is_refused(wrong, word):
    with pytest.raises(InputError, match=word):
        predict(DLRM, **wrong)


@pytest.fixture(scope="module", params=[OVERLAPPING, LLAMA], ids=["dlrm", "llama"])
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
    check_sums(counted)
    check_sums(left_out)


def test_compute_takes_longer_beside_collectives(counted, left_out):
    compute = [one.explanation.time.of_part_ns[Part.COMPUTE] for one in (counted, left_out)]
    assert compute[0] > compute[1]


def test_the_answer_says_what_it_counted(counted, left_out):
    assert any("Interference adds" in sentence for sentence in counted.assumptions)
    assert any("Contention is not modelled" in sentence for sentence in left_out.assumptions)


def test_constants_of_another_generation_are_said_to_be_assumed():
    sentences = " ".join(predict(LLAMA, topology="dgx_b200").assumptions)
    assert "assumed as on hopper" in sentences


def test_one_rank_has_nothing_beside_its_kernels():
    alone = predict(OVERLAPPING, ranks_per_host=1)
    assert alone.interference.lost_ns == 0
    left_out = predict(OVERLAPPING, ranks_per_host=1, interference=Interference.LEFT_OUT)
    assert alone.period_ns == left_out.period_ns
