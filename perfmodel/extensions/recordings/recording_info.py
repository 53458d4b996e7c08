"""RecordingInfo: what a recording knows of its own tasks, whatever is changed in its job.

Tasks are known by the number of their origin, which a change keeps. Steps end with tasks that
the recording names. A change may remove those; then their launches, or tasks before them, mark
the end of the step instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ScenarioError
from perfmodel.engine.reasons import Window
from perfmodel.engine.settle import Rules
from perfmodel.extensions.recordings.hold_back import HoldRule, recorded_rules
from perfmodel.extensions.recordings.recorded_job import (
    RecordedJob,
    SelfReplay,
    cycle_period_ns,
    deps_of,
    rank_parts,
    with_programs,
)
from perfmodel.extensions.recordings.storage import load_recorded_job
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.graph.program import NO_ORIGIN, Int64s
from perfmodel.prediction.answer import Interval
from perfmodel.prediction.interference import FoldedCosts
from perfmodel.prediction.loops import Loop, build_interval
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.saved_jobs import NO_MEMORY

MOST_SUBSTITUTES = 500
"""Tasks before the end of a step that are tried instead of it."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordingInfo:
    """What a recording says about tasks, by the number of their origin.

    *window_starts* are the tasks where the recording of each rank begins; *step_ends* names the
    tasks that end each step of *recorded*, the unchanged job; *cycle* steps repeat together.
    *score* says how well it replays itself.
    """

    hold_ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]
    window_starts: Int64s
    step_ends: tuple[Int64s, ...]
    recorded: JobGraph
    score: SelfReplay | None = None
    cycle: int = 1

    def rules(self, job: JobGraph) -> Rules:
        """What overlapping tasks of *job* cost each other."""
        return recorded_rules(job, self.hold_rule(job))

    def find_loop(self, alone: FoldedCosts, settled: FoldedCosts) -> Loop:
        """The loop of a *settled* job, from the moments when its steps end."""
        assert settled.replay is not None
        priced = settled.priced
        job, end_ns = priced.job, settled.replay.last.end_ns[:, 0]
        lengths_ns = [priced.durations.of_rank(job, rank)[:, 0] for rank in range(job.rank_count)]
        start_ns = end_ns - np.concatenate(lengths_ns)
        moments_ns = self.step_moments_ns(job, start_ns, end_ns)
        periods_ns = np.diff(moments_ns)
        return Loop(
            alone=alone,
            settled=settled,
            replay=settled.replay,
            window=Window(moments_ns[0], moments_ns[-1]),
            period_ns=self.step_ns(periods_ns),
            isolated_ns=None,
            span_ns=self.span_ns(job, start_ns, end_ns),
            periods_ns=tuple(periods_ns.tolist()),
        )

    def interval(self, iteration_ns: int) -> Interval:
        """The spread of the recorded periods, wider by noise; in proportion for a changed job."""
        score = self.score
        if score is None or len(score.periods) < 2:
            return Interval(iteration_ns, iteration_ns, is_known=False)
        recorded_ns = np.array([period.recorded_ns for period in score.periods], dtype=np.float64)
        if score.cycle > 1 and len(recorded_ns) >= score.cycle:
            # Steps of a cycle differ by design: only the spread of whole cycles is doubt.
            windows = np.lib.stride_tricks.sliding_window_view(recorded_ns, score.cycle)
            recorded_ns = windows.mean(axis=1)
        ratio = iteration_ns / max(score.iteration.replayed_ns, 1)
        spread = build_interval(recorded_ns * ratio, nominal_ns=iteration_ns)
        noise = min(score.noise_ratio, 1.0)
        return Interval(round(spread.low_ns * (1 - noise)), round(spread.high_ns * (1 + noise)))

    def sentences(self) -> list[str]:
        """What an answer about it assumes."""
        score = self.score
        count = 0 if score is None else len(score.periods)
        interval = (
            f"The interval is the spread of the {count} recorded periods, from the 5th to the 95th "
            "percentile."
        )
        if count < 2:
            interval = (
                "The interval is unknown from one step: the recording has fewer than two periods, "
                "so it does not show their spread."
            )
        if score is None or score.is_trusted:
            return [interval]
        return [interval, f"{score.distrust[:1].upper()}{score.distrust[1:]}."]

    def hold_rule(self, job: JobGraph) -> HoldRule:
        """The rule for the tasks of *job*; new ones neither hold nor are held."""
        origins = _origins_by_row(job)
        is_known = origins != NO_ORIGIN
        known = np.where(is_known, origins, 0)
        return HoldRule(
            np.where(is_known, self.hold_ratio[known], 0.0), is_known & self.can_be_held[known]
        )

    def step_moments_ns(self, job: JobGraph, start_ns: Int64s, end_ns: Int64s) -> list[int]:
        """When each step of *job* ended; of a single step, when it began and ended.

        A single step is the span of the rank that takes longest from its first task to its last.
        """
        if len(self.step_ends) > 1:
            origins = _origins_by_row(job)
            rows = [np.flatnonzero(np.isin(origins, ends)) for ends in self._ends_in(origins)]
            return [int(end_ns[of_step].max()) for of_step in rows]
        spans = self._rank_spans_ns(job, start_ns, end_ns)
        first_ns, last_ns = max(spans, key=lambda span: span[1] - span[0])
        return [first_ns, last_ns]

    def step_ns(self, periods_ns: Int64s) -> int:
        """The time per step of a job whose steps take *periods_ns*."""
        return cycle_period_ns(periods_ns, self.cycle)

    def span_ns(self, job: JobGraph, start_ns: Int64s, end_ns: Int64s) -> int:
        """The longest span of a rank from its first task to its last."""
        return max(last - first for first, last in self._rank_spans_ns(job, start_ns, end_ns))

    def _rank_spans_ns(
        self, job: JobGraph, start_ns: Int64s, end_ns: Int64s
    ) -> list[tuple[int, int]]:
        """The first start and the last end of every rank that has a task."""
        is_task = ~np.isin(_origins_by_row(job), self.window_starts)
        spans = []
        for _, part in rank_parts(job):
            rows = part.start + np.flatnonzero(is_task[part])
            if len(rows):
                spans.append((int(start_ns[rows].min()), int(end_ns[rows].max())))
        return spans

    def _ends_in(self, origins: NDArray[np.int32]) -> list[Int64s]:
        """Tasks that end each step, among those that are left."""
        left = set(origins.tolist())
        if all(left.intersection(ends.tolist()) for ends in self.step_ends):
            return list(self.step_ends)
        chains = [
            [list_substitutes(self.recorded, int(task)) for task in ends] for ends in self.step_ends
        ]
        # The same task of every step and rank, so that the time between them is a period.
        for place in range(min(len(chain) for step in chains for chain in step)):
            found = [[chain[place] for chain in step] for step in chains]
            if all(left.issuperset(step) for step in found):
                return [np.array(step, dtype=np.int64) for step in found]
        raise ScenarioError(
            "the tasks that end a step and those before them were all removed, so the time of a "
            "step is unknown. Remove less."
        )


def describe_recording(recorded: RecordedJob) -> RecordingInfo:
    """What *recorded* knows; its job has a program per rank and an origin per task."""
    graph = recorded.graph
    apart = with_programs(graph, (program for program, _ in rank_parts(graph)))
    return RecordingInfo(
        recorded.hold_ratio,
        recorded.can_be_held,
        graph.rank_rows()[:-1],
        recorded.step_ends,
        with_own_origins(apart),
        recorded.score,
        recorded.report.cycle,
    )


def recording_question(recorded: RecordedJob, options: PredictOptions) -> Question:
    """The question about a recording, every task of it with an origin of its own."""
    recording = describe_recording(recorded)
    return Question(recording.recorded, options, recording=recording, assumptions=(NO_MEMORY,))


def open_recording(folder: Path, options: PredictOptions) -> Question:
    """The question about the recording in *folder*."""
    return recording_question(load_recorded_job(folder), options)


def list_substitutes(job: JobGraph, row: int) -> list[int]:
    """A task of *job* by its number among those of all ranks, its launch, and what came before it.

    Each rank has a program of its own, whose tasks are numbered in order.
    """
    firsts = job.rank_rows()
    rank = int(np.searchsorted(firsts, row, side="right")) - 1
    program, task = job.program_of(rank), row - int(firsts[rank])
    lanes = program.task_lanes()
    is_device = program.is_on_device()
    deps = program.dep_task[deps_of(program, task)]
    launches = [int(dep) for dep in deps if not is_device[dep]]
    last = max(launches, default=task)
    first = max(int(program.lane_start[lanes[last]]), last - MOST_SUBSTITUTES)
    return [row, *(int(firsts[rank]) + one for one in range(last, first - 1, -1))]


def _origins_by_row(job: JobGraph) -> NDArray[np.int32]:
    return np.concatenate([program.origin for program, _ in rank_parts(job)])
