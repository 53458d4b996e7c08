"""The work of a plan: loads of its ranks, what bounds it, and what another one spends more of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embeddings.plan import ShardingPlan
from perfmodel.base.units import format_duration, format_size
from perfmodel.prediction.answer import Explanation
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.workloads.dlrm.exchange import sent_by_members
from perfmodel.workloads.dlrm.job import exchanges_of
from perfmodel.workloads.dlrm.run import DlrmRun

LITTLE = 0.02
"""Differences below this share of the iteration are not reported."""
SHOWN_TABLES = 3


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that others wait for, the mean wait, and its most expensive tables."""

    rank: int
    waited_ns: float
    tables: tuple[str, ...]

    @property
    def is_awaited(self) -> bool:
        """Whether others wait for it long enough to tell."""
        return self.waited_ns >= LEAST_NS


LEAST_NS = 100
"""What is shorter nobody can measure."""


@dataclass(frozen=True, slots=True)
class PlanLoads:
    """Per rank: rows looked up and vector bytes sent per iteration, and memory."""

    lookups: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """Memory of the fullest rank."""
        return max(self.memory_bytes)

    @property
    def unevenness(self) -> float:
        """Lookups of the busiest rank over the mean."""
        return max(self.lookups) / max(sum(self.lookups) / len(self.lookups), 1e-9)


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


def find_awaited(explanation: Explanation, rank_count: int) -> tuple[float, ...]:
    """How long ranks wait for each of them in collectives, on average over all."""
    awaited = [0.0] * rank_count
    for wait in explanation.waits:
        awaited[wait.awaited_rank] += wait.duration_ns * len(wait.waiting_ranks) / rank_count
    return tuple(awaited)


def find_loads(run: DlrmRun, plan: ShardingPlan, memory_bytes: tuple[int, ...]) -> PlanLoads:
    """Lookups, bytes sent and memory of every rank in an iteration."""
    spec = run.spec
    copied = sum(table.pooling_factor for table in plan.copied_tables) * spec.batch
    held = plan.by_rank([table.pooling_factor for table in plan.pieces.tables])
    lookups = spec.batch * held + copied / plan.rank_count
    exchanges = exchanges_of(run, plan)
    sent = sent_by_members(exchanges.pooled, plan.rank_count)
    if exchanges.by_rows is not None:
        sent += sent_by_members(exchanges.by_rows.sums, plan.rank_count)
    per_host = plan.ranks_per_host or plan.rank_count
    for host, steps in enumerate(exchanges.of_hosts):
        members = slice(host * per_host, (host + 1) * per_host)
        sent[members] += sent_by_members(steps.inside, per_host)
        sent[members] += int(np.array(steps.across.byte_matrix, dtype=np.int64)[host].sum())
    return PlanLoads(tuple(lookups.tolist()), tuple(sent.tolist()), memory_bytes)


def find_straggler(
    evaluator: PlanEvaluator, plan: ShardingPlan, awaited_ns: Sequence[float]
) -> Straggler:
    """The rank that others wait for most, and its most expensive tables."""
    rank = int(np.argmax(awaited_ns))
    return Straggler(rank, awaited_ns[rank], dearest_tables(evaluator, plan, rank))


def dearest_tables(evaluator: PlanEvaluator, plan: ShardingPlan, rank: int) -> tuple[str, ...]:
    """The tables that cost *rank* most under *plan*."""
    shards = plan.shards_of_rank[rank]
    costs = evaluator.pieces_alone(plan.tables, shards).total_ns if shards else np.zeros(0)
    dearest = np.argsort(-costs, kind="stable")[:SHOWN_TABLES]
    return tuple(plan.tables[shards[int(place)].table].name for place in dearest)


def difference(first: PlanWork, second: PlanWork) -> float:
    """How unlike two plans are: what differs in parts and busiest lookups, over an iteration."""
    unlike_ns = sum(abs(second.parts_ns[name] - own) for name, own in first.parts_ns.items())
    unlike_ns += abs(second.lookup.amount - first.lookup.amount)
    return 2 * unlike_ns / (first.iteration_ns + second.iteration_ns)


def compare_works(first: PlanWork, second: PlanWork) -> tuple[str, ...]:
    """Sentences that say why *first* is faster than *second*, or is not."""
    apart_ns = second.iteration_ns - first.iteration_ns
    word = "longer" if apart_ns >= 0 else "less"
    takes = (
        f"{format_duration(abs(apart_ns))} {word} than"
        if abs(apart_ns) >= LEAST_NS
        else "as long as"
    )
    sentences = [
        f"{second.name} takes {takes} {first.name}: "
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
        apart = large.host_bytes - small.host_bytes
        of_host = f"{format_size(abs(apart))} {'more' if apart > 0 else 'less'}"
        sentences.append(
            f"{small.name}: no rank sends more than {format_size(round(small.sent.amount))} of "
            f"vectors; under {large.name} rank {large.sent.rank} sends "
            f"{format_size(round(large.sent.amount))}"
            + (f", and its busiest host {of_host}." if apart else ".")
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
