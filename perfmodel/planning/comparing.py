"""Comparing two plans: what one spends more of than the other, by part and by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.base.units import format_duration, format_size

LITTLE = 0.02
"""Differences below this share of the iteration are not reported."""


@dataclass(frozen=True, slots=True)
class RankWork:
    """The rank that a plan gives most of something, and the tables that are most of it there."""

    rank: int
    amount: float
    tables: tuple[str, ...]

    @property
    def because(self) -> str:
        """The tables in words."""
        return f", because of {' and '.join(self.tables)}" if self.tables else ""


@dataclass(frozen=True, slots=True)
class PlanWork:
    """What a plan called *name* makes an iteration spend.

    *parts_ns* are the mean over ranks of each part of the iteration, *lookup* the rank that looks
    up and updates longest, *sent* the one that sends most bytes of vectors, *host_bytes* what the
    ranks of the busiest host send together.
    """

    name: str
    iteration_ns: float
    parts_ns: Mapping[str, float]
    lookup: RankWork
    sent: RankWork
    host_bytes: int


def compare_works(first: PlanWork, second: PlanWork) -> tuple[str, ...]:
    """Sentences that say why *first* is faster than *second*, or is not."""
    apart_ns = second.iteration_ns - first.iteration_ns
    word = "longer" if apart_ns >= 0 else "less"
    sentences = [
        f"{second.name} takes {format_duration(abs(apart_ns))} {word} than {first.name}: "
        + (_parts(first, second) or "no part of it differs much")
        + "."
    ]
    least_ns = LITTLE * first.iteration_ns
    further_ns = second.lookup.amount - first.lookup.amount
    if abs(further_ns) > least_ns:
        slow, fast = (second, first) if further_ns > 0 else (first, second)
        sentences.append(
            f"{slow.name}: rank {slow.lookup.rank} looks up and updates "
            f"{format_duration(abs(further_ns))} longer than any rank under {fast.name}"
            f"{slow.lookup.because}."
        )
    more = second.sent.amount - first.sent.amount
    if abs(more) > LITTLE * max(first.sent.amount, second.sent.amount):
        large, small = (second, first) if more > 0 else (first, second)
        sentences.append(
            f"{small.name}: no rank sends more than {format_size(round(small.sent.amount))} of "
            f"vectors; under {large.name} rank {large.sent.rank} sends "
            f"{format_size(round(large.sent.amount))}, and its busiest host "
            f"{format_size(abs(large.host_bytes - small.host_bytes))} "
            f"{'more' if large.host_bytes >= small.host_bytes else 'less'}."
        )
    return tuple(sentences)


def _parts(first: PlanWork, second: PlanWork) -> str:
    """The parts that differ, the largest difference first."""
    further = {name: second.parts_ns[name] - part_ns for name, part_ns in first.parts_ns.items()}
    told = sorted(further.items(), key=lambda one: -abs(one[1]))
    return ", ".join(
        f"{name} {'+' if extra_ns > 0 else '-'}{format_duration(abs(extra_ns))}"
        for name, extra_ns in told
        if abs(extra_ns) > LITTLE * first.iteration_ns
    )
