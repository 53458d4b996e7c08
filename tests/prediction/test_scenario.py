"""Scenarios: questions that fit together, or are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.execution import ExecutorKind
from perfmodel.prediction.scenario import (
    DEFAULT_WORKLOAD,
    MAX_SAMPLES,
    JobScenario,
    Scenario,
    overrides_of,
)
from perfmodel.workloads import catalog


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Scenario, "hosts", 0), (Scenario, "ranks_per_host", 0), (Scenario, "seed", -1),
        (Scenario, "samples", 1), (Scenario, "samples", 10**6), (JobScenario, "hosts", 0),
        (JobScenario, "seed", -1), (JobScenario, "samples", 1),
    ],
)  # fmt: skip
def test_a_scenario_that_makes_no_sense_is_refused_with_the_value(kind, field, value):
    named = {"job": "job"} if kind is JobScenario else {}
    with pytest.raises(ScenarioError, match=rf"got {value}"):
        kind(topology="dgx_h100", **named, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("hosts", 1), ("ranks_per_host", 1), ("seed", 0), ("samples", 0), ("samples", 2),
     ("samples", MAX_SAMPLES)],
)  # fmt: skip
def test_the_least_and_the_most_are_allowed(field, value):
    assert getattr(Scenario(topology="dgx_h100", **{field: value}), field) == value


def test_a_job_may_have_one_host_and_one_file_of_constants():
    least = JobScenario("job", topology="dgx_h100", hosts=1, calibration="mine.yaml")
    assert (least.hosts, least.seed, least.calibration) == (1, 0, ("mine.yaml",))


@pytest.mark.parametrize(
    ("field", "value"),
    [("hosts", 2), ("stack", "generic"), ("was", "dgx_a100"), ("calibration", ("a", "b"))],
)
def test_what_is_said_about_a_machine_needs_one(field, value):
    with pytest.raises(ScenarioError, match=f"--{field} .*Add --topology"):
        JobScenario("job", **{field: value})
    assert JobScenario("job", topology="dgx_h100", **{field: value})
    assert JobScenario("job", seed=3)


def test_a_batch_is_a_change_and_stays_when_something_else_is_replaced():
    scenario = Scenario("dgx_h100", overrides={"model.layers": 2}, batch=64)
    assert scenario.overrides == ("model.layers=2", "batch=64")
    assert replace(scenario, hosts=2).overrides == scenario.overrides


def test_changes_are_said_as_they_would_be_typed():
    assert overrides_of({"a": "x y", "b": 3, "c": True, "d": [1]}) == (
        "a=x y", "b=3", "c=true", "d=[1]",
    )  # fmt: skip
    asked = Scenario("dgx_h100", overrides={"batch": 8}, calibration="mine.yaml")
    assert (asked.overrides, asked.calibration) == (("batch=8",), ("mine.yaml",))
    assert Scenario("dgx_h100", overrides="batch=8") == Scenario("dgx_h100", overrides=("batch=8",))


def test_the_default_workload_is_the_one_the_catalog_names():
    assert DEFAULT_WORKLOAD == catalog.DEFAULT_WORKLOAD


def test_the_words_for_executors_are_those_of_the_executors():
    from perfmodel.cli.options import ExecutorName

    assert list(get_args(ExecutorName)) == [kind.value for kind in ExecutorKind]
