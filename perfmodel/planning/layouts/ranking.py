"""Layout rankings: the answer of a search for layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.base.shown import Shown
from perfmodel.base.units import NS_PER_HOUR
from perfmodel.planning.layouts.candidates import Candidate
from perfmodel.planning.question import LayoutQuestion
from perfmodel.prediction.answer import Interval, Prediction

TIE_PROBABILITY = 0.6
"""A layout that beats the next one less surely than this is tied with it."""


@dataclass(frozen=True, slots=True, eq=False)
class RankedLayout:
    """A layout that was replayed; *beats_next* is how probably it is faster than the one below."""

    candidate: Candidate
    bound_ns: int
    found: Prediction
    beats_next: float | None = None

    @property
    def time_ns(self) -> int:
        """The iteration."""
        return self.found.iteration_ns

    @property
    def split(self) -> dict[str, int]:
        """How the ranks are split; what there always is, and the rest where it is more than one."""
        layout = self.candidate.chosen.layout
        further = {"cp": layout.cp, "ep": layout.ep}
        return {
            "tp": layout.tp,
            "pp": layout.pp,
            **{word: size for word, size in further.items() if size > 1},
            "dp": layout.dp,
        }

    @property
    def name(self) -> str:
        """The split and the micro-batch, in words."""
        words = " ".join(f"{word}={size}" for word, size in self.split.items())
        return f"{words} micro_batch={self.candidate.chosen.layout.micro_batch}"

    @property
    def interval(self) -> Interval:
        """Where the iteration lies with 90 % probability."""
        return self.found.interval

    @property
    def is_tied_with_next(self) -> bool:
        """Whether the next layout could as well be the faster one."""
        return self.beats_next is not None and self.beats_next < TIE_PROBABILITY


@dataclass(frozen=True, slots=True)
class Tally:
    """How many layouts there were and what became of them; *untried* when time was up."""

    considered: int
    too_large: int
    replayed: int
    pruned: int
    untried: int
    is_proven: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayoutRanking(Shown):
    """The fastest layouts on one number of hosts, and why the first one wins."""

    question: LayoutQuestion
    hosts: int
    rank_count: int
    tokens: int
    memory_bytes: int
    layouts: tuple[RankedLayout, ...]
    tally: Tally
    reasons: tuple[str, ...] = ()

    @property
    def best(self) -> RankedLayout:
        """The fastest."""
        return self.layouts[0]

    def cost_per_million_tokens(self, layout: RankedLayout) -> float | None:
        """Money, where a price was given."""
        if self.question.price_per_gpu_hour is None:
            return None
        hours = layout.time_ns / NS_PER_HOUR * self.rank_count
        return hours * self.question.price_per_gpu_hour / self.tokens * 1e6


class Search(Shown, tuple[LayoutRanking, ...]):
    """A ranking for every number of hosts that was asked for."""

    __slots__ = ()

    @property
    def best(self) -> LayoutRanking:
        """The one with the shortest iteration."""
        return min(self, key=lambda one: one.best.time_ns)


def pareto(rankings: Sequence[LayoutRanking]) -> tuple[LayoutRanking, ...]:
    """The numbers of hosts that no smaller or equal number beats in time."""
    front: list[LayoutRanking] = []
    for one in sorted(rankings, key=lambda one: (one.rank_count, one.best.time_ns)):
        if not front or one.best.time_ns < front[-1].best.time_ns:
            front.append(one)
    assert all(a.best.time_ns > b.best.time_ns for a, b in pairwise(front))
    return tuple(front)
