"""Recording: what the path of a prediction asks of a job that was recorded.

The extension `recordings` makes them. A recording knows which tasks hold back others and where its
steps end, so it brings its own rules, loop and interval; everything else is the common path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from perfmodel.engine.replay import Replayer
    from perfmodel.engine.settle import Rules
    from perfmodel.graph.job import JobGraph
    from perfmodel.prediction.answer import Interval
    from perfmodel.prediction.interference import FoldedCosts
    from perfmodel.prediction.loops import Loop


class ReplayScore(Protocol):
    """How well a recording replays itself."""

    @property
    def error_pct(self) -> float:
        """Error of the replayed iteration, in percent of the recorded one."""

    @property
    def worst_error_pct(self) -> float:
        """The largest error of a period, or of a rank if there is no period."""

    @property
    def is_trusted(self) -> bool:
        """Whether what-ifs on the job are meaningful."""

    @property
    def distrust(self) -> str:
        """Why the job is not trusted, in a sentence; empty if it is."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the recording."""

    def document(self) -> dict[str, Any]:
        """The score as plain values for JSON."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """How long a step takes under the profiler, and what the time without it rests on."""

    iteration_ns: int
    basis: str = ""


class Recording(Protocol):
    """What a recording knows of its tasks, also after they were changed."""

    @property
    def score(self) -> ReplayScore | None:
        """How well it replays itself."""

    @property
    def profiled(self) -> JobGraph:
        """The same job as its hosts ran under the profiler."""

    @property
    def steps(self) -> int:
        """Training steps in the job that questions are about."""

    def changed_to(self, profiled: JobGraph) -> Recording:
        """The same recording after a change of its *profiled* job."""

    def rules(self, job: JobGraph) -> Rules:
        """What overlapping tasks of *job* cost each other."""

    def find_loop(self, replay: Replayer, alone: FoldedCosts, settled: FoldedCosts) -> Loop:
        """The loop of a *settled* job: the steps of the recording, again and again."""

    def recorded(self, job: JobGraph) -> RecordedStep | None:
        """The step of *job* under the profiler; None if *job* was changed."""

    def interval(self, iteration_ns: int) -> Interval:
        """The interval of an iteration of *iteration_ns*."""

    def sentences(self) -> list[str]:
        """What the answer assumes."""
