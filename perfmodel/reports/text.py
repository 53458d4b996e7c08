"""Sentences: what screen and page say in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_duration
from perfmodel.prediction.answer import Prediction, RankWait
from perfmodel.prediction.scenario import Mode, Scenario


@dataclass(frozen=True, slots=True)
class WaitCrowd:
    """Ranks that wait for *awaited_rank* in *label*, and what they lose: mean and most."""

    waiting_ranks: tuple[int, ...]
    awaited_rank: int
    label: str
    mean_ns: float
    longest_ns: int


def gather_waits(waits: Sequence[RankWait]) -> list[WaitCrowd]:
    """*waits* put together by who is awaited and in what; most time lost in all first."""
    together: dict[tuple[int, str], list[RankWait]] = {}
    for wait in waits:
        together.setdefault((wait.awaited_rank, wait.label), []).append(wait)
    crowds = [_gather(members) for members in together.values()]
    return sorted(
        crowds,
        key=lambda crowd: (
            -crowd.mean_ns * len(crowd.waiting_ranks),
            crowd.awaited_rank,
            crowd.label,
        ),
    )


def _gather(members: list[RankWait]) -> WaitCrowd:
    ranks = tuple(sorted(rank for wait in members for rank in wait.waiting_ranks))
    lost_ns = sum(wait.duration_ns * len(wait.waiting_ranks) for wait in members)
    return WaitCrowd(
        waiting_ranks=ranks,
        awaited_rank=members[0].awaited_rank,
        label=members[0].label,
        mean_ns=lost_ns / len(ranks),
        longest_ns=max(wait.duration_ns for wait in members),
    )


_UNITS = (("s", 10 * NS_PER_S, NS_PER_S), ("ms", NS_PER_MS, NS_PER_MS), ("us", 1, NS_PER_US))
"""Name, the shortest whole that is shown in it, and its length."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class DurationScale:
    """A unit and a number of decimals: those that show four digits of the whole."""

    unit: str
    unit_ns: int
    decimals: int

    def text(self, duration_ns: float) -> str:
        """*duration_ns* on this scale."""
        return f"{duration_ns / self.unit_ns:,.{self.decimals}f} {self.unit}"


def build_scale(whole_ns: int) -> DurationScale:
    """The scale for *whole_ns* and its parts."""
    unit, _, unit_ns = next(entry for entry in _UNITS if whole_ns >= entry[1] or entry[0] == "us")
    digits_before = len(str(max(whole_ns, 0) // unit_ns))
    return DurationScale(unit, unit_ns, max(_DIGITS - digits_before, 0))


def printable(text: str) -> str:
    """*text* without control letters; those of it become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def describe_title(prediction: Prediction) -> str:
    """The question in a line."""
    scenario = prediction.scenario
    ranks = f"{prediction.facts.rank_count} rank{'' if prediction.facts.rank_count == 1 else 's'}"
    name = scenario.workload if isinstance(scenario, Scenario) else prediction.facts.job
    if scenario is None or scenario.topology is None:
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
    if prediction.mode is Mode.PERIOD:
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
