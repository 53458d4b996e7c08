"""RankSetting: everything that a question about plans names, loaded, and the task for sharders."""

from __future__ import annotations

from dataclasses import dataclass

from embeddings.sharding_task import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.planning.question import RankQuestion
from perfmodel.prediction.question import load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import check_has_tables
from perfmodel.workloads.dlrm.job import sharding_task
from perfmodel.workloads.dlrm.memory import room_for_tables
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class RankSetting:
    """Everything a question names, loaded."""

    spec: DlrmSpec
    cluster: Cluster
    stack: SoftwareStack
    task: ShardingTask


def load_rank_setting(question: RankQuestion) -> RankSetting:
    """Load what *question* names."""
    loaded = load_setting(
        Scenario(
            topology=question.topology,
            workload=question.workload,
            overrides=question.overrides,
            hosts=question.hosts,
            ranks_per_host=question.ranks_per_host,
            stack=question.stack,
            tables=question.tables,
            indices=question.indices,
            calibration=question.calibration,
        )
    )
    spec, tables = check_has_tables(loaded.workload), loaded.tables
    task = build_task(spec, tables or spec.embedding.tables(), loaded.cluster, seed=question.seed)
    return RankSetting(spec, loaded.cluster, loaded.stack, task)


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
