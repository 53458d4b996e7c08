"""Layout rankings: the answer of a search for layouts, their order, and why the first one wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from perfmodel.base.documents import load_yaml
from perfmodel.base.shown import Shown
from perfmodel.base.units import NS_PER_HOUR, format_duration
from perfmodel.planning.question import LayoutQuestion
from perfmodel.planning.ranking import beats_next
from perfmodel.prediction.answer import Interval, Prediction
from perfmodel.prediction.layouts.candidates import Candidate
from perfmodel.prediction.whole_run import HOURS_PER_DAY, TrainingRun, plan_run
from perfmodel.workloads.transformer.axes import AXES

TIE_PROBABILITY = 0.6
"""A layout that beats the next one less surely than this is tied with it."""
ORDER = Path(__file__).with_name("order.yaml")
"""How well the order of two layouts is known."""


@dataclass(frozen=True, slots=True, eq=False)
class RankedLayout:
    """A layout that was replayed; *beats_next* is how probably it is faster than the one below.

    *explained* is its prediction with an explanation, which *found* lacks, for some layouts.
    """

    candidate: Candidate
    bound_ns: int
    found: Prediction
    beats_next: float | None = None
    explained: Prediction | None = None

    @property
    def time_ns(self) -> int:
        """The iteration."""
        return self.found.iteration_ns

    @property
    def split(self) -> dict[str, int]:
        """How the ranks are split; what there always is, and the rest where it is more than one."""
        layout = self.candidate.chosen.layout
        return {
            axis.name: size
            for axis in AXES.values()
            if axis.is_told(size := getattr(layout, axis.name))
        }

    @property
    def name(self) -> str:
        """The split and the micro-batch, in words."""
        words = " ".join(f"{word}={size}" for word, size in self.split.items())
        return f"{words} micro_batch={self.candidate.chosen.layout.micro_batch}"

    @property
    def interval(self) -> Interval:
        """The range of the iteration time with 90 % probability."""
        return self.found.interval

    @property
    def is_tied_with_next(self) -> bool:
        """Whether the next layout could as well be the faster one."""
        return self.beats_next is not None and self.beats_next < TIE_PROBABILITY


@dataclass(frozen=True, slots=True)
class Tally:
    """How many layouts there were and what became of them; *untried* when the budget was spent.

    With *is_braked* the limit in seconds ended the search, so another run may end elsewhere.
    *space* has the values of every field that the layouts differ in.
    """

    considered: int
    too_large: int
    replayed: int
    pruned: int
    untried: int
    is_proven: bool
    is_braked: bool = False
    space: Mapping[str, Sequence[int | str | bool]] = field(default_factory=dict)


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

    def run_of(self, layout: RankedLayout) -> TrainingRun | None:
        """The whole run with *layout*, where one was asked for."""
        asked = self.question.whole
        if asked is None:
            return None
        return plan_run(
            layout.found,
            asked,
            price_per_gpu_hour=self.question.price_per_gpu_hour,
            machine=self.question.topology,
        )

    @property
    def is_in_time(self) -> bool:
        """Whether the whole run ends before the deadline, if there is one."""
        run, limit_ns = self.run_of(self.best), self.question.finish_in_ns
        if run is None or limit_ns is None:
            return True
        return run.expected_days * HOURS_PER_DAY * NS_PER_HOUR <= limit_ns


class Search(Shown, tuple[LayoutRanking, ...]):
    """A ranking for every number of hosts that was asked for."""

    __slots__ = ()

    @property
    def best(self) -> LayoutRanking:
        """The fastest; with a deadline the fewest GPUs that meet it, if any do."""
        return best_of(self)


def best_of(rankings: Sequence[LayoutRanking]) -> LayoutRanking:
    """The ranking of `Search.best`."""
    if rankings[0].question.finish_in_ns is not None:
        in_time = [one for one in rankings if one.is_in_time]
        if in_time:
            return min(in_time, key=lambda one: (one.rank_count, one.best.time_ns))
    return min(rankings, key=lambda one: one.best.time_ns)


def pareto(rankings: Sequence[LayoutRanking]) -> tuple[LayoutRanking, ...]:
    """The numbers of hosts that no smaller or equal number beats in time."""
    front: list[LayoutRanking] = []
    for one in sorted(rankings, key=lambda one: (one.rank_count, one.best.time_ns)):
        if not front or one.best.time_ns < front[-1].best.time_ns:
            front.append(one)
    assert all(a.best.time_ns > b.best.time_ns for a, b in pairwise(front))
    return tuple(front)


def count_layouts(
    considered: int,
    fitting: int,
    left_ns: Sequence[int],
    replayed: Sequence[RankedLayout],
    *,
    is_proven: bool,
) -> Tally:
    """Layouts whose bound, among *left_ns*, is not below the best time are pruned."""
    best_ns = min(one.time_ns for one in replayed)
    pruned = sum(bound_ns >= best_ns for bound_ns in left_ns)
    return Tally(
        considered=considered,
        too_large=considered - fitting,
        replayed=len(replayed),
        pruned=pruned,
        untried=fitting - len(replayed) - pruned,
        is_proven=is_proven and len(left_ns) + len(replayed) == fitting,
    )


def order_layouts(replayed: Sequence[RankedLayout]) -> list[RankedLayout]:
    """Fastest first; of equals the one with less memory."""
    order = sorted(replayed, key=lambda one: (one.time_ns, one.candidate.peak_bytes))
    sigma = float(load_yaml(ORDER)["pair_sigma"])
    drawn = [np.array(one.found.drawn_ns) for one in order]
    shares = beats_next(drawn, [sigma] * (len(order) - 1))
    return [replace(one, beats_next=share) for one, share in zip(order, shares, strict=True)]


def find_reasons(ranked: Sequence[RankedLayout]) -> tuple[str, ...]:
    """Why the first layout beats the next one with another split of the ranks."""
    first, *others = ranked
    for other in others:
        if first.explained is not None and other.explained is not None:
            return compare_layouts(first.explained, other.explained, other.name)
    return ()


def compare_layouts(first: Prediction, second: Prediction, name: str) -> tuple[str, ...]:
    """What the layout called *name*, which takes longer, has more of than the *first* one."""
    gap_ns = second.iteration_ns - first.iteration_ns
    sentences = []
    for part, second_ns in second.explanation.time.of_part_ns.items():
        change_ns = second_ns - first.explanation.time.of_part_ns[part]
        if abs(change_ns) > 0.02 * max(gap_ns, 1):
            word, sign = part.value.replace("_", " "), "-" if change_ns < 0 else "+"
            sentences.append(f"{word} {sign}{format_duration(abs(change_ns))}")
    if not sentences:
        return ()
    part, largest_ns = max(second.explanation.time.of_part_ns.items(), key=lambda item: item[1])
    share_pct = 100 * gap_ns / max(largest_ns, gap_ns)
    less = f"{share_pct:.0f}" if share_pct >= 1 else f"{share_pct:.1g}"
    word = part.value.replace("_", " ")
    return (
        f"Against {name} (+{format_duration(gap_ns)}): {', '.join(sentences)}.",
        f"It would win if its {word} ({format_duration(largest_ns)}) were {less} % less.",
    )
