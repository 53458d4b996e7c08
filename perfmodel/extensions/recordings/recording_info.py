"""RecordingInfo: what a recording knows of its own tasks, whatever is changed in its job.

Tasks are known by the number of their origin, which a change keeps. Questions are about the steady
job without the profiler; what was recorded is kept beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import format_duration
from perfmodel.engine.replay import Replayer
from perfmodel.engine.settle import Rules
from perfmodel.extensions.recordings.recorded_job import (
    RecordedJob,
    SelfReplay,
    Unprofiled,
    rank_parts,
)
from perfmodel.extensions.recordings.steady import (
    SteadyJob,
    build_steady,
    longest_span,
    origins_by_row,
    with_lengths,
)
from perfmodel.extensions.recordings.storage import load_recorded_job
from perfmodel.extensions.recordings.stream_holds import (
    HoldRule,
    KnownEffects,
    hold_ratios,
    recorded_rules,
)
from perfmodel.extensions.recordings.unprofiled import settle_steady
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import NO_ORIGIN, Int64s
from perfmodel.prediction.answer import Interval
from perfmodel.prediction.interference import FoldedCosts
from perfmodel.prediction.loops import Loop, build_interval, find_loop
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.recording import RecordedStep
from perfmodel.prediction.saved_jobs import NO_MEMORY


@dataclass(frozen=True, slots=True, eq=False)
class RecordingInfo:
    """What a recording says about tasks, by the number of their origin.

    *steady* is its job without the profiler, *profiled* the same with it. *window_starts* are the
    tasks where the recording of each rank begins. *score* says how well it replays itself.
    """

    can_be_held: NDArray[np.bool_]
    window_starts: Int64s
    steady: SteadyJob
    profiled: JobGraph
    effects: KnownEffects
    score: SelfReplay | None = None
    unprofiled: Unprofiled | None = None
    cycle: int = 1

    @property
    def steps(self) -> int:
        """Training steps in the steady job."""
        return self.steady.steps

    def rules(self, job: JobGraph) -> Rules:
        """What overlapping tasks of *job* cost each other: the same as before, if nothing moved."""
        if self._is_only_retimed(job):
            return Rules([self.effects], rounds=2, iterations=1)
        # In the first iteration of several no work of an earlier one is left.
        iterations = 2 if self.steady.repeats else 1
        return recorded_rules(job, self.hold_rule(job), iterations=iterations)

    def _is_only_retimed(self, job: JobGraph) -> bool:
        """Whether the tasks of *job* and what they wait for are those of the recording."""
        own = self.steady.graph.programs
        return len(own) == job.rank_count and all(
            np.array_equal(getattr(program, name), getattr(part, name))
            for (program, _), part in zip(rank_parts(job), own, strict=True)
            for name in ("origin", "slot", "dep_start", "dep_task", "dep_lag_ns")
        )

    def find_loop(self, replay: Replayer, alone: FoldedCosts, settled: FoldedCosts) -> Loop:
        """The loop of a *settled* job: the steps that repeat, or the span of what was recorded."""
        if self.steady.repeats:
            loop = find_loop(replay, alone, settled)
            period_ns = round(loop.period_ns / self.steady.steps)
            return replace(loop, period_ns=period_ns, isolated_ns=None, periods_ns=(period_ns,))
        assert settled.replay is not None
        priced = settled.priced
        job, end_ns = priced.job, settled.replay.last.end_ns[:, 0]
        lengths_ns = [priced.durations.of_rank(job, rank)[:, 0] for rank in range(job.rank_count)]
        start_ns = end_ns - np.concatenate(lengths_ns)
        window = longest_span(job, self.window_starts, start_ns, end_ns)
        return Loop(
            alone=alone,
            settled=settled,
            replay=settled.replay,
            window=window,
            period_ns=window.to_ns - window.from_ns,
            isolated_ns=None,
            span_ns=window.to_ns - window.from_ns,
            periods_ns=(window.to_ns - window.from_ns,),
        )

    def recorded(self, job: JobGraph) -> RecordedStep | None:
        """The step of *job* under the profiler; None for a changed job."""
        if job is not self.steady.graph or self.score is None or self.unprofiled is None:
            return None
        return RecordedStep(self.score.iteration.recorded_ns, self.unprofiled.basis)

    def changed_to(self, profiled: JobGraph) -> RecordingInfo:
        """The same after a change of its *profiled* job."""
        return replace(self, profiled=profiled)

    def interval(self, iteration_ns: int) -> Interval:
        """The doubt about the profiler and the spread of periods; in proportion if changed."""
        score, known = self.score, self.unprofiled
        if score is None or known is None:
            return Interval(iteration_ns, iteration_ns, is_known=False)
        low = known.low_ns / max(known.iteration_ns, 1)
        high = known.high_ns / max(known.iteration_ns, 1)
        recorded_ns = np.array([period.recorded_ns for period in score.periods], dtype=np.float64)
        if len(recorded_ns) >= 2:
            # Steps of a cycle differ by design: only the spread of whole cycles is doubt.
            cycle = min(score.cycle, len(recorded_ns))
            windows = np.lib.stride_tricks.sliding_window_view(recorded_ns, cycle).mean(axis=1)
            nominal_ns = score.iteration.recorded_ns
            spread = build_interval(windows, nominal_ns=nominal_ns)
            low = min(low, spread.low_ns / nominal_ns)
            high = max(high, spread.high_ns / nominal_ns)
        noise = min(score.noise_ratio, 1.0)
        return Interval(
            round(iteration_ns * low * (1 - noise)), round(iteration_ns * high * (1 + noise))
        )

    def sentences(self) -> list[str]:
        """What an answer about it assumes."""
        score, known = self.score, self.unprofiled
        if score is None or known is None:
            return []
        count = len(score.periods)
        said = [
            f"Recorded {format_duration(score.iteration.recorded_ns)} per step. {known.basis}",
            "The interval is the doubt about the profiler's cost"
            + (
                f" and the spread of the {count} recorded periods, from the 5th to the 95th "
                "percentile."
                if count > 1
                else "; the recording has fewer than two periods, so their spread is unknown."
            ),
        ]
        return (
            said
            if score.is_trusted
            else [*said, f"{score.distrust[:1].upper()}{score.distrust[1:]}."]
        )

    def hold_rule(self, job: JobGraph) -> HoldRule:
        """The rule for the tasks of *job*; new ones are not held."""
        origins = origins_by_row(job)
        is_known = origins != NO_ORIGIN
        can_be_held = is_known & self.can_be_held[np.where(is_known, origins, 0)]
        return HoldRule(hold_ratios(job), can_be_held)


def describe_recording(recorded: RecordedJob) -> RecordingInfo:
    """What *recorded* knows; its steady job has a program per rank and an origin per task."""
    steady = build_steady(recorded)
    settled = settle_steady(recorded, steady, recorded.excess_ns)
    return RecordingInfo(
        recorded.can_be_held,
        recorded.graph.rank_rows()[:-1],
        replace(steady, graph=with_lengths(settled.undelayed, settled.alone_ns)),
        steady.graph,
        KnownEffects(settled),
        recorded.score,
        recorded.unprofiled,
        recorded.report.cycle,
    )


def recording_question(recorded: RecordedJob, options: PredictOptions) -> Question:
    """The question about a recording, every task of it with an origin of its own."""
    recording = describe_recording(recorded)
    return Question(recording.steady.graph, options, recording=recording, assumptions=(NO_MEMORY,))


def open_recording(folder: Path, options: PredictOptions) -> Question:
    """The question about the recording in *folder*."""
    return recording_question(load_recorded_job(folder), options)
