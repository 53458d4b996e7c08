"""Scenarios: questions that fit together, or are refused."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.execution import ExecutorKind
from perfmodel.prediction.scenario import DEFAULT_WORKLOAD, MAX_SAMPLES, Scenario
from perfmodel.workloads import catalog


@pytest.mark.parametrize(
    ("field", "value"),
    [("hosts", 0), ("ranks_per_host", 0), ("seed", -1), ("samples", 1), ("samples", 10**6)],
)
def test_a_scenario_that_makes_no_sense_is_refused_with_the_value(field, value):
    with pytest.raises(ScenarioError, match=rf"got {value}"):
        Scenario(topology="dgx_h100", **{field: value})


def test_the_most_samples_are_allowed():
    assert Scenario(topology="dgx_h100", samples=MAX_SAMPLES).samples == MAX_SAMPLES


def test_the_default_workload_is_the_one_the_catalog_names():
    assert DEFAULT_WORKLOAD == catalog.DEFAULT_WORKLOAD


def test_the_words_for_executors_are_those_of_the_executors():
    from perfmodel.cli.options import ExecutorChoice

    assert [choice.value for choice in ExecutorChoice] == [kind.value for kind in ExecutorKind]
