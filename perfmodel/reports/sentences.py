"""Sentences: what screen and page say in the same words."""

from __future__ import annotations

from perfmodel.base.units import NS_PER_S, format_duration
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.scenario import Mode


def describe_title(prediction: Prediction) -> str:
    """The question in a line."""
    scenario = prediction.scenario
    hosts = f"{scenario.hosts} host{'' if scenario.hosts == 1 else 's'}"
    ranks = f"{prediction.rank_count} rank{'' if prediction.rank_count == 1 else 's'}"
    topology = scenario.topology.removesuffix(".yaml")
    return f"{scenario.workload} on {hosts} of {topology}, {ranks}"


def describe_other_time(prediction: Prediction) -> str:
    """Which of the two times the answer is, and the other one."""
    if prediction.scenario.mode is Mode.PERIOD:
        other = format_duration(prediction.isolated_ns)
        return f"steady state; an isolated iteration takes {other}"
    other = format_duration(prediction.period_ns)
    return f"isolated iteration; in steady state one takes {other}"


def describe_run(prediction: Prediction) -> str:
    """Where the work was done, and how long it took."""
    seconds = sum(prediction.run.phase_s.values())
    return f"{prediction.run.executor}, in {format_duration(seconds * NS_PER_S)}"
