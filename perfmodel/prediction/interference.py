"""Interference: equal ranks folded, and contention of what overlaps fed back into durations.

A replay shows which collectives of a rank overlap each other and its kernels. Collectives share
links, kernels lose multiprocessors and bandwidth. The job is replayed with the longer durations
until nothing moves any more. A recording has its own rule: kernels hold back others.

Leaves out: transfers between two ranks, which hold few multiprocessors and were never recorded
with kernels at the same time, and what kernels cost collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.folding import fold
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Replay, Replayer, Timeline
from perfmodel.graph.durations import OpDurations
from perfmodel.prediction.overlaps import (
    CommIntervals,
    FlatCosts,
    Floats,
    flatten_costs,
    share_rows,
    slow_kernels,
)

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
    # Everything that decides a task's samples, and how it is known, as columns of integers.
    signatures = np.column_stack(
        [
            priced.float_ns.view(np.int64),
            priced.relative_sigma.view(np.int64),
            priced.family.astype(np.int64),
            priced.provenance.astype(np.int64),
            priced.link_use.view(np.int64),
        ]
    )
    folded = fold(priced.job, replace(priced.durations, values_ns=signatures))
    order = np.argsort(folded.class_of_rank, kind="stable")
    bounds = np.cumsum(folded.class_size)[:-1]
    class_ranks = tuple(tuple(ranks.tolist()) for ranks in np.split(order, bounds))
    if isinstance(priced.durations, OpDurations):
        durations = priced.durations.of_ranks(folded.representative)
        return FoldedCosts(replace(priced, job=folded.job, durations=durations), class_ranks)
    blocks = [priced.rows_of_rank(rank) for rank in folded.representative.tolist()]
    rows, offsets = share_rows([block.start for block in blocks], blocks)
    return FoldedCosts(priced.take(rows, offsets, job=folded.job), class_ranks)


MOST_LOSS_RATIO = 0.9
MOST_ROUNDS = 8
STANDSTILL_RATIO = 1e-4
"""A round that moves the iteration by less than this is the last."""
ITERATIONS = 3
"""Enough for two iterations in a row that follow another one."""


@dataclass(frozen=True, slots=True, eq=False)
class SettledCosts:
    """*folded* with durations that include contention.

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
        """Whether the last round moved almost nothing."""
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


def settle_interference(replay: Replayer, folded: FoldedCosts) -> SettledCosts:
    """Replay *folded* until what overlaps slows down by as much as before."""
    priced = folded.priced
    if not (priced.slowdowns.of or priced.link_use.any()):
        return SettledCosts(folded)
    flat = flatten_costs(priced)
    if not flat.can_lose:
        return SettledCosts(folded)
    lost_ns = np.zeros((2, len(flat.alone_ns)))
    previous_ns, moved = 0, np.inf
    for rounds in range(1, MOST_ROUNDS + 1):
        durations = flat.durations(lost_ns.sum(axis=0))
        played = replay(flat.job, durations, ITERATIONS)
        end_ns = int(played.iteration_end_ns[-1, 0])
        before, moved = moved, abs(end_ns - previous_ns) / max(end_ns, 1)
        if rounds > 1 and moved < STANDSTILL_RATIO:
            break
        previous_ns = end_ns
        found_ns = _find_losses(flat, played, durations.values_ns[:, 0], lost_ns)
        if rounds == 1 and not found_ns.any():
            return SettledCosts(folded, rounds)
        # Half-way where moves do not shrink, so that two that swap places come to rest.
        lost_ns = found_ns if moved <= before / 2 else (lost_ns + found_ns) / 2
    slowed = replace(folded, priced=flat.price(lost_ns.sum(axis=0)))
    return SettledCosts(slowed, rounds, moved, has_losses=True)


def _find_losses(flat: FlatCosts, played: Replay, duration_ns: Int64s, lost_ns: Floats) -> Floats:
    """What tasks lose in the last two iterations of *played*, where *lost_ns* was assumed.

    The first row is lost to collectives of the same iteration and the one before, the second to
    those of the next iteration that begin early.
    """
    before, last = played.timelines[-2:]
    found_ns = np.zeros_like(lost_ns)
    if len(flat.lanes[0]):
        calls = _intervals(flat, last, duration_ns)
        found_ns[0] = slow_kernels(
            flat,
            last,
            duration_ns,
            calls=_intervals(flat, before, duration_ns).joined(calls),
            work_ns=flat.alone_ns + lost_ns[1],
        )
        has_tasks = np.diff(flat.first) > 0
        ends_ns = np.zeros(len(has_tasks), dtype=np.int64)
        ends_ns[has_tasks] = np.maximum.reduceat(before.end_ns[:, 0], flat.first[:-1][has_tasks])
        early = calls.only(calls.ready_ns < ends_ns[calls.rank])
        if len(early.rank):
            work_ns = flat.alone_ns + found_ns[0]
            found_ns[1] = slow_kernels(flat, before, duration_ns, calls=early, work_ns=work_ns)
    if len(flat.sharing):
        # A collective is on no lane that slows down, or holds its own time there.
        ratio = np.minimum(_link_losses(flat, played, duration_ns), MOST_LOSS_RATIO)
        found_ns[0] += flat.alone_ns * ratio / (1 - ratio)
    return found_ns


def _intervals(flat: FlatCosts, timeline: Timeline, duration_ns: Int64s) -> CommIntervals:
    """The collectives of *timeline* that slow kernels."""
    chosen = flat.calls.slows_kernels
    task = flat.calls.task[chosen]
    end_ns = timeline.end_ns[task, 0]
    return CommIntervals(
        rank=flat.calls.rank[chosen],
        ready_ns=timeline.member_ready_ns[flat.calls.member[chosen], 0],
        start_ns=end_ns - duration_ns[task],
        end_ns=end_ns,
    )


def _link_losses(flat: FlatCosts, played: Replay, duration_ns: Int64s) -> Floats:
    """The share of its duration that each task loses on links, the same for all members."""
    calls, sharing = flat.calls, flat.sharing
    lengths_ns = duration_ns[calls.task]
    ends_ns = [timeline.end_ns[calls.task, 0] for timeline in played.timelines[-2:]]
    use = flat.priced.link_use[flat.row[calls.task]]
    share = np.zeros(len(calls.task))
    for first, stop in np.searchsorted(calls.rank, np.column_stack([sharing, sharing + 1])):
        own = slice(first, stop)
        ends = np.concatenate([end_ns[own] for end_ns in ends_ns])
        starts = ends - np.tile(lengths_ns[own], 2)
        both = overlap_losses(starts, ends, np.tile(use[own], (2, 1)))
        share[own] = both.reshape(2, -1).max(axis=0)
    met, place = np.unique(calls.rendezvous, return_inverse=True)
    worst = np.zeros(len(met))
    np.maximum.at(worst, place, share)
    lost = np.zeros(len(flat.alone_ns))
    lost[calls.task] = worst[place]
    return lost


def overlap_losses(starts_ns: Int64s, ends_ns: Int64s, link_use: Floats) -> Floats:
    """The share of each interval lost to the others, its worst link deciding.

    Where intervals ask a link for d > 1 times what it can carry, each that uses it all the time
    advances at 1/d.
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
