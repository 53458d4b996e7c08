"""Question: a job, where it runs, and how it is answered.

A scenario about a workload is loaded into a `Setting`, once, and becomes a question when its job
is built. Plans, layouts and measured runs are settings too; `saved_jobs` opens jobs in folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from collectives import wiring_of
from embeddings.plan import ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.job import JobGraph, RankMemory
from perfmodel.prediction.answer import MemoryFit, RankClass, TimeParts
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.scenario import (
    DEFAULT_SAMPLES,
    Interference,
    JobScenario,
    Mode,
    Scenario,
)
from perfmodel.prediction.yardsticks import IterationWork, count_work
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import COMMON_CPU, SoftwareStack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.families import family_of
from perfmodel.workloads.family import Extrapolation, TakenDefault
from perfmodel.workloads.fields import Workload
from perfmodel.workloads.jobs import apply_stack_defaults, build_workload, default_stack
from topologies import Cluster, build_cluster, cpu_speed, load_topology

UNKNOWN_PEERS = (
    "The machine does not state whether GPUs reach each other over PCIe without a copy in host "
    "memory: a copy is assumed, and the interval covers faster and slower hosts."
)
UNKNOWN_CPU = f"The CPU of the hosts is not known: they work as fast as with an {COMMON_CPU}."
if TYPE_CHECKING:
    from perfmodel.prediction.open_settings import OpenQuestion
    from perfmodel.prediction.recording import Recording, ReplayScore


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """How a question is answered.

    *samples* is how often uncertain costs are drawn for the interval, from *seed*; without any the
    interval is empty. Without *is_explained* only times are predicted.
    """

    mode: Mode = Mode.PERIOD
    interference: Interference = Interference.COUNTED
    samples: int = DEFAULT_SAMPLES
    seed: int = 0
    is_explained: bool = True

    @classmethod
    def of(cls, scenario: Scenario | JobScenario) -> PredictOptions:
        """The options of *scenario*."""
        return cls(scenario.mode, scenario.interference, scenario.samples, scenario.seed)


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The job as fast and as slow as a change may have made it, and why that is open."""

    fastest: JobGraph
    slowest: JobGraph
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A job and everything that its prediction needs.

    Tasks are priced on *cluster* under *stack*; without them they state their durations. *known*
    are the prices of the job before a what-if: tasks that it did not touch keep their price. A
    *recording* knows more of its tasks. With a *extrapolation* the job is a smaller one, see
    `perfmodel.workloads.jobs`. *ends* bound what a change may have made of the job. *chosen* says
    what was decided because the scenario leaves it open. *workload* is what the job was built of.
    *open_questions* are what else could have been, *defaults_taken* what the framework decides.
    """

    job: JobGraph
    options: PredictOptions = field(default_factory=PredictOptions)
    cluster: Cluster | None = None
    stack: SoftwareStack | None = None
    memory_of_rank: Sequence[RankMemory] = ()
    assumptions: tuple[str, ...] = ()
    extrapolation: Extrapolation | None = None
    recording: Recording | None = None
    known: PricedJob | None = None
    work: IterationWork | None = None
    scenario: Scenario | JobScenario | None = None
    ends: Ends | None = None
    chosen: tuple[str, ...] = ()
    workload: Workload | None = None
    open_questions: tuple[OpenQuestion, ...] = ()
    defaults_taken: tuple[TakenDefault, ...] = ()

    @property
    def jobs(self) -> tuple[JobGraph, ...]:
        """What is replayed: the job, and the larger one that the whole is extrapolated with."""
        more = self.extrapolation
        return (self.job,) if more is None else (self.job, more.larger)

    def extrapolate(self, small: int, large: int) -> int:
        """A quantity of the whole iteration, from those of the first and the last of *jobs*."""
        return small if self.extrapolation is None else self.extrapolation.extrapolate(small, large)

    @property
    def score(self) -> ReplayScore | None:
        """How well a recording replays itself."""
        return None if self.recording is None else self.recording.score

    @property
    def memory_fit(self) -> MemoryFit | None:
        """The ranks that need most memory and what a GPU has; None where either is unknown."""
        if self.cluster is None or not self.memory_of_rank:
            return None
        needs_bytes = [memory.total_bytes for memory in self.memory_of_rank]
        fullest = tuple(np.flatnonzero(np.equal(needs_bytes, max(needs_bytes))).tolist())
        entry = RankClass(fullest, TimeParts({}), self.memory_of_rank[fullest[0]])
        return MemoryFit(entry, self.cluster.device.memory_bytes)

    def changed_to(self, job: JobGraph) -> Question:
        """The same question about a changed *job*."""
        return replace(self, job=job, memory_of_rank=(), work=None, ends=None)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Everything that a question about a workload names, loaded once.

    *stack* is taken to the CPUs of the machine. What *workload* leaves open is filled in by it;
    *defaults_taken* lists those of such runs.
    *plan* is the one that was given, and *tables* are those of a file, with what it knows of their
    indices.
    """

    workload: Workload
    cluster: Cluster
    stack: SoftwareStack
    options: PredictOptions = field(default_factory=PredictOptions)
    tables: tuple[EmbeddingTable, ...] = ()
    plan: ShardingPlan | None = None
    scenario: Scenario | None = None
    assumptions: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    defaults_taken: tuple[TakenDefault, ...] = ()

    def __post_init__(self) -> None:
        device, topology = self.cluster.device, self.cluster.topology
        object.__setattr__(self, "stack", self.stack.on_cpu(topology.host_cpu))
        taken = family_of(self.workload).list_defaults(self.workload, self.stack, device)
        filled = apply_stack_defaults(self.workload, self.stack, device)
        object.__setattr__(self, "workload", filled)
        object.__setattr__(self, "defaults_taken", (*self.defaults_taken, *taken))


def load_setting(scenario: Scenario) -> Setting:
    """Load what *scenario* names."""
    if scenario.indices is not None and scenario.tables is None:
        raise PlanError("--indices describe the tables of a file; give --tables too.")
    topology = load_topology(
        scenario.topology, calibrations=scenario.calibration, faults=scenario.faults
    )
    cluster = build_cluster(topology, hosts=scenario.hosts, ranks_per_host=scenario.ranks_per_host)
    cluster.check_faults()
    workload = load_workload(
        scenario.workload,
        scenario.overrides,
        layout_from=scenario.layout_from,
        rank_count=cluster.rank_count,
    )
    tables: tuple[EmbeddingTable, ...] = ()
    if scenario.tables is not None:
        from embeddings.table_files import load_tables  # only files of tables need it

        family_of(workload).tables(workload)  # refuses models without
        tables = load_tables(scenario.tables, indices=scenario.indices)
        workload = family_of(workload).with_tables(workload, tables, file=scenario.tables)
    plan = None
    if scenario.plan is not None:
        from embeddings.plan_document import load_plan_document  # only files of plans need it

        plan = load_plan_document(
            scenario.plan,
            tables=tables or family_of(workload).tables(workload),
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
        )
    stack, chosen = (scenario.stack, ()) if scenario.stack else default_stack(workload)
    loaded = load_stack(stack)
    return Setting(
        workload,
        cluster,
        loaded.with_compiling() if workload.compiled else loaded,
        PredictOptions.of(scenario),
        tables=tables,
        plan=plan,
        scenario=replace(scenario, stack=stack, hosts=cluster.block_count),
        assumptions=workload.assumed,
        chosen=chosen,
    )


def build_question(setting: Setting, on_phase: OnPhase = ignore_phase) -> Question:
    """The question about the job of *setting*; what it leaves open is completed first."""
    from perfmodel.prediction.open_settings import close_settings  # it replays branches

    setting, open_questions = close_settings(_complete(setting, on_phase))
    workload, cluster = setting.workload, setting.cluster
    built = build_workload(
        workload,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        plan=setting.plan,
        stack=setting.stack,
    )
    members = range(min(cluster.rank_count, cluster.ranks_per_host))
    assumptions = setting.assumptions
    if wiring_of(members, cluster).is_peer_assumed:
        assumptions += (UNKNOWN_PEERS,)
    if setting.stack.host.cpu and cpu_speed(cluster.topology.host_cpu) is None:
        assumptions += (UNKNOWN_CPU,)
    return Question(
        job=built.job,
        options=setting.options,
        cluster=cluster,
        stack=setting.stack,
        memory_of_rank=built.memory_of_rank,
        assumptions=assumptions,
        chosen=setting.chosen,
        extrapolation=built.extrapolation,
        work=count_work(workload, device=cluster.device),
        scenario=setting.scenario,
        workload=workload,
        open_questions=open_questions,
        defaults_taken=setting.defaults_taken,
    )


def _complete(setting: Setting, on_phase: OnPhase) -> Setting:
    """*setting* with a layout and a plan, if its family has them and it states none."""
    family = family_of(setting.workload)
    # Choosing replays layouts and plans, so it imports this module.
    if family.has_layouts:
        from perfmodel.prediction.layouts.choosing import complete_layout

        setting = complete_layout(setting, on_phase=on_phase)
        if setting.cluster.topology.fleet:
            from perfmodel.prediction.fleets import split_by_speed

            setting = split_by_speed(setting)
    if family.has_tables:
        from perfmodel.prediction.plans.default_plan import complete_plan

        setting = complete_plan(setting)
    return setting
