"""Question: a job, where it runs, and what is asked about it.

Whoever asks (a scenario, a saved job, a what-if, a plan, a measured run) builds
a question; `perfmodel.prediction.predict` answers it. What differs between
askers is said in `PredictOptions`, never in another pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from collectives import wiring_of
from embeddings.plan import ShardingPlan
from embeddings.plan_document import load_plan_document
from embeddings.table import EmbeddingTable
from embeddings.table_files import load_tables
from perfmodel.base.errors import PlanError, ScenarioError
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.job import JobGraph
from perfmodel.graph.memory import MemoryPart, RankMemory
from perfmodel.graph.ops import Fixed
from perfmodel.prediction.answer import MemoryFit, RankClass, TimeParts
from perfmodel.prediction.scenario import (
    DEFAULT_SAMPLES,
    Interference,
    JobScenario,
    Mode,
    Scenario,
)
from perfmodel.prediction.yardsticks import IterationWork, count_work
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import Execution, SoftwareStack
from perfmodel.workloads.catalog import (
    Workload,
    check_has_tables,
    load_workload,
    with_tables,
)
from perfmodel.workloads.dlrm.job import build_plan
from perfmodel.workloads.jobs import Continuation, build_workload
from perfmodel.workloads.unstated import apply_stack_defaults
from topologies import Cluster, build_cluster, load_topology

UNKNOWN_PEERS = (
    "Whether GPUs reach each other over PCIe without a stop in host memory is not stated: they are "
    "taken to, and the interval covers hosts where they do not."
)
if TYPE_CHECKING:
    from perfmodel.recordings.recorded_job import RecordedJob, SelfReplay
    from perfmodel.recordings.recording_info import RecordingInfo

NO_MEMORY = "Memory is not checked: the folder of a job does not say what its ranks need."
STATED_MEMORY = (
    "Memory is what the job says its ranks allocate at most, in blocks as torch rounds them; what "
    "the driver, communicators and fragmentation take comes on top."
)


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


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A job and everything that its prediction needs.

    Tasks are priced on *cluster* under *stack*; without them they state their durations. *known*
    are the prices of the job before a what-if: tasks that it did not touch keep their price. A
    *recording* knows more of its tasks. With a *continuation* the job is a smaller one, see
    `perfmodel.workloads.jobs`. *ends* are the job as fast and as slow as a change may have made
    it. *chosen* says what was decided because the scenario leaves it open.
    """

    job: JobGraph
    options: PredictOptions = field(default_factory=PredictOptions)
    cluster: Cluster | None = None
    stack: SoftwareStack | None = None
    memory_of_rank: Sequence[RankMemory] = ()
    assumptions: tuple[str, ...] = ()
    continuation: Continuation | None = None
    recording: RecordingInfo | None = None
    known: PricedJob | None = None
    work: IterationWork | None = None
    scenario: Scenario | JobScenario | None = None
    ends: tuple[JobGraph, JobGraph] | None = None
    chosen: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[JobGraph, ...]:
        """What is replayed: the job, and the larger one that the whole is extrapolated with."""
        more = self.continuation
        return (self.job,) if more is None else (self.job, more.larger)

    def extrapolate(self, small: int, large: int) -> int:
        """A quantity of the whole iteration, from those of the first and the last of *jobs*."""
        return small if self.continuation is None else self.continuation.reach(small, large)

    @property
    def score(self) -> SelfReplay | None:
        """How well a recording replays itself."""
        return None if self.recording is None else self.recording.score

    @property
    def memory_fit(self) -> MemoryFit | None:
        """The ranks that need most memory and what a GPU has; None where either is unknown."""
        if self.cluster is None or not self.memory_of_rank:
            return None
        peak_bytes = max(memory.total_bytes for memory in self.memory_of_rank)
        fullest = [
            rank for rank, one in enumerate(self.memory_of_rank) if one.total_bytes == peak_bytes
        ]
        memory = self.memory_of_rank[fullest[0]]
        entry = RankClass(tuple(fullest), TimeParts({}), memory)
        return MemoryFit(entry, self.cluster.device.memory_bytes)

    def changed_to(self, job: JobGraph) -> Question:
        """The same question about a changed *job*."""
        return replace(self, job=job, memory_of_rank=(), work=None, ends=None)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Everything that a question about a workload names, loaded once.

    What *workload* leaves open is filled in by *stack*. *plan* is the one that was given, and
    *tables* are those of a file, with what it knows of their indices.
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

    def __post_init__(self) -> None:
        filled = apply_stack_defaults(self.workload, self.stack)
        object.__setattr__(self, "workload", filled)


def load_setting(scenario: Scenario) -> Setting:
    """Load what *scenario* names."""
    if scenario.indices is not None and scenario.tables is None:
        raise PlanError("--indices describe the tables of a file; give --tables too.")
    topology = load_topology(scenario.topology, calibrations=scenario.calibration)
    cluster = build_cluster(topology, hosts=scenario.hosts, ranks_per_host=scenario.ranks_per_host)
    workload = load_workload(scenario.workload, scenario.overrides)
    tables: tuple[EmbeddingTable, ...] = ()
    if scenario.tables is not None:
        check_has_tables(workload)
        tables = load_tables(scenario.tables, indices=scenario.indices)
        workload = with_tables(workload, tables, file=scenario.tables)
    plan = None
    if scenario.plan is not None:
        plan = load_plan_document(
            scenario.plan,
            tables=tables or check_has_tables(workload).embedding.tables(),
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
        )
    stack = scenario.stack or workload.stack
    return Setting(
        workload,
        cluster,
        load_stack(stack),
        _options_of(scenario),
        tables=tables,
        plan=plan,
        scenario=replace(scenario, stack=stack),
    )


def build_question(setting: Setting) -> Question:
    """The question about the job of *setting*."""
    workload, cluster, plan = setting.workload, setting.cluster, setting.plan
    memory_bytes = cluster.device.memory_bytes
    if plan is None and setting.tables:
        plan = build_plan(
            check_has_tables(workload),
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
            memory_bytes=memory_bytes,
            tables=setting.tables,
        )
    built = build_workload(
        workload,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=memory_bytes,
        plan=plan,
        stack=setting.stack,
    )
    members = range(min(cluster.rank_count, cluster.ranks_per_host))
    is_assumed = wiring_of(members, cluster).is_peer_assumed
    return Question(
        job=built.job,
        options=setting.options,
        cluster=cluster,
        stack=setting.stack,
        memory_of_rank=built.memory_of_rank,
        assumptions=(*setting.assumptions, *((UNKNOWN_PEERS,) if is_assumed else ())),
        chosen=setting.chosen,
        continuation=built.continuation,
        work=count_work(workload, device=cluster.device),
        scenario=setting.scenario,
    )


def job_question(scenario: JobScenario, *, is_distributed: bool = False) -> Question:
    """The question about the job in the folder that *scenario* names.

    One that brings its durations along is moved to the machine that is named. What it
    would not heed is refused. Of a large one that *is_distributed* to workers, and not moved, only
    the outline is read here.
    """
    question = open_job(scenario, is_distributed=is_distributed and scenario.topology is None)
    if question.cluster is not None:
        return question
    _check_stated(scenario, _why_stated(question), {"--calibration": scenario.calibration})
    if scenario.topology is None:
        return question
    # Imported here: only a job that is moved needs what-ifs.
    from perfmodel.prediction.changing import move_question

    return move_question(question, scenario)


def replay_question(scenario: JobScenario) -> Question:
    """The same where the job is to be replayed as it is: no machine beside stated durations."""
    question = open_job(scenario)
    if question.cluster is None:
        given = {"--topology": scenario.topology, "--calibration": scenario.calibration}
        _check_stated(scenario, _why_stated(question), given)
    return question


def _why_stated(question: Question) -> str:
    return "was recorded" if question.recording is not None else "states all its durations"


MOST_NEAR_TASKS = 16_000_000
"""A larger job that states its durations is read by the workers that it is dealt to, not here."""


def _read_job(folder: Path, *, is_distributed: bool) -> JobGraph:
    from perfmodel.graph import storage

    if is_distributed:
        outline = storage.open_job(folder)
        is_stated = all(isinstance(op, Fixed) for op in outline.ops)
        if is_stated and outline.task_count > MOST_NEAR_TASKS:
            return outline
    return storage.load_job(folder)


def open_job(scenario: JobScenario, *, is_distributed: bool = False) -> Question:
    """The same for a what-if: a machine beside stated durations prices the changes alone."""
    # Readers of jobs and what changes them are imported where there is a job.
    from perfmodel.recordings.storage import is_recorded_job, load_recorded_job
    from perfmodel.whatif.compiling import Compile
    from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine, is_pinned

    folder, options = Path(scenario.job), _options_of(scenario)
    if is_recorded_job(folder):
        if scenario.mode is Mode.ISOLATED:
            raise ScenarioError(
                f"{scenario.job}: was recorded as a loop, so no isolated iteration is known. "
                "Ask without --isolated."
            )
        question = recording_question(load_recorded_job(folder), options)
        return replace(question, scenario=scenario)
    job = _read_job(folder, is_distributed=is_distributed)
    question = Question(
        job=job,
        options=options,
        memory_of_rank=_stated_memory(job),
        assumptions=(STATED_MEMORY if job.facts.peak_memory_bytes else NO_MEMORY,),
        scenario=scenario,
    )
    if is_pinned(job):
        return question
    if scenario.topology is None:
        raise ScenarioError(
            f"{scenario.job}: its tasks have shapes and no durations. Say on which machine they "
            "run, for example --topology dgx_h100."
        )
    stack = scenario.stack or job.facts.stack or DEFAULT_STACK
    machine = PricingMachine(scenario.topology, scenario.hosts, stack, scenario.calibration)
    cluster, loaded = machine.cluster(job.rank_count), machine.load_stack()
    if job.facts.stack and loaded.execution is Execution.COMPILED:
        # The job is eager code, whatever it says; one made for a compiled stack names none.
        job = Compile().apply(job)
    return replace(
        question,
        job=job,
        cluster=cluster,
        stack=loaded,
        scenario=replace(scenario, hosts=cluster.host_count, stack=stack),
    )


def recording_question(recorded: RecordedJob, options: PredictOptions) -> Question:
    """The question about a recording, every task of it with an origin of its own."""
    from perfmodel.recordings.recording_info import describe_recording

    recording = describe_recording(recorded)
    return Question(recording.recorded, options, recording=recording, assumptions=(NO_MEMORY,))


def _options_of(scenario: Scenario | JobScenario) -> PredictOptions:
    return PredictOptions(scenario.mode, scenario.interference, scenario.samples, scenario.seed)


def _stated_memory(job: JobGraph) -> list[RankMemory]:
    return [
        RankMemory((MemoryPart("allocated tensors", size),)) for size in job.facts.peak_memory_bytes
    ]


def _check_stated(scenario: JobScenario, why: str, given: Mapping[str, object]) -> None:
    """Refuse what is *given*, or to leave out interference, for a job with stated durations."""
    if scenario.interference is Interference.LEFT_OUT:
        raise ScenarioError(
            f"{scenario.job}: {why}, and its durations hold what overlaps cost, so "
            "--no-interference would change nothing. Ask without it."
        )
    for option, value in given.items():
        if value:
            raise ScenarioError(
                f"{scenario.job}: {why}, so {option} would change nothing. Ask without it, or for "
                "another machine with `perfmodel predict --job JOB --topology NAME`."
            )
