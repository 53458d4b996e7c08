"""Agreements: commands that answer the same question give the same nanoseconds.

A command that searches may only do better.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.api import LayoutQuestion, RankQuestion, Scenario, compare, predict, rank, search
from perfmodel.api.questions import build_scenario
from perfmodel.base.errors import PlanError
from perfmodel.planning.layouts.ranking import RankedLayout
from perfmodel.prediction.scenario import Interference, Mode
from perfmodel.reports.text import to_question_document
from tests.laws.drawing import Case

SEARCH_WORK = 200


@dataclass(frozen=True)
class Agreement:
    """Another way to ask for the time of a scenario."""

    name: str
    ask_again: Callable[[Scenario], tuple[Scenario, int]]
    """The scenario to predict, and what the other way says."""
    applies: Callable[[Case], bool] = lambda case: True
    holds: Callable[[int, int], bool] = operator.eq
    """Whether the time of `predict` and that of the other way agree."""

    def times_ns(self, case: Case, folder: Path) -> tuple[int, int]:
        """What `predict` says, and the other way."""
        scenario, other_ns = self.ask_again(case.scenario(folder))
        return predict(scenario, executor="serial").iteration_ns, other_ns


def _compared(scenario: Scenario) -> tuple[Scenario, int]:
    entry, _ = compare({"one": scenario, "other": scenario}, executor="serial").entries
    assert entry.prediction is not None
    return scenario, entry.prediction.iteration_ns


def _asked_again(scenario: Scenario) -> tuple[Scenario, int]:
    found = predict(scenario, executor="serial")
    words = json.loads(json.dumps(to_question_document(found.scenario)))
    words |= {"mode": Mode(words["mode"]), "interference": Interference(words["interference"])}
    return Scenario(**words), found.iteration_ns


def _ranked(scenario: Scenario) -> tuple[Scenario, int]:
    question = RankQuestion(
        topology=scenario.topology,
        workload=scenario.workload,
        tables=scenario.tables,
        hosts=scenario.hosts,
        ranks_per_host=scenario.ranks_per_host,
        stack=scenario.stack,
        sharders=("balanced",),
        samples=2,
    )
    return scenario, rank(question, executor="serial").plans[0].answer.iteration_ns


def _searched(scenario: Scenario) -> tuple[Scenario, int]:
    best = _best_layout(scenario)
    changes = tuple(f"{key}={value}" for key, value in best.candidate.overrides.items())
    return replace(scenario, overrides=changes), best.time_ns


def _no_slower(scenario: Scenario) -> tuple[Scenario, int]:
    fit = build_scenario(scenario).memory_fit
    if fit is None or not fit.fits:
        raise PlanError("the stated layout does not fit in memory, so no search may choose it.")
    return scenario, _best_layout(scenario).time_ns


def _best_layout(scenario: Scenario) -> RankedLayout:
    question = LayoutQuestion(
        topology=scenario.topology,
        workload=scenario.workload,
        hosts=(scenario.hosts,),
        ranks_per_host=scenario.ranks_per_host,
        stack=scenario.stack,
        work=SEARCH_WORK,
        samples=0,
    )
    return search(question, executor="serial").best.best


def _has_layers(case: Case) -> bool:
    return not case.is_recommendation


def _has_tables(case: Case) -> bool:
    return case.is_recommendation and case.rank_count > 1


AGREEMENTS = (
    Agreement("compare equals predict", _compared),
    Agreement("a scenario in JSON is asked again", _asked_again),
    Agreement("rank's default plan equals predict", _ranked, _has_tables),
    Agreement("search's best equals predict", _searched, _has_layers),
    Agreement("search is no slower than predict", _no_slower, _has_layers, operator.ge),
)
