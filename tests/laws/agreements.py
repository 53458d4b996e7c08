"""Agreements: commands that answer the same question give the same nanoseconds.

A command that searches or makes tasks faster may only do better. Nothing is beyond physics.
"""

from __future__ import annotations

import contextlib
import io
import json
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from perfmodel.api import (
    LayoutQuestion,
    RankQuestion,
    Scenario,
    compare,
    fits,
    predict,
    rank,
    search,
)
from perfmodel.api.questions import build_scenario
from perfmodel.base.errors import PlanError
from perfmodel.cli import main
from perfmodel.extensions.whatif import parse_transformation
from perfmodel.extensions.whatif.answering import answer_changes, prepare_changes
from perfmodel.planning.layouts.ranking import RankedLayout
from perfmodel.prediction.scenario import Interference, Mode
from perfmodel.reports.text import to_question_document
from tests.laws.drawing import Case

SEARCH_WORK = 200


@dataclass(frozen=True)
class Agreement:
    """Another way to ask for the time of a scenario."""

    name: str
    ask_again: Callable[[Scenario], tuple[Scenario | int, int]]
    """The scenario to predict, or what `predict` says, and what the other way says."""
    applies: Callable[[Case], bool] = lambda case: True
    holds: Callable[[int, int], bool] = operator.eq
    """Whether the time of `predict` and that of the other way agree."""

    def times_ns(self, case: Case, folder: Path) -> tuple[int, int]:
        """What `predict` says, and the other way."""
        asked, other_ns = self.ask_again(case.scenario(folder))
        if isinstance(asked, Scenario):
            asked = predict(asked, executor="serial").iteration_ns
        return asked, other_ns


def _commanded(*words: str) -> int:
    """What a command says, in nanoseconds."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["predict", *words, "--executor", "serial", "--quiet", "--json", "-"])
    return round(json.loads(out.getvalue())["iteration_time_ms"] * 1e6)


def _typed(scenario: Scenario) -> tuple[Scenario, int]:
    stated = {
        "topology": scenario.topology, "workload": scenario.workload, "hosts": scenario.hosts,
        "ranks-per-host": scenario.ranks_per_host, "stack": scenario.stack,
        "tables": scenario.tables, "plan": scenario.plan, "samples": scenario.samples or 2,
    }  # fmt: skip
    words = [f"--{key}={value}" for key, value in stated.items() if value is not None]
    return scenario, _commanded(*words)


def _written(scenario: Scenario) -> tuple[Scenario, int]:
    stated = to_question_document(replace(scenario, samples=2))
    known = {key: value for key, value in stated.items() if value not in (None, [])}
    known = {key: one for key, one in known.items() if key in _FILED}
    path = Path(scenario.topology).with_name("asked.yaml")
    path.write_text(yaml.safe_dump(known, explicit_end=True))
    return scenario, _commanded("--scenario", str(path))


_FILED = ("topology", "workload", "hosts", "ranks_per_host", "stack", "tables", "plan")


def _changed(scenario: Scenario) -> tuple[int, int]:
    """The job before and after some of its tasks are faster."""
    chooser = random.Random(str(scenario.workload))
    match, factor = (
        chooser.choice(("*e*", "*forward*", "*backward*")),
        chooser.choice(("0.97", "0.5", "0.25")),
    )
    text = f"scale:match={match},factor={factor}"
    question = replace(build_scenario(scenario), extrapolation=None)
    prepared = prepare_changes(question, force=True)
    found = answer_changes(prepared, [(text, parse_transformation(text))], force=True)
    return found.before.iteration_ns, found.after.iteration_ns


def _within_physics(scenario: Scenario) -> tuple[int, int]:
    """The time, and what the operations of the model need at the peak of the chips."""
    found = predict(scenario, executor="serial")
    assert not [one for one in found.warnings if one.rule.startswith("beyond")], found.warnings
    share = found.yardsticks.model_utilisation if found.yardsticks else None
    return found.iteration_ns, round(found.iteration_ns * (share or 0))


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


def _fitted(scenario: Scenario) -> tuple[int, int]:
    """Bytes of the fullest rank, in a prediction and by `fits`."""
    predicted = max(one.total_bytes for one in build_scenario(scenario).memory_of_rank)
    return predicted, fits(scenario).peak_bytes


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
    Agreement("options equal the API", _typed),
    Agreement("a scenario in a file equals the API", _written),
    Agreement("faster tasks are no slower", _changed, holds=operator.ge),
    Agreement("nothing is beyond physics", _within_physics, holds=operator.ge),
    Agreement("a scenario in JSON is asked again", _asked_again),
    Agreement("rank's default plan equals predict", _ranked, _has_tables),
    Agreement("search's best equals predict", _searched, _has_layers),
    Agreement("fits equals predict in bytes", _fitted),
    Agreement("search is no slower than predict", _no_slower, _has_layers, operator.ge),
)
