"""Crowds: ranks of several classes that wait for the same rank in the same thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.prediction.answer import RankWait


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
