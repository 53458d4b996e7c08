"""Scenarios side by side, and where the curve of a sweep bends."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.base.value_lists import expand_values
from perfmodel.execution.serial import SerialExecutor
from perfmodel.prediction.comparing import (
    NamedScenario,
    compare_scenarios,
    parse_axis,
    sweep_scenario,
)
from perfmodel.prediction.scenario import JobScenario, Scenario

SMALL = Scenario(topology="dgx_a100", workload="dlrm_mlperf", samples=2)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4096,8192", ("4096", "8192")),
        ("4096:16384:x2", ("4096", "8192", "16384")),
        ("1:9:+4", ("1", "5", "9")),
        ("1:3", ("1", "2", "3")),
        ("0.25..0.5..1", ("0.25", "0.5", "1")),
        ("dgx_a100,../mine.yaml", ("dgx_a100", "../mine.yaml")),
    ],
)
def test_several_values_are_one_word(text, values):
    assert expand_values(text) == values


@pytest.mark.parametrize("text", ["8:4:x2", "1:8:x1", "4,,8", "4,4", "1:8:2"])
def test_values_that_lead_nowhere_are_refused(text):
    with pytest.raises(InputError):
        expand_values(text)


def test_a_sweep_takes_every_combination_and_replaces_what_was_set():
    base = Scenario(topology="dgx_a100", overrides=("batch=1",))
    points = sweep_scenario(base, [parse_axis("hosts=1,2"), parse_axis("batch=8,16")])

    assert [point.name for point in points] == [
        "hosts=1, batch=8",
        "hosts=1, batch=16",
        "hosts=2, batch=8",
        "hosts=2, batch=16",
    ]
    assert points[3].scenario == Scenario(topology="dgx_a100", hosts=2, overrides=("batch=16",))


def test_a_job_cannot_be_swept_over_fields_of_a_model():
    with pytest.raises(ScenarioError, match="whatif"):
        sweep_scenario(JobScenario("job"), [parse_axis("batch=8,16")])


def test_a_curve_that_the_host_holds_flat_bends_where_the_gpu_takes_over():
    axis = parse_axis("batch=2048,4096,65536,131072")
    found = compare_scenarios(sweep_scenario(SMALL, [axis]), axes=[axis], executor=SerialExecutor())

    assert any("hardly changes" in sentence and "host" in sentence for sentence in found.findings)
    assert any(
        sentence.startswith("Knee between batch=4,096 and 65,536: up to there mostly host")
        for sentence in found.findings
    )
    assert found.fastest.name == "batch=2048"


def test_one_scenario_without_an_answer_keeps_its_place_with_the_reason():
    wrong = Scenario(topology="dgx_a100", workload="dlrm_mlperf", overrides=("batch=0",))
    named = [NamedScenario("right", SMALL), NamedScenario("wrong", wrong)]
    found = compare_scenarios(named, executor=SerialExecutor())

    assert [entry.prediction is None for entry in found.entries] == [False, True]
    assert "batch" in found.entries[1].fault


def test_nothing_to_compare_is_refused():
    with pytest.raises(ScenarioError, match="two scenarios"):
        compare_scenarios([NamedScenario("alone", SMALL)], executor=SerialExecutor())
