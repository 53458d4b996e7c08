"""Jobs: from a workload and a number of ranks to a job graph and its memory."""

from __future__ import annotations

from embeddings.plan import ShardingPlan
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.memory import RankMemory
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import Workload
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.dlrm.memory import dlrm_memory
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.transformer.job import build_transformer_job
from perfmodel.workloads.transformer.layout import DEFAULT_MEMORY_BYTES, ChosenLayout, choose_layout
from perfmodel.workloads.transformer.memory import stage_memory


def build_job(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
    stack: SoftwareStack | None = None,
) -> JobGraph:
    """One iteration of *workload*.

    *memory_bytes* is what a GPU has; a layout that the workload leaves open is
    chosen to fit in it. *plan* places the tables of a recommendation model.
    *stack* is what issues the iteration, as a rule the one that the workload names.
    """
    _check_ranks(rank_count, ranks_per_host)
    if isinstance(workload, DlrmSpec):
        return build_dlrm_job(
            workload,
            rank_count=rank_count,
            plan=plan,
            stack=stack,
            ranks_per_host=ranks_per_host,
        )
    chosen = _choose(workload, rank_count, ranks_per_host, memory_bytes)
    return build_transformer_job(workload, chosen, stack=stack)


def memory_by_rank(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
) -> tuple[RankMemory, ...]:
    """Peak memory of every rank of the job that `build_job` builds from the same arguments."""
    _check_ranks(rank_count, ranks_per_host)
    if isinstance(workload, DlrmSpec):
        return dlrm_memory(
            workload, rank_count=rank_count, plan=plan, ranks_per_host=ranks_per_host
        )
    layout = _choose(workload, rank_count, ranks_per_host, memory_bytes).layout
    of_stage = [stage_memory(workload, layout, stage=stage) for stage in range(layout.pp)]
    return tuple(memory for memory in of_stage for _ in range(layout.tp * layout.dp))


def _choose(
    workload: Workload, rank_count: int, ranks_per_host: int, memory_bytes: int
) -> ChosenLayout:
    assert not isinstance(workload, DlrmSpec)
    return choose_layout(
        workload,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        memory_bytes=memory_bytes,
    )


def _check_ranks(rank_count: int, ranks_per_host: int) -> None:
    for name, value in (("rank_count", rank_count), ("ranks_per_host", ranks_per_host)):
        if value < 1:
            raise WorkloadError(f"job: {name} must be at least 1, got {value}.")
