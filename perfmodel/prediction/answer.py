"""Prediction: how long an iteration takes, and the parts that explain it.

Times are integer nanoseconds of the replayed clock. The parts of a
`TimeParts` add up to the iteration exactly, in every class of ranks and in
their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from perfmodel.base.cautions import NO_CAUTIONS, Cautions, Warned
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.shown import Shown
from perfmodel.graph.job import RankMemory, fit_probability
from perfmodel.prediction.scenario import JobScenario, Mode, Scenario
from perfmodel.prediction.yardsticks import IterationWork, Yardsticks

if TYPE_CHECKING:
    from perfmodel.prediction.explain import ExplainedReplay
    from perfmodel.prediction.recording import RecordedStep, ReplayScore
    from perfmodel.workloads.family import TakenDefault


class Part(Enum):
    """What the GPU of a rank does with a nanosecond of the iteration."""

    COMPUTE = "compute"
    EXPOSED_COMMUNICATION = "exposed_communication"
    EXPOSED_COPIES = "exposed_copies"
    WAITING_FOR_OTHER_RANKS = "waiting_for_other_ranks"
    HOST_BOUND_IDLE = "host_bound_idle"


@dataclass(frozen=True, slots=True)
class TimeParts:
    """An iteration cut into its parts."""

    of_part_ns: Mapping[Part, int]

    @property
    def total_ns(self) -> int:
        """The whole iteration."""
        return sum(self.of_part_ns.values())


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that do the same at the same time; *memory* is that of the fullest of them."""

    ranks: tuple[int, ...]
    time: TimeParts
    memory: RankMemory


@dataclass(frozen=True, slots=True)
class PathShare:
    """What tasks of one name contribute to the critical path."""

    name: str
    duration_ns: int
    task_count: int


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain of tasks that decides the iteration, summed up.

    *rank_changes* counts how often the chain crosses to another rank.
    """

    by_kind: tuple[PathShare, ...]
    by_label: tuple[PathShare, ...]
    rank_changes: int

    @property
    def length_ns(self) -> int:
        """All of the chain."""
        return sum(share.duration_ns for share in self.by_kind)


@dataclass(frozen=True, slots=True)
class RankWait:
    """Ranks of one class that wait for another rank in rendezvous of one label.

    *duration_ns* is what each of the waiting ranks loses in an iteration. *tables* are those that
    cost the awaited rank most, where it looks rows up before.
    """

    waiting_ranks: tuple[int, ...]
    awaited_rank: int
    label: str
    duration_ns: int
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """The 90 % interval of the iteration time, as far as the uncertainty of costs is known.

    A recording of one step says nothing about it: then *is_known* is False and both ends are the
    iteration.
    """

    low_ns: int
    high_ns: int
    is_known: bool = True

    @property
    def half_width_ns(self) -> float:
        """Half of its width."""
        return (self.high_ns - self.low_ns) / 2


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the iteration takes as long as it does."""

    time: TimeParts
    rank_classes: tuple[RankClass, ...]
    critical_path: CriticalPath
    waits: tuple[RankWait, ...]
    provenance_ratio: Mapping[Provenance, float]


@dataclass(frozen=True, slots=True)
class Facts:
    """What was predicted: names and sizes. *batch* counts samples of all ranks.

    What a saved job does not state is None.
    """

    job: str
    device: str | None
    device_memory_bytes: int | None
    stack: str | None
    batch: int | None
    rank_count: int
    task_count: int
    iterations_replayed: int
    work: IterationWork | None = None


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The ranks that need most memory, and what a GPU has."""

    fullest: RankClass
    capacity_bytes: int

    @property
    def peak_bytes(self) -> int:
        """What the fullest ranks need."""
        return self.fullest.memory.total_bytes

    @property
    def fits(self) -> bool:
        """Whether every rank has the memory it needs."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def probability(self) -> float:
        """How likely it is that every rank has it."""
        return fit_probability(self.peak_bytes, self.capacity_bytes)


@dataclass(frozen=True, slots=True)
class OpenValue:
    """A value of an open setting: its time, whether it fits, and how likely it is."""

    value: str
    iteration_ns: int
    fits: bool
    weight: float


@dataclass(frozen=True, slots=True)
class OpenSetting:
    """A setting that nobody stated and that moves the answer; *values* are the *chosen* one first.

    *state_with* is what to add to the command.
    """

    setting: str
    chosen: str
    values: tuple[OpenValue, ...]
    state_with: str


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What would narrow the interval: a `setting` to state, a `run` to report, `kernels` to time.

    *half_width_ns* is half of the interval that is expected then.
    """

    kind: str
    what: str
    half_width_ns: float


@dataclass(frozen=True, slots=True)
class InterferenceLoss:
    """What contention of overlapping kernels and collectives costs an iteration."""

    lost_ns: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Run:
    """Where the prediction was computed and how long that took; not part of the answer."""

    executor: str
    phase_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Reasons:
    """Why a prediction is what it is.

    *interference* is None where contention was not modelled or is part of what was recorded.
    """

    explanation: Explanation
    evidence: ExplainedReplay
    interference: InterferenceLoss | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Shown):
    """How long one iteration takes and, unless only times were asked for, why.

    *isolated_ns* is one iteration that starts at a barrier. A recording has none: *span_ns* is its
    time from the first task to the last. *recorded* is its step under the profiler. *drawn_ns* has
    the times under drawn costs that make the *interval*. The *score* of a recording says how well
    it replays itself. *scenario* is None where the question was not asked by one. *open_settings*
    moved the answer and were not stated; *defaults_taken* are what the framework configures where
    nothing is stated. *cautions* are what the gate found (`perfmodel.prediction.gate`).
    """

    mode: Mode = Mode.PERIOD
    period_ns: int
    isolated_ns: int | None
    interval: Interval
    assumptions: tuple[str, ...]
    facts: Facts
    run: Run
    span_ns: int = 0
    periods_ns: tuple[int, ...] = ()
    drawn_ns: tuple[float, ...] = ()
    score: ReplayScore | None = None
    recorded: RecordedStep | None = None
    scenario: Scenario | JobScenario | None = None
    reasons: Reasons | None = None
    open_settings: tuple[OpenSetting, ...] = ()
    narrowed_by: tuple[Narrowing, ...] = ()
    defaults_taken: tuple[TakenDefault, ...] = ()
    cautions: Cautions = NO_CAUTIONS

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """What breaks a rule of physics."""
        return self.cautions.warnings

    @property
    def iteration_ns(self) -> int:
        """The answer: the period, or one isolated iteration."""
        if self.mode is Mode.PERIOD or self.isolated_ns is None:
            return self.period_ns
        return self.isolated_ns

    @property
    def yardsticks(self) -> Yardsticks | None:
        """Throughput and utilisation; None where the work of an iteration is unknown."""
        if self.facts.work is None:
            return None
        return Yardsticks(self.facts.work, self.facts.rank_count, self.iteration_ns)

    @property
    def explanation(self) -> Explanation:
        """Why the iteration takes as long as it does."""
        return self._why().explanation

    @property
    def evidence(self) -> ExplainedReplay:
        """The replay that the explanation rests on."""
        return self._why().evidence

    @property
    def interference(self) -> InterferenceLoss | None:
        """What contention costs; None where it was not modelled, or only times were asked for."""
        return None if self.reasons is None else self.reasons.interference

    def _why(self) -> Reasons:
        if self.reasons is None:
            raise ScenarioError(
                f"{self.facts.job}: has no explanation, because only times were asked for. "
                "Ask with is_explained."
            )
        return self.reasons

    @property
    def bound(self) -> PathShare:
        """What decides: the kind of work that fills most of the critical path."""
        shares = self.explanation.critical_path.by_kind
        nothing = PathShare("nothing", 0, 0)
        return max(shares, key=lambda share: share.duration_ns, default=nothing)

    @property
    def bound_ratio(self) -> float:
        """The share of the critical path that the bound fills."""
        return self.bound.duration_ns / max(self.explanation.critical_path.length_ns, 1)

    @property
    def memory(self) -> MemoryFit | None:
        """What the fullest ranks need and what a GPU has; None where either is unknown."""
        classes, capacity_bytes = self.explanation.rank_classes, self.facts.device_memory_bytes
        fullest = max(classes, key=lambda entry: entry.memory.total_bytes)
        if capacity_bytes is None or not fullest.memory.parts:
            return None
        return MemoryFit(fullest, capacity_bytes)
