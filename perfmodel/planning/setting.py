"""Settings: everything that a question about sharding plans names, loaded."""

from __future__ import annotations

from dataclasses import dataclass

from embeddings.sharders import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.planning.question import RankQuestion
from perfmodel.prediction.placing import PlacementFiles, load_tabled
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.job import sharding_task
from perfmodel.workloads.dlrm.memory import room_for_tables
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.unstated import apply_stack_defaults
from topologies import Cluster, build_cluster, load_topology


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
