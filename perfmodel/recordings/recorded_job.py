"""Recorded job: the graph of a recording, and what the recording says beside it.

Rows count the tasks of rank 0 in program order, then those of rank 1, and so
on, as a `Timeline` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import TraceError
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed

Int64s = NDArray[np.int64]


MAX_TRUSTED_ERROR_PCT = 10.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A recorded length and the replayed one."""

    name: str
    recorded_ns: int
    replayed_ns: int

    @property
    def error_pct(self) -> float:
        """How far the replay is off, in percent of the recording."""
        if not self.recorded_ns:
            return 0.0
        return 100.0 * (self.replayed_ns - self.recorded_ns) / self.recorded_ns


@dataclass(frozen=True, slots=True)
class SelfReplay:
    """How well a job replays itself."""

    periods: tuple[Compared, ...]
    ranks: tuple[Compared, ...]
    streams: tuple[Compared, ...]
    collective_start_median_error_ns: float
    unexplained_delay_ns: int
    unexplained_delay_ratio: float
    host_path_ratio: float
    rounds: int
    unsettled: int
    faults: tuple[str, ...] = ()

    @property
    def iteration(self) -> Compared:
        """The median period; the span of the slowest rank where there is no period."""
        if self.periods:
            return Compared(
                "iteration",
                round(float(np.median([period.recorded_ns for period in self.periods]))),
                round(float(np.median([period.replayed_ns for period in self.periods]))),
            )
        return Compared(
            "iteration",
            max(rank.recorded_ns for rank in self.ranks),
            max(rank.replayed_ns for rank in self.ranks),
        )

    @property
    def worst_error_pct(self) -> float:
        """The largest error of a period, or of a rank where there is no period."""
        return max(abs(part.error_pct) for part in self.periods or self.ranks)

    @property
    def is_trusted(self) -> bool:
        """Whether what-ifs on the job mean something."""
        return abs(self.iteration.error_pct) <= MAX_TRUSTED_ERROR_PCT and not self.faults

    @property
    def distrust(self) -> str:
        """Why the job is not trusted, in a sentence; empty where it is."""
        if self.is_trusted:
            return ""
        if abs(self.iteration.error_pct) > MAX_TRUSTED_ERROR_PCT:
            return (
                f"the recording replays itself with an error of {self.iteration.error_pct:.1f} %, "
                f"beyond the {MAX_TRUSTED_ERROR_PCT:g} % up to which answers from it mean something"
            )
        more = f", and {len(self.faults) - 1} more" if len(self.faults) > 1 else ""
        return f"the recording has faults: {self.faults[0]}{more}"


@dataclass(frozen=True, slots=True)
class RankReport:
    """What was found in the trace of one rank."""

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


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was found in all traces, and which recorded starts entered the graph."""

    ranks: tuple[RankReport, ...]
    rendezvous: int
    steps: int
    recorded_starts: dict[str, int]
    faults: tuple[str, ...] = ()
    missing: str = ""

    @property
    def grave_faults(self) -> tuple[str, ...]:
        """What makes answers from the job doubtful; that ranks are missing is said apart."""
        of_ranks = (f"rank {rank.rank}: {fault}" for rank in self.ranks for fault in rank.faults)
        return (*self.faults, *of_ranks)

    @property
    def all_faults(self) -> tuple[str, ...]:
        """Everything that is wrong with the recording."""
        return (*((self.missing,) if self.missing else ()), *self.grave_faults)


def report_from_words(words: dict[str, Any]) -> ImportReport:
    """The report that `dataclasses.asdict` made *words* of."""
    ranks = tuple(
        RankReport(**{**rank, "faults": tuple(rank["faults"])}) for rank in words["ranks"]
    )
    return ImportReport(**{**words, "ranks": ranks, "faults": tuple(words["faults"])})


def score_from_words(words: dict[str, Any]) -> SelfReplay:
    """The score that `dataclasses.asdict` made *words* of."""
    parts = {
        name: tuple(Compared(**part) for part in words[name])
        for name in ("periods", "ranks", "streams")
    }
    return SelfReplay(**{**words, **parts, "faults": tuple(words.get("faults", ()))})


@dataclass(frozen=True, slots=True, eq=False)
class RecordedJob:
    """A job graph made from traces.

    *hold_ratio* is the share of a task in which it holds back other streams;
    *can_be_held* says which tasks it holds back.
    *step_ends* has a row of tasks for every end of a step: the step ended when
    the last of them did. *score* is None until the job was replayed.
    """

    graph: JobGraph
    recorded_start_ns: Int64s
    recorded_end_ns: Int64s
    hold_ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]
    step_ends: tuple[Int64s, ...]
    report: ImportReport
    score: SelfReplay | None = None

    def __post_init__(self) -> None:
        for column in self._columns():
            if len(column) != self.graph.task_count:
                raise TraceError(
                    f"recorded job {self.graph.facts.name!r}: must have one recorded time a task, "
                    f"has {len(column)} for {self.graph.task_count} tasks. Import it again."
                )

    def _columns(self) -> tuple[NDArray[np.generic], ...]:
        times = (self.recorded_start_ns, self.recorded_end_ns)
        return (*times, self.hold_ratio, self.can_be_held)

    def durations(self) -> DurationTable:
        """The durations that the ops carry."""
        return recorded_durations(self.graph)


def recorded_durations(graph: JobGraph) -> DurationTable:
    """The durations that the ops of a recorded *graph* carry."""
    of_op = np.array(
        [op.duration_ns if isinstance(op, Fixed) else -1 for op in graph.ops], dtype=np.int64
    )
    rows = [of_op[program.op] for program in graph.programs]
    return build_durations(graph, [rows[int(number)] for number in graph.rank_program])
