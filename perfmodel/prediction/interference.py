"""Interference: what depends on what runs at the same time, fed back into durations.

A replay shows which collectives of a rank overlap, and which kernels run beside
them. Collectives share links, kernels lose multiprocessors and bandwidth; the
job is replayed with the longer durations until nothing moves any more.

Leaves out: transfers between two ranks, which hold few multiprocessors and were
never recorded beside kernels, and what kernels cost collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.folding import Folded, fold
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Replay, Timeline
from perfmodel.engine.steady import Replayer
from perfmodel.graph.durations import OpDurations
from perfmodel.prediction.kernel_slowdown import (
    CommIntervals,
    Floats,
    KernelLanes,
    find_company,
    find_losses,
)
from perfmodel.prediction.overlap_board import FlatCosts, build_board

if TYPE_CHECKING:
    from perfmodel.recordings.recording_info import RecordingInfo


@dataclass(frozen=True, slots=True, eq=False)
class FoldedCosts:
    """A priced job with one rank per class; its rank r represents the ranks `class_ranks[r]`."""

    priced: PricedJob
    class_ranks: tuple[tuple[int, ...], ...]


def fold_costs(priced: PricedJob, *, is_folded: bool = True) -> FoldedCosts:
    """Fold the ranks of *priced* that are equal in all samples of their costs.

    Uncertainties are compared too, so folding is exact for the interval. Without *is_folded*
    every rank stays.
    """
    if not is_folded:
        return FoldedCosts(priced, tuple((rank,) for rank in range(priced.job.rank_count)))
    folded = fold(priced.job, replace(priced.durations, values_ns=_signatures(priced)))
    order = np.argsort(folded.class_of_rank, kind="stable")
    bounds = np.cumsum(folded.class_size)[:-1]
    return FoldedCosts(
        priced=_of_classes(priced, folded),
        class_ranks=tuple(tuple(ranks.tolist()) for ranks in np.split(order, bounds)),
    )


def _of_classes(priced: PricedJob, folded: Folded) -> PricedJob:
    """The prices of the ranks that represent their class."""
    if isinstance(priced.durations, OpDurations):
        durations = priced.durations.of_ranks(folded.representative)
        return replace(priced, job=folded.job, durations=durations)
    rows, offsets = _kept_rows(priced, folded.representative.tolist())
    return priced.take(rows, offsets, job=folded.job)


def _signatures(priced: PricedJob) -> Int64s:
    """Everything that decides a task's samples, and how it is known, as columns of integers."""
    return np.column_stack(
        [
            priced.float_ns.view(np.int64),
            priced.relative_sigma.view(np.int64),
            priced.family.astype(np.int64),
            priced.provenance.astype(np.int64),
            priced.link_use.view(np.int64),
        ]
    )


def _kept_rows(priced: PricedJob, ranks: list[int]) -> tuple[Int64s, Int64s]:
    """Rows of *ranks*, each stored once, and where those of every rank begin among them."""
    place_of_offset: dict[int, int] = {}
    kept: list[Int64s] = []
    offsets = np.empty(len(ranks), dtype=np.int64)
    total = 0
    for place, rank in enumerate(ranks):
        rows = priced.rows_of_rank(rank)
        if rows.start not in place_of_offset:
            place_of_offset[rows.start] = total
            kept.append(np.arange(rows.start, rows.stop, dtype=np.int64))
            total += rows.stop - rows.start
        offsets[place] = place_of_offset[rows.start]
    return np.concatenate(kept), offsets


def overlap_losses(starts_ns: Int64s, ends_ns: Int64s, link_use: Floats) -> Floats:
    """The share of each interval lost to the others, its worst link deciding.

    Where intervals ask a link for d > 1 times what it can carry, each that
    uses it all the time advances at 1/d.
    """
    if not len(starts_ns):
        return np.zeros(0)
    moments = np.unique(np.concatenate([starts_ns, ends_ns]))
    first, last = np.searchsorted(moments, starts_ns), np.searchsorted(moments, ends_ns)
    spans = np.diff(moments)
    shares = np.zeros(len(starts_ns))
    for link in range(link_use.shape[1]):
        change = np.zeros(len(moments))
        np.add.at(change, first, link_use[:, link])
        np.subtract.at(change, last, link_use[:, link])
        demand = np.cumsum(change)[:-1]
        idle = spans * (1 - 1 / np.maximum(demand, 1.0))
        reached = np.concatenate([[0.0], np.cumsum(idle)])
        lost_ns = (reached[last] - reached[first]) * np.minimum(link_use[:, link], 1.0)
        shares = np.maximum(shares, lost_ns / np.maximum(ends_ns - starts_ns, 1))
    # Sums of shares may miss 1 by the last bit.
    shares[shares < 1e-9] = 0.0
    return shares


MOST_ROUNDS = 8
STANDSTILL_RATIO = 1e-4
"""A round that moves the iteration by less than this is the last."""
MOST_LOSS_RATIO = 0.9
ITERATIONS = 3
"""Enough for an iteration that follows others, and for two that are kept side by side."""


@dataclass(frozen=True, slots=True, eq=False)
class SettledCosts:
    """*folded* with durations that count interference.

    *moved_ratio* is how much the last of *rounds* still moved the iteration. *replay* is the last
    one, where the rule needs no further replay.
    """

    folded: FoldedCosts
    rounds: int = 0
    moved_ratio: float = 0.0
    has_losses: bool = False
    replay: Replay | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the last round moved next to nothing."""
        return self.moved_ratio < STANDSTILL_RATIO


def leave_out(_replay: Replayer, folded: FoldedCosts) -> SettledCosts:
    """*folded* as if everything ran alone."""
    return SettledCosts(folded)


def hold_back(recording: RecordingInfo, replay: Replayer, folded: FoldedCosts) -> SettledCosts:
    """*folded* with the tasks of a recording holding back others, as they were recorded to."""
    from perfmodel.recordings.hold_back import replay_held  # only recordings need it

    priced = folded.priced
    rule = recording.hold_rule(priced.job)
    held = replay_held(priced.job, priced.durations, rule, replayer=replay)
    settled = replace(priced, job=held.graph, durations=held.durations)
    return SettledCosts(replace(folded, priced=settled), held.rounds, replay=held.replay)


@dataclass(frozen=True, slots=True, eq=False)
class _Losses:
    """What tasks lose to collectives of their own iteration and before, and of the next."""

    own_ns: Floats
    next_ns: Floats

    @property
    def total_ns(self) -> Floats:
        return self.own_ns + self.next_ns

    def half_way(self, other: _Losses) -> _Losses:
        return _Losses((self.own_ns + other.own_ns) / 2, (self.next_ns + other.next_ns) / 2)


def settle_interference(replay: Replayer, folded: FoldedCosts) -> SettledCosts:
    """Replay *folded* until the slow-down of what overlaps stands still."""
    if not (folded.priced.slowdowns.of or folded.priced.link_use.any()):
        return SettledCosts(folded)
    board = build_board(folded.priced)
    sharing = _sharing_ranks(board)
    if not len(board.calls.task) or not (len(board.lanes.first) or len(sharing)):
        return SettledCosts(folded)
    losses = _Losses(np.zeros(len(board.alone_ns)), np.zeros(len(board.alone_ns)))
    previous_ns, moved = 0, np.inf
    for rounds in range(1, MOST_ROUNDS + 1):
        durations = board.durations(losses.total_ns)
        answer = replay(board.job, durations, ITERATIONS)
        end_ns = int(answer.iteration_end_ns[-1, 0])
        before, moved = moved, abs(end_ns - previous_ns) / max(end_ns, 1)
        if rounds > 1 and moved < STANDSTILL_RATIO:
            break
        previous_ns = end_ns
        found = _find_losses(board, sharing, _Moments.of(answer, durations.values_ns[:, 0]), losses)
        if rounds == 1 and not found.total_ns.any():
            return SettledCosts(folded, rounds)
        # Half-way where moves do not get smaller, so that two that swap places come to rest.
        losses = found if moved <= before / 2 else losses.half_way(found)
    slowed = replace(folded, priced=board.price(losses.total_ns))
    return SettledCosts(slowed, rounds, moved, has_losses=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    """The last two iterations of a replay: when tasks ran and members were ready."""

    before: Timeline
    last: Timeline
    duration_ns: Int64s

    @classmethod
    def of(cls, answer: Replay, duration_ns: Int64s) -> _Moments:
        before, last = answer.timelines[-2:]
        return cls(before, last, duration_ns)

    def spells(self, board: FlatCosts, timeline: Timeline) -> CommIntervals:
        """The collectives of *timeline* that can have kernels beside them."""
        calls = board.calls
        chosen = calls.is_beside
        task = calls.task[chosen]
        end_ns = timeline.end_ns[task, 0]
        return CommIntervals(
            rank=calls.rank[chosen],
            ready_ns=timeline.member_ready_ns[calls.member[chosen], 0],
            start_ns=end_ns - self.duration_ns[task],
            end_ns=end_ns,
        )

    def walk(self, board: FlatCosts, timeline: Timeline, work_ns: Floats) -> KernelLanes:
        end_ns = np.ascontiguousarray(timeline.end_ns[:, 0])
        return KernelLanes(end_ns - self.duration_ns, end_ns, work_ns, board.family, board.speed)


def _find_losses(board: FlatCosts, sharing: Int64s, moments: _Moments, losses: _Losses) -> _Losses:
    own_ns, next_ns = np.zeros(len(board.alone_ns)), np.zeros(len(board.alone_ns))
    ranks = board.job.rank_count
    if len(board.lanes.first):
        last = moments.spells(board, moments.last)
        both = moments.spells(board, moments.before).joined(last)
        walk = moments.walk(board, moments.last, board.alone_ns + losses.next_ns)
        own_ns = find_losses(walk, board.lanes, find_company(both, ranks))
        early = _early(board, moments, last)
        if len(early.rank):
            walk = moments.walk(board, moments.before, board.alone_ns + own_ns)
            next_ns = find_losses(walk, board.lanes, find_company(early, ranks))
    if len(sharing):
        # A collective is on no lane that slows down, or holds its own time there.
        lost = np.minimum(_link_losses(board, sharing, moments), MOST_LOSS_RATIO)
        own_ns += board.alone_ns * lost / (1 - lost)
    return _Losses(own_ns, next_ns)


def _early(board: FlatCosts, moments: _Moments, spells: CommIntervals) -> CommIntervals:
    """Those of *spells* that begin while tasks of the iteration before still run."""
    has_tasks = np.diff(board.first) > 0
    last_ns = np.zeros(len(has_tasks), dtype=np.int64)
    last_ns[has_tasks] = np.maximum.reduceat(
        moments.before.end_ns[:, 0], board.first[:-1][has_tasks]
    )
    return spells.only(spells.ready_ns < last_ns[spells.rank])


def _sharing_ranks(board: FlatCosts) -> Int64s:
    """Ranks that communicate on more than one lane, where it is known what links carry."""
    if not board.priced.link_use.any():
        return np.zeros(0, dtype=np.int64)
    lanes = np.unique(np.column_stack([board.calls.rank, board.calls.lane]), axis=0)
    ranks, counts = np.unique(lanes[:, 0], return_counts=True)
    return ranks[counts > 1].astype(np.int64)


def _link_losses(board: FlatCosts, sharing: Int64s, moments: _Moments) -> Floats:
    """The share of its duration that each task loses on links, the same for all members."""
    calls = board.calls
    duration_ns = moments.duration_ns[calls.task]
    ends_ns = [timeline.end_ns[calls.task, 0] for timeline in (moments.before, moments.last)]
    use = board.priced.link_use[board.row[calls.task]]
    share = np.zeros(len(calls.task))
    edges = np.searchsorted(calls.rank, np.column_stack([sharing, sharing + 1]))
    for first, stop in edges.tolist():
        own = slice(first, stop)
        ends = np.concatenate([end_ns[own] for end_ns in ends_ns])
        starts = ends - np.tile(duration_ns[own], 2)
        both = overlap_losses(starts, ends, np.tile(use[own], (2, 1)))
        share[own] = both.reshape(2, -1).max(axis=0)
    met, place = np.unique(calls.rendezvous, return_inverse=True)
    worst = np.zeros(len(met))
    np.maximum.at(worst, place, share)
    lost = np.zeros(len(board.alone_ns))
    lost[calls.task] = worst[place]
    return lost
