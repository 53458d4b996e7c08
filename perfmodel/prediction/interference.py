"""Interference: what depends on what runs at the same time, fed back into durations.

A replay shows which collectives of a rank overlap. While the links they use are
asked for more than they can carry, each runs slower by that factor; the job is
replayed with the longer durations until nothing moves any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.history import History
from perfmodel.engine.layout import Int64s
from perfmodel.engine.steady import Replayer
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN

MOST_ROUNDS = 8
STANDSTILL_RATIO = 1e-4
"""A round that moves the iteration by less than this is the last."""
MOST_LOSS_RATIO = 0.9
ITERATIONS = 2
"""Enough to see collectives of one iteration meet those of the next."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """*priced* with durations that count interference.

    *moved_ratio* is how much the last of *rounds* still moved the iteration.
    """

    priced: PricedJob
    rounds: int
    moved_ratio: float


def settle_interference(replay: Replayer, priced: PricedJob) -> Settled:
    """Replay *priced* until the slow-down of overlapping collectives stands still."""
    if not any(_lane_count(priced.job, rank) > 1 for rank in range(priced.job.rank_count)):
        return Settled(priced, rounds=0, moved_ratio=0.0)
    factor = np.ones(len(priced.float_ns))
    previous_ns, moved = 0, 1.0
    for rounds in range(1, MOST_ROUNDS + 1):
        slowed = _slow_down(priced, factor)
        answer = replay(priced.job, slowed.durations, ITERATIONS)
        end_ns = int(answer.iteration_end_ns[-1, 0])
        moved = abs(end_ns - previous_ns) / max(end_ns, 1)
        if rounds > 1 and moved < STANDSTILL_RATIO:
            return Settled(slowed, rounds, moved)
        previous_ns = end_ns
        history = History(priced.job, slowed.durations, answer)
        # The share of its time that a collective loses to others: what is left
        # of each moment must add up to its time alone.
        lost = np.minimum(_lost_ratio(history, priced), MOST_LOSS_RATIO)
        factor = (factor + 1 / (1 - lost)) / 2 if rounds > 1 else 1 / (1 - lost)
        if not lost.any():
            return Settled(priced, rounds, 0.0)
    return Settled(_slow_down(priced, factor), MOST_ROUNDS, moved)


def _slow_down(priced: PricedJob, factor: Floats) -> PricedJob:
    float_ns = priced.float_ns * factor
    values_ns = np.rint(float_ns).astype(np.int64)[:, np.newaxis]
    durations = DurationTable(values_ns, priced.durations.rank_offset)
    return replace(priced, durations=durations, float_ns=float_ns)


def _lane_count(job: JobGraph, rank: int) -> int:
    """On how many lanes *rank* communicates."""
    program = job.program_of(rank)
    return len(np.unique(program.task_lanes()[program.slot != PLAIN]))


def _lost_ratio(history: History, priced: PricedJob) -> Floats:
    """The share of its duration that each row loses; members of a rendezvous lose alike."""
    job, iteration = history.job, history.iterations[-1]
    lost = np.zeros(len(priced.float_ns))
    worst: dict[tuple[int, int], float] = {}
    members = []
    for rank in range(job.rank_count):
        program = job.program_of(rank)
        tasks = np.flatnonzero(program.slot != PLAIN)
        rows = priced.rows_of_rank(rank).start + tasks
        starts = history.start_ns(iteration, rank)[tasks]
        ends = history.end_ns(iteration, rank)[tasks]
        shares = overlap_losses(starts, ends, priced.link_use[rows])
        groups = job.rank_group[rank, program.slot[tasks]]
        keys = list(zip(groups.tolist(), program.sequence[tasks].tolist(), strict=True))
        for key, share in zip(keys, shares.tolist(), strict=True):
            worst[key] = max(worst.get(key, 0.0), share)
        members.append((rows, keys))
    for rows, keys in members:
        lost[rows] = np.maximum(lost[rows], [worst[key] for key in keys])
    return lost


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
