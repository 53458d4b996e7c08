"""Explaining a replay: parts of the time, critical path, waits, and how it is known.

Provenance is that of the critical path: what the answer would change with.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.embedding import price_embeddings
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.history import History, Occurrence
from perfmodel.engine.layout import Int64s
from perfmodel.engine.reasons import PathStep, Window, break_down, critical_path
from perfmodel.graph.job import JobGraph, RankMemory
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Gemm,
    GroupedGemm,
    HostPart,
    HostWork,
    MemoryBound,
    Unmeasured,
    work_of,
)
from perfmodel.prediction.answer import (
    CriticalPath,
    Explanation,
    PathShare,
    RankClass,
    RankWait,
)
from perfmodel.prediction.time_parts import (
    from_breakdown,
    mean_parts,
    order_shares,
    order_waits,
    shrink_to_iteration,
    sum_waits,
)
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

_NUMBER = re.compile(r"\b\d+\b")


@lru_cache(maxsize=4096)
def merge_numbers(label: str) -> str:
    """*label* with every whole number in it replaced by a star."""
    return _NUMBER.sub("*", label)


_WORDS: dict[type[object], str] = {
    Gemm: "matrix multiplies",
    GroupedGemm: "matrix multiplies of experts",
    Convolution: "convolutions",
    Attention: "attention",
    MemoryBound: "memory-bound kernels",
    Unmeasured: "kernels by physics alone",
    EmbeddingOp: "embedding lookups and updates",
    Copy: "copies",
}


def name_kind(job: JobGraph, rank: int, task: int) -> str:
    """The kind of *task* of *rank*: by its work, or by its lane if the work is unknown."""
    work = work_of(job.op_of(rank, task))
    if isinstance(work, Communication):
        return work.collective.kind.name.lower().replace("_", "-")
    if type(work) in _WORDS:
        return _WORDS[type(work)]
    if isinstance(work, HostWork) and work.part is HostPart.WAIT:
        return BLOCKING
    program = job.program_of(rank)
    lane = program.lanes[int(program.lane_start.searchsorted(task, side="right")) - 1]
    return f"{lane.kind.value} work"


BLOCKING = "blocking calls, after what they waited for"
"""Host calls that wait: what they waited for is on the path instead."""
LAG = "launch latency and gaps"
NAMED_RANKS, NAMED_TABLES = 8, 3
"""What the path spends between tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedReplay:
    """The replay that an explanation rests on: one *iteration* of a folded job, and its *window*.

    Equal ranks are folded: rank r of the job here represents the ranks `class_ranks[r]`.
    """

    history: History
    iteration: int
    window: Window
    class_ranks: tuple[tuple[int, ...], ...]
    priced: PricedJob | None = None

    def provenance_of(self, rank: int, task: int) -> Provenance | None:
        """How the duration of *task* of *rank* is known, where prices were kept."""
        if self.priced is None:
            return None
        row = self.priced.durations.row_of(self.priced.job, rank, task)
        return Provenance(int(self.priced.provenance[row]))

    @property
    def job(self) -> JobGraph:
        """The folded job."""
        return self.history.job

    def starts_ns(self, rank: int) -> Int64s:
        """When the tasks of *rank* started."""
        return self.history.start_ns(self.iteration, rank)

    def ends_ns(self, rank: int) -> Int64s:
        """When the tasks of *rank* ended."""
        return self.history.end_ns(self.iteration, rank)

    def waits_ns(self, rank: int) -> Int64s:
        """How long the tasks of *rank* waited for other ranks."""
        return self.starts_ns(rank) - self.history.ready_ns(self.iteration, rank)

    def last_member(self, rank: int, task: int) -> Occurrence:
        """The member that the rendezvous of *task* waited for."""
        return self.history.last_member(Occurrence(self.iteration, rank, task))


def explain(
    evidence: ExplainedReplay,
    *,
    priced: PricedJob,
    memory_of_rank: Sequence[RankMemory],
    iteration_ns: int,
) -> Explanation:
    """Why an iteration takes *iteration_ns*, from the replay in *evidence*.

    *priced* is the folded job that was replayed; *memory_of_rank* is by rank of the whole job,
    empty if unknown. A window of several steps is scaled to one: the path adds up to the
    iteration, and waits shrink as the breakdown does.
    """
    classes = _rank_classes(evidence, memory_of_rank, iteration_ns)
    steps = find_path(evidence)
    of_window = Explanation(
        time=mean_parts(classes),
        rank_classes=classes,
        critical_path=_sum_up(evidence, steps),
        waits=_waits(evidence),
        provenance_ratio=provenance_of_path(priced, steps),
    )
    window_ns = evidence.window.to_ns - evidence.window.from_ns
    return shrink_to_iteration(of_window, iteration_ns=iteration_ns, window_ns=window_ns)


def find_path(evidence: ExplainedReplay) -> list[PathStep]:
    """The critical path of the last iteration of *evidence*, earliest first."""
    return critical_path(evidence.history, from_ns=path_start_ns(evidence))


def path_start_ns(evidence: ExplainedReplay) -> int:
    """The path is walked over the last iteration, as long as the window."""
    ends_ns = evidence.history.replay.iteration_end_ns[:, 0]
    return int(ends_ns[-2]) if len(ends_ns) > 1 else evidence.window.from_ns


def _rank_classes(
    evidence: ExplainedReplay, memory_of_rank: Sequence[RankMemory], iteration_ns: int
) -> tuple[RankClass, ...]:
    breakdowns = evidence.history.by_rank(break_down, evidence.window)
    return tuple(
        RankClass(
            ranks=ranks,
            time=from_breakdown(breakdown, total_ns=iteration_ns),
            memory=fullest(memory_of_rank, ranks),
        )
        for breakdown, ranks in zip(breakdowns, evidence.class_ranks, strict=True)
    )


def fullest(memory_of_rank: Sequence[RankMemory], ranks: Sequence[int]) -> RankMemory:
    """The largest memory of *ranks*; empty if unknown."""
    known = [memory_of_rank[rank] for rank in ranks] if memory_of_rank else [RankMemory(())]
    return max(known, key=lambda memory: memory.total_bytes)


def _sum_up(evidence: ExplainedReplay, steps: Sequence[PathStep]) -> CriticalPath:
    job = evidence.job
    lag_ns = sum(step.lag_ns for step in steps)
    # Tasks of a rank with one label and op on one lane are alike: a long path names few.
    alike: dict[tuple[int, ...], list[int]] = {}
    columns = {}
    for rank in {step.at.rank for step in steps}:
        program = job.program_of(rank)
        columns[rank] = program.label, program.op, program.task_lanes()
    for (_, rank, task), from_ns, to_ns, before_ns, _ in steps:
        label, op, lane = columns[rank]
        found = alike.setdefault(
            (rank, label.item(task), op.item(task), lane.item(task)), [task, 0, 0]
        )
        found[1] += to_ns - from_ns - before_ns
        found[2] += 1
    kinds = _shares(
        (name_kind(job, key[0], task), spent_ns, count)
        for key, (task, spent_ns, count) in alike.items()
    )
    if lag_ns:
        gaps = PathShare(LAG, lag_ns, sum(step.lag_ns > 0 for step in steps))
        kinds = order_shares((*kinds, gaps))
    changes = sum(before.at.rank != after.at.rank for before, after in pairwise(steps))
    labels = (
        (merge_numbers(job.labels[key[1]]), spent_ns, count)
        for key, (_, spent_ns, count) in alike.items()
    )
    return CriticalPath(by_kind=kinds, by_label=_shares(labels), rank_changes=changes)


def _shares(named: Iterable[tuple[str, int, int]]) -> tuple[PathShare, ...]:
    """Time and number of tasks by name, longest first, lags left out."""
    totals: dict[str, tuple[int, int]] = {}
    for name, spent_ns, tasks in named:
        duration_ns, count = totals.get(name, (0, 0))
        totals[name] = (duration_ns + spent_ns, count + tasks)
    return order_shares(
        PathShare(name, duration_ns, count)
        for name, (duration_ns, count) in totals.items()
        if duration_ns
    )


def _waits(evidence: ExplainedReplay) -> tuple[RankWait, ...]:
    """Waits by who waits, for whom, and in what; longest first."""
    totals: Counter[tuple[int, int, str]] = Counter()
    for waiting, found in enumerate(evidence.history.by_rank(sum_waits, evidence.window)):
        labels = evidence.job.program_of(waiting).label if found else ()
        for (task, late), waited_ns in found.items():
            key = (waiting, late, merge_numbers(evidence.job.labels[int(labels[task])]))
            totals[key] += waited_ns
    return order_waits(
        RankWait(
            waiting_ranks=evidence.class_ranks[waiting],
            awaited_rank=evidence.class_ranks[late][0],
            label=label,
            duration_ns=waited_ns,
        )
        for (waiting, late, label), waited_ns in totals.items()
    )


def name_tables(
    waits: Sequence[RankWait], evidence: ExplainedReplay, device: Device, stack: SoftwareStack
) -> tuple[RankWait, ...]:
    """*waits* with the tables that cost the awaited ranks most; only the worst ranks are named."""
    class_of = {rank: number for number, ranks in enumerate(evidence.class_ranks) for rank in ranks}
    sparse = [wait.awaited_rank for wait in waits if wait.label.startswith("embedding/")]
    found: dict[int, tuple[str, ...]] = {}
    for rank in list(dict.fromkeys(sparse))[:NAMED_RANKS]:
        program = evidence.job.program_of(class_of[rank])
        held = [
            replace(op, lookup=replace(op.lookup, tables=(table,)))
            for op in (evidence.job.ops[number] for number in np.unique(program.op).tolist())
            if isinstance(op, EmbeddingOp)
            for table in op.lookup.tables
        ]
        if not held:
            continue
        cost_ns: defaultdict[str, float] = defaultdict(float)
        for op, ns in zip(held, price_embeddings(held, device, stack).duration_ns, strict=True):
            cost_ns[op.lookup.tables[0].name] += float(ns)
        found[rank] = tuple(sorted(cost_ns, key=lambda name: (-cost_ns[name], name)))[:NAMED_TABLES]
    return tuple(
        replace(wait, tables=found.get(wait.awaited_rank, ()))
        if wait.label.startswith("embedding/")
        else wait
        for wait in waits
    )


def provenance_of_path(priced: PricedJob, steps: Sequence[PathStep]) -> dict[Provenance, float]:
    """Share of the critical path by how its durations are known, best first."""
    totals, of_rank = dict.fromkeys((kind.value for kind in Provenance), 0), {}
    for rank in {step.at.rank for step in steps}:
        of_rank[rank] = priced.provenance[priced.durations.rows_of(priced.job, rank)]
    for (_, rank, task), from_ns, to_ns, *_ in steps:
        totals[of_rank[rank].item(task)] += to_ns - from_ns
    whole_ns = max(sum(totals.values()), 1)
    return {Provenance(kind): ns / whole_ns for kind, ns in totals.items() if ns}
