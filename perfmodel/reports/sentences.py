"""Sentences: what screen and page say in the same words."""

from __future__ import annotations

from perfmodel.base.units import NS_PER_S, format_duration
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.scenario import Mode, Scenario


def describe_title(prediction: Prediction) -> str:
    """The question in a line."""
    scenario = prediction.scenario
    ranks = f"{prediction.facts.rank_count} rank{'' if prediction.facts.rank_count == 1 else 's'}"
    name = scenario.workload if isinstance(scenario, Scenario) else prediction.facts.job
    if scenario.topology is None:
        return f"{name}, {ranks}"
    hosts = f"{scenario.hosts} host{'' if scenario.hosts == 1 else 's'}"
    topology = scenario.topology.removesuffix(".yaml")
    return f"{name} on {hosts} of {topology}, {ranks}"


def describe_other_time(prediction: Prediction) -> str:
    """Which of the two times the answer is, and the other one; of a recording, its score."""
    if prediction.score is not None:
        error_pct = prediction.score.iteration.error_pct
        return f"recorded; the recording replays itself with an error of {error_pct:+.2f} %"
    assert prediction.isolated_ns is not None
    if prediction.scenario.mode is Mode.PERIOD:
        other = format_duration(prediction.isolated_ns)
        return f"steady state; an isolated iteration takes {other}"
    other = format_duration(prediction.period_ns)
    return f"isolated iteration; in steady state one takes {other}"


def describe_speed(prediction: Prediction) -> str:
    """How many samples a second that makes, or iterations where the batch is not known."""
    batch = prediction.facts.batch
    per_s = (batch or 1) * NS_PER_S / max(prediction.iteration_ns, 1)
    rate = f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"
    if batch is None:
        return f"{rate} iterations/s"
    return f"{rate} samples/s at a batch of {batch:,}"


def describe_run(prediction: Prediction) -> str:
    """Where the work was done, and how long it took."""
    seconds = sum(prediction.run.phase_s.values())
    return f"{prediction.run.executor}, {format_duration(seconds * NS_PER_S)}"


def describe_rank_changes(count: int) -> str:
    """How often the critical path changes ranks."""
    return f"it goes over to another rank {'once' if count == 1 else f'{count} times'}"
