"""Loop: a settled job, replayed until the time of its iteration is known.

A workload is replayed until its period shows. A recording is replayed once: its steps say how
long an iteration takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.costs.priced_job import Samples
from perfmodel.engine.history import History
from perfmodel.engine.reasons import Window
from perfmodel.engine.replay import Replay, Replayer, find_period, mean_of_second_half_ns
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import Interval
from perfmodel.prediction.explain import ExplainedReplay
from perfmodel.prediction.interference import FoldedCosts
from perfmodel.prediction.scenario import Mode

LOW, HIGH = 0.05, 0.95
FEW_MOMENTS, MAX_MOMENTS = 2**23, 2**25
"""Tasks x vectors that one replay of samples should, and may, hold: 64, 256 MiB per iteration."""
ENOUGH_VECTORS = 16
"""With so many vectors at once, more of them make a replay no faster."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A job *alone* and *settled*, and the *replay* that its times are read from.

    *window* is the span of *replay* that is explained. A recording has no *isolated_ns*.
    """

    alone: FoldedCosts
    settled: FoldedCosts
    replay: Replay
    window: Window
    period_ns: int
    isolated_ns: int | None
    span_ns: int
    periods_ns: tuple[int, ...]
    is_steady: bool = True

    def iteration_ns(self, mode: Mode) -> int:
        """The time of an iteration in *mode*."""
        if mode is Mode.PERIOD or self.isolated_ns is None:
            return self.period_ns
        return self.isolated_ns

    def evidence(self, mode: Mode, replay: Replayer) -> ExplainedReplay:
        """What is explained in *mode*: a single iteration is replayed again for it."""
        priced = self.settled.priced
        played, window = self.replay, self.window
        if mode is Mode.ISOLATED:
            played = replay(priced.job, priced.durations, 1)
            window = Window(0, int(played.iteration_end_ns[0, 0]))
        return ExplainedReplay(
            history=History(priced.job, priced.durations, played),
            iteration=max(played.iteration_count - 2, 0),
            window=window,
            class_ranks=self.settled.class_ranks,
            priced=None if self.isolated_ns is None else priced,
        )


def find_loop(replay: Replayer, alone: FoldedCosts, settled: FoldedCosts) -> Loop:
    """Replay *settled* until its period shows.

    The window is the last iteration but one. There the replay knows what ranks that are ahead did
    next; in the very last they would seem to idle.
    """
    priced = settled.priced
    steady = find_period(replay, priced.job, priced.durations)
    ends_ns = steady.replay.iteration_end_ns[:, 0].tolist()
    shown = max(len(ends_ns) - 2, 0)
    period_ns = int(steady.period_ns[0])
    return Loop(
        alone=alone,
        settled=settled,
        replay=steady.replay,
        window=Window(ends_ns[shown - 1] if shown else 0, ends_ns[shown]),
        period_ns=period_ns,
        # The first iteration of a loop starts at a barrier.
        isolated_ns=ends_ns[0],
        span_ns=ends_ns[0],
        periods_ns=(period_ns,),
        is_steady=steady.is_settled,
    )


def replay_samples(
    replay: Replayer, job: JobGraph, samples: DurationTable | Samples, *, iterations: int
) -> NDArray[np.float64]:
    """The iteration time of every vector of *samples*.

    Of several iterations it is the mean over the second half. A big job replays a few vectors at
    a time, to bound memory; the times do not depend on how many.
    """
    tasks = max(job.task_count, 1)
    at_once = max(FEW_MOMENTS // tasks, min(ENOUGH_VECTORS, MAX_MOMENTS // tasks), 1)
    times = []
    for first in range(0, samples.vector_count, at_once):
        stop = min(first + at_once, samples.vector_count)
        played = replay(job, samples.vectors(first, stop), iterations)
        times.append(mean_of_second_half_ns(played.iteration_end_ns))
    return np.concatenate(times)


def build_interval(times_ns: NDArray[np.float64], *, nominal_ns: int) -> Interval:
    """The middle 90 % of *times_ns*, widened to include *nominal_ns*; empty without times."""
    if not len(times_ns):
        return Interval(nominal_ns, nominal_ns)
    low_ns, high_ns = np.quantile(times_ns, [LOW, HIGH])
    return Interval(min(round(low_ns), nominal_ns), max(round(high_ns), nominal_ns))
