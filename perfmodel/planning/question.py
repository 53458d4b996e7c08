"""RankQuestion: which plans to compare, for which tables, on which machine."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from embeddings.sharders import SHARDERS, ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError, ScenarioError
from perfmodel.planning.ranking import RankBy
from perfmodel.prediction.placing import PlacementFiles, load_tabled
from perfmodel.prediction.scenario import DEFAULT_SAMPLES, DEFAULT_WORKLOAD, Mode, take_as_meant
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.job import sharding_task
from perfmodel.workloads.dlrm.memory import room_for_tables
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.unstated import apply_stack_defaults
from topologies import Cluster, build_cluster, load_topology


@dataclass(frozen=True, slots=True)
class RankQuestion:
    """Plans to compare.

    *tables* is a file that replaces the workload's tables, *indices* one with
    real indices of them. *plan_files* are plan documents (embeddings). *enumerate_limit*
    plans of whole tables are tried if there are no more than that; a search
    gets *search_seconds*, and there are *searches* of them side by side. *samples*
    is how often costs are drawn, *batches* how many batches. *calibration* names files
    of constants that were measured on the machine.
    """

    topology: str
    workload: str = DEFAULT_WORKLOAD
    overrides: tuple[str, ...] = ()
    tables: str | None = None
    indices: str | None = None
    hosts: int = 1
    ranks_per_host: int | None = None
    stack: str | None = None
    mode: Mode = Mode.PERIOD
    sharders: tuple[str, ...] = tuple(SHARDERS)
    plan_files: tuple[str, ...] = ()
    enumerate_limit: int = 0
    search_seconds: float = 0.0
    searches: int = 1
    samples: int = DEFAULT_SAMPLES
    batches: int = 0
    rank_by: RankBy = RankBy.NOMINAL
    seed: int = 0
    calibration: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        take_as_meant(self, "sharders", "plan_files")
        unknown = [name for name in self.sharders if name not in SHARDERS]
        if unknown:
            near = get_close_matches(unknown[0], SHARDERS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ScenarioError(
                f"rank: sharders must be among {', '.join(SHARDERS)}, got {', '.join(unknown)}."
                + hint
            )
        if self.rank_by is not RankBy.NOMINAL and self.batches < 2:
            raise ScenarioError(
                f"rank: ordering by {self.rank_by.value} needs sampled batches. Add --batches 200."
            )
        if self.samples < 2 or self.searches < 1 or self.search_seconds < 0:
            raise ScenarioError(
                "rank: needs 2 draws of costs or more, 1 search or more, and no negative time."
            )
        if not self.sharders and not self.plan_files and not self.wants_more:
            raise ScenarioError("rank: nothing to compare. Name sharders, plans or a search.")

    @property
    def wants_more(self) -> bool:
        """Whether plans are to be made beyond those named."""
        return self.search_seconds > 0 or self.enumerate_limit > 0


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Everything a question names, loaded."""

    spec: DlrmSpec
    cluster: Cluster
    stack: SoftwareStack
    task: ShardingTask


def load_setting(question: RankQuestion) -> Setting:
    """Load what *question* names."""
    cluster = build_cluster(
        load_topology(question.topology, calibrations=question.calibration),
        hosts=question.hosts,
        ranks_per_host=question.ranks_per_host,
    )
    files = PlacementFiles(tables=question.tables, indices=question.indices)
    tabled = load_tabled(load_workload(question.workload, question.overrides), files)
    stack = load_stack(question.stack or tabled.spec.stack)
    # Key formats of the stack decide how much room the tables have, as they do in `predict`.
    spec = apply_stack_defaults(tabled.spec, stack)
    return Setting(
        spec=spec,
        cluster=cluster,
        stack=stack,
        task=build_task(spec, tabled.tables, cluster, seed=question.seed),
    )


def build_task(
    spec: DlrmSpec, tables: tuple[EmbeddingTable, ...], cluster: Cluster, *, seed: int = 0
) -> ShardingTask:
    """What a sharder is asked for *spec*: room is what is left beside everything else."""
    ranks = cluster.rank_count
    room = room_for_tables(spec, tables, rank_count=ranks, memory_bytes=cluster.device.memory_bytes)
    if room <= 0:
        raise PlanError(
            f"rank: {spec.name} leaves no memory for tables on {cluster.device.name}: "
            "the dense part and its buffers need it all. Take a smaller batch or more ranks."
        )
    return sharding_task(
        spec,
        tables,
        rank_count=ranks,
        room_bytes=room,
        ranks_per_host=cluster.ranks_per_host,
        seed=seed,
    )
