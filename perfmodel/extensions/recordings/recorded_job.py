"""Recorded job: the graph of a recording, its recorded times, the import report and the score.

Rows count the tasks of rank 0 in program order, then those of rank 1, and so on, as in a
`Timeline`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from perfmodel.base.errors import TraceError
from perfmodel.base.units import NS_PER_MS
from perfmodel.graph.audit import MOST_STATED
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Int64s, Program

SCHEMA_VERSION = 1
"""Version of the JSON documents about recordings."""
MAX_TRUSTED_ERROR_PCT = 10.0
_ONLY_KNOWN_KEYS = ConfigDict(extra="forbid")
"""Documents with unknown keys are refused: another version wrote them."""


def with_programs(graph: JobGraph, programs: Iterable[Program]) -> JobGraph:
    """The same job with a program of its own for every rank."""
    ranks = np.arange(graph.rank_count, dtype=np.int32)
    return replace(graph, programs=tuple(programs), rank_program=ranks)


def rank_parts(graph: JobGraph) -> list[tuple[Program, slice]]:
    """The program of every rank, and its rows in columns of all tasks."""
    bounds = pairwise(graph.rank_rows().tolist())
    return [(graph.program_of(rank), slice(*rows)) for rank, rows in enumerate(bounds)]


@dataclass(frozen=True, slots=True)
class ReplayedLength:
    """A recorded length and the replayed one."""

    __pydantic_config__ = _ONLY_KNOWN_KEYS

    name: str
    recorded_ns: int
    replayed_ns: int

    @property
    def error_pct(self) -> float:
        """Error of the replay, in percent of the recording."""
        if not self.recorded_ns:
            return 0.0
        return 100.0 * (self.replayed_ns - self.recorded_ns) / self.recorded_ns

    def document(self) -> dict[str, Any]:
        """Both lengths as plain values for JSON."""
        return {
            "name": self.name,
            "recorded_ms": self.recorded_ns / NS_PER_MS,
            "replayed_ms": self.replayed_ns / NS_PER_MS,
            "error_pct": round(self.error_pct, 4),
        }


def cycle_period_ns(periods_ns: Any, cycle: int, *, chosen: bool = False) -> int:
    """The time per step: the median over whole cycles, counted from the last period back.

    Without a whole cycle it is the mean of what there is; 0 without periods. Of *chosen* periods,
    none of which is cold, it is the mean, as if they repeated.
    """
    periods = np.asarray(periods_ns, dtype=np.float64)
    if not len(periods):
        return 0
    whole = len(periods) // cycle * cycle
    if not whole or chosen:
        return round(float(periods.mean()))
    return round(float(np.median(periods[-whole:].reshape(-1, cycle).mean(axis=1))))


@dataclass(frozen=True, slots=True)
class SelfReplay:
    """How well a job replays itself.

    *cycle* periods repeat together. *noise_ratio* of the time of a rank is in doubt because stamps
    were noise.
    """

    __pydantic_config__ = _ONLY_KNOWN_KEYS

    periods: tuple[ReplayedLength, ...]
    ranks: tuple[ReplayedLength, ...]
    rounds: int
    unsettled: int
    faults: tuple[str, ...] = ()
    cycle: int = 1
    noise_ratio: float = 0.0

    @property
    def iteration(self) -> ReplayedLength:
        """The time per step, or the span of the slowest rank if there is no period."""
        recorded = [part.recorded_ns for part in self.periods or self.ranks]
        replayed = [part.replayed_ns for part in self.periods or self.ranks]
        if self.periods:
            lengths = (cycle_period_ns(of, self.cycle, chosen=True) for of in (recorded, replayed))
            return ReplayedLength("iteration", *lengths)
        return ReplayedLength("iteration", max(recorded), max(replayed))

    @property
    def error_pct(self) -> float:
        """Error of the replayed iteration, in percent of the recorded one."""
        return self.iteration.error_pct

    @property
    def worst_error_pct(self) -> float:
        """The largest error of a period, or of a rank if there is no period."""
        return max(abs(part.error_pct) for part in self.periods or self.ranks)

    @property
    def is_trusted(self) -> bool:
        """Whether what-ifs on the job are meaningful."""
        return abs(self.error_pct) <= MAX_TRUSTED_ERROR_PCT and not self.faults

    @property
    def distrust(self) -> str:
        """Why the job is not trusted, in a sentence; empty if it is."""
        if self.is_trusted:
            return ""
        if abs(self.error_pct) > MAX_TRUSTED_ERROR_PCT:
            return (
                f"the recording replays itself with an error of {self.error_pct:.1f} %, "
                f"above the limit of {MAX_TRUSTED_ERROR_PCT:g} % for trusted answers"
            )
        more = f", and {len(self.faults) - 1} more" if len(self.faults) > 1 else ""
        return f"the recording has faults: {self.faults[0]}{more}"

    def document(self) -> dict[str, Any]:
        """The score as plain values for JSON."""
        parts = {
            name: [part.document() for part in getattr(self, name)] for name in ("periods", "ranks")
        }
        return {
            "iteration_error_pct": round(self.error_pct, 4),
            "cycle": self.cycle,
            "clock_noise_pct": round(100 * self.noise_ratio, 4),
            "worst_error_pct": round(self.worst_error_pct, 4),
            "is_trusted": self.is_trusted,
            "reason": self.distrust,
            "faults": list(self.faults),
            "iteration": self.iteration.document(),
            **parts,
            "rounds": self.rounds,
            "unsettled": self.unsettled,
        }


@dataclass(frozen=True, slots=True)
class RankReport:
    """Counts and faults of the trace of one rank.

    The stamps of *mended* device tasks were noise and moved; together they may matter by
    *mended_ns*.
    """

    __pydantic_config__ = _ONLY_KNOWN_KEYS

    rank: int
    objects: int
    rows_kept: int
    device_tasks: int
    launches_linked: int
    launched_before: int
    launch_lost: int
    collectives: int
    collectives_matched: int
    stream_edges: int
    hidden_waits: int
    skew_ns: int
    offset_ns: int
    faults: tuple[str, ...] = ()
    mended: int = 0
    mended_ns: int = 0


@dataclass(frozen=True, slots=True)
class StepRow:
    """A *step* of a rank, named by its mark or by its place.

    Its host launched it in *host_ns* (from the step before, or between its marks), and its device
    had done it at *end_ns*. It was launched inside the window, and is warm, if all ranks were.
    """

    __pydantic_config__ = _ONLY_KNOWN_KEYS

    step: int
    rank: int
    host_ns: int
    end_ns: int
    kernels: int
    is_inside: bool
    is_warm: bool
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The reports of all traces, and which recorded starts entered the graph.

    *rule* names what the *steps* were found by, *cycle* how many of them repeat together, and
    *table* has all of them.
    """

    __pydantic_config__ = _ONLY_KNOWN_KEYS

    ranks: tuple[RankReport, ...]
    rendezvous: int
    steps: int
    recorded_starts: dict[str, int]
    faults: tuple[str, ...] = ()
    missing: str = ""
    rule: str = ""
    cycle: int = 1
    table: tuple[StepRow, ...] = ()

    @property
    def grave_faults(self) -> tuple[str, ...]:
        """Faults that make answers from the job doubtful; missing ranks are not among them."""
        of_ranks = (f"rank {rank.rank}: {fault}" for rank in self.ranks for fault in rank.faults)
        return (*self.faults, *of_ranks)

    @property
    def all_faults(self) -> tuple[str, ...]:
        """All faults of the recording."""
        return (*filter(None, [self.missing]), *self.grave_faults)


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """The time per step without the profiler, how far it may be off, and what that rests on."""

    __pydantic_config__ = _ONLY_KNOWN_KEYS

    iteration_ns: int
    low_ns: int
    high_ns: int
    basis: str

    def document(self) -> dict[str, Any]:
        """The time as plain values for JSON."""
        return {
            "iteration_time_ms": self.iteration_ns / NS_PER_MS,
            "interval_ms": [self.low_ns / NS_PER_MS, self.high_ns / NS_PER_MS],
            "basis": self.basis,
        }


@dataclass(frozen=True, slots=True, eq=False)
class RecordedJob:
    """A job graph made from traces.

    *can_be_held* says which tasks kernels of other streams can hold back. *step_ends* has the tasks
    of every step end: the step ended when the last of them did. *excess_ns* is how much less host
    tasks take without the profiler, and where they do not wait for room in the launch queue, and
    how much earlier ranks that were not recorded then arrive at device tasks.
    *score* and *unprofiled* are None until the job was replayed.
    """

    graph: JobGraph
    recorded_start_ns: Int64s
    recorded_end_ns: Int64s
    can_be_held: NDArray[np.bool_]
    step_ends: tuple[Int64s, ...]
    report: ImportReport
    excess_ns: Int64s
    score: SelfReplay | None = None
    unprofiled: Unprofiled | None = None

    def is_on_device(self) -> NDArray[np.bool_]:
        """Which tasks run on a device."""
        return np.concatenate([part.is_on_device() for part, _ in rank_parts(self.graph)])

    def step_moments_ns(self, end_ns: Int64s) -> list[int]:
        """When each step ended, if tasks end at *end_ns*."""
        return [int(end_ns[rows].max()) for rows in self.step_ends]

    def __post_init__(self) -> None:
        name, count = self.graph.facts.name, self.graph.task_count
        times = (self.recorded_start_ns, self.recorded_end_ns, self.excess_ns)
        for column, kinds in (*((one, "i") for one in times), (self.can_be_held, "b")):
            if len(column) != count:
                raise TraceError(
                    f"recorded job {name!r}: must have one recorded time per "
                    f"task, has {len(column)} for {count} tasks. Import it again."
                )
            if column.dtype.kind not in kinds:
                raise TraceError(
                    f"recorded job {name!r}: recorded times must be whole numbers and switches "
                    f"true or false, found {column.dtype}. Import it again."
                )
        rules = {
            "recorded times must be between -2^53 and 2^53 ns": all(
                (np.abs(one.astype(np.float64)) <= MOST_STATED).all() for one in times
            ),
            "no task may end before it starts": (times[1] >= times[0]).all(),
            "no task may take less than nothing without the profiler": (times[2] >= 0).all(),
            "waves must be numbers of 0 or more": all(
                0 <= op.waves < np.inf for op in self.graph.ops if isinstance(op, Fixed)
            ),
            f"the ends of steps must be tasks 0 to {count - 1}": all(
                len(rows) and rows.min() >= 0 and rows.max() < count for rows in self.step_ends
            ),
            f"the report must be about {self.graph.rank_count} ranks": (
                len(self.report.ranks) == self.graph.rank_count
            ),
            f"the score must be about {self.graph.rank_count} ranks": (
                self.score is None or len(self.score.ranks) == self.graph.rank_count
            ),
            "every rank must have a task": (self.graph.task_counts() > 1).all(),
        }
        for rule, is_kept in rules.items():
            if not is_kept:
                raise TraceError(f"recorded job {name!r}: {rule}. Import it again.")

    def durations(self) -> DurationTable:
        """The durations that the ops carry."""
        of_op = np.array(
            [op.duration_ns if isinstance(op, Fixed) else -1 for op in self.graph.ops],
            dtype=np.int64,
        )
        own = [of_op[program.op] for program, _ in rank_parts(self.graph)]
        return build_durations(self.graph, own)
