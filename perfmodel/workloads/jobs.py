"""Jobs: one iteration of a workload on a number of ranks, as a job graph, and its memory.

An iteration of many equal micro-batches is built twice, with two smaller counts. Once the
pipeline is full every further micro-batch adds the same time, so the whole is extrapolated
linearly from the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from embeddings.plan import ShardingPlan
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.memory import RankMemory
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import DEFAULT_MEMORY_BYTES, Workload
from perfmodel.workloads.dlrm.job import build_dlrm_job, choose_plan
from perfmodel.workloads.dlrm.memory import dlrm_memory
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.unstated import apply_stack_defaults

_FILL = 2
_STRIDE = 2
"""Micro-batches of the smaller job beyond its stages, and of the larger beyond the smaller."""


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """A *larger* job of the same iteration; the whole is *steps* times its difference further."""

    larger: JobGraph
    steps: Fraction
    micro_batches: int

    def reach(self, small: int, large: int) -> int:
        """A quantity of the whole iteration, from those of the smaller and the larger job."""
        return round(small + self.steps * (large - small))


@dataclass(frozen=True, slots=True, eq=False)
class BuiltWorkload:
    """A job and the peak memory of its ranks; with a *continuation* the job is the smaller one."""

    job: JobGraph
    memory_of_rank: tuple[RankMemory, ...]
    continuation: Continuation | None = None


def build_workload(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    stack: SoftwareStack,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
    is_whole: bool = False,
) -> BuiltWorkload:
    """One iteration of *workload*, whose defaults under *stack* are applied already.

    *memory_bytes* is what a GPU has: a layout that the workload leaves open is chosen to fit.
    *plan* places the tables of a recommendation model. *is_whole* builds every micro-batch.
    """
    for name, value in (("rank_count", rank_count), ("ranks_per_host", ranks_per_host)):
        if value < 1:
            raise WorkloadError(f"job: {name} must be at least 1, got {value}.")
    if isinstance(workload, DlrmSpec):
        plan = choose_plan(
            workload,
            rank_count=rank_count,
            stack=stack,
            given=plan,
            ranks_per_host=ranks_per_host,
            memory_bytes=memory_bytes,
        )
        return BuiltWorkload(
            build_dlrm_job(workload, plan=plan, stack=stack),
            dlrm_memory(workload, rank_count=rank_count, plan=plan),
        )
    # Imported here: a recommendation model needs none of it.
    from perfmodel.workloads.transformer.job import build_shorter_jobs, build_transformer_job
    from perfmodel.workloads.transformer.layout_choice import choose_layout
    from perfmodel.workloads.transformer.memory import memory_of_stages

    chosen = choose_layout(
        workload,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        memory_bytes=memory_bytes,
        stack=stack,
    )
    layout = chosen.layout
    of_stage = memory_of_stages(workload, layout, stack=stack)
    memory = tuple(one for one in of_stage for _ in range(layout.ranks_of_stage))
    count, fewer, stride = layout.micro_batches, layout.pp + _FILL, _STRIDE
    if layout.interleaving > 1:
        # Micro-batches take turns in groups as large as there are stages.
        fewer, stride = 2 * layout.pp, layout.pp
    more = fewer + stride
    if is_whole or count <= fewer + more:
        # Two smaller jobs would be as much work as the whole one.
        return BuiltWorkload(build_transformer_job(workload, chosen, stack=stack), memory)
    smaller, larger = build_shorter_jobs(workload, chosen, stack=stack, micro_batches=(fewer, more))
    steps = Fraction(count - fewer, stride)
    return BuiltWorkload(smaller, memory, Continuation(larger, steps, count))


def build_job(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
    stack: SoftwareStack | None = None,
) -> JobGraph:
    """The whole job of one iteration of *workload*; without a *stack*, under the one it names."""
    stack = stack or load_stack(workload.stack)
    return build_workload(
        apply_stack_defaults(workload, stack),
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        stack=stack,
        memory_bytes=memory_bytes,
        plan=plan,
        is_whole=True,
    ).job
