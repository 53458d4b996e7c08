"""Jobs: from a workload and a number of ranks to a job graph and its memory.

An iteration of many equal micro-batches is built with two smaller numbers of
them, to be continued in a straight line: once the pipeline is full, each
further micro-batch adds the same time.
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
from perfmodel.workloads.catalog import Workload
from perfmodel.workloads.dlrm.job import build_dlrm_job, choose_plan
from perfmodel.workloads.dlrm.memory import dlrm_memory
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.transformer.job import build_shorter_jobs, build_transformer_job
from perfmodel.workloads.transformer.layout import DEFAULT_MEMORY_BYTES, ChosenLayout, choose_layout
from perfmodel.workloads.transformer.memory import memory_of_stages
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.unstated import apply_stack_defaults

_FILL = 2
_STRIDE = 2
"""Micro-batches beyond the stages of the smaller job, and from there to the larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """A *larger* job of the same iteration; *steps* of what it adds lead to the whole one."""

    larger: JobGraph
    steps: Fraction
    micro_batches: int

    def reach(self, small: int, large: int) -> int:
        """Where a quantity of the smaller and the larger job leads."""
        return round(small + self.steps * (large - small))


@dataclass(frozen=True, slots=True, eq=False)
class BuiltWorkload:
    """A job and the peak memory of its ranks; with a *continuation* the job is a smaller one."""

    job: JobGraph
    memory_of_rank: tuple[RankMemory, ...]
    continuation: Continuation | None = None


def build_workload(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
    stack: SoftwareStack | None = None,
    is_whole: bool = False,
) -> BuiltWorkload:
    """One iteration of *workload*, its plan or layout chosen once.

    *memory_bytes* is what a GPU has; a layout that the workload leaves open is
    chosen to fit in it. *plan* places the tables of a recommendation model.
    *stack* is what issues the iteration, as a rule the one that the workload names.
    *is_whole* builds every micro-batch, however many there are.
    """
    for name, value in (("rank_count", rank_count), ("ranks_per_host", ranks_per_host)):
        if value < 1:
            raise WorkloadError(f"job: {name} must be at least 1, got {value}.")
    stack = stack or load_stack(workload.stack)
    if isinstance(workload, DlrmSpec):
        workload = apply_stack_defaults(workload, stack)
        plan = choose_plan(
            workload,
            rank_count=rank_count,
            stack=stack,
            given=plan,
            ranks_per_host=ranks_per_host,
            memory_bytes=memory_bytes,
        )
        return BuiltWorkload(
            build_dlrm_job(
                workload,
                rank_count=rank_count,
                plan=plan,
                stack=stack,
                ranks_per_host=ranks_per_host,
            ),
            dlrm_memory(workload, rank_count=rank_count, plan=plan),
        )
    workload = apply_stack_defaults(workload, stack)
    chosen = choose_layout(
        workload,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        memory_bytes=memory_bytes,
        stack=stack,
    )
    memory = _memory(workload, chosen, stack)
    if is_whole:
        return BuiltWorkload(build_transformer_job(workload, chosen, stack=stack), memory)
    return _build_continued(workload, chosen, stack, memory)


def memory_by_rank(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
    stack: SoftwareStack | None = None,
) -> tuple[RankMemory, ...]:
    """Peak memory of the ranks that `build_workload` builds, without building a job."""
    stack = stack or load_stack(workload.stack)
    if isinstance(workload, DlrmSpec):
        workload = apply_stack_defaults(workload, stack)
        plan = choose_plan(
            workload,
            rank_count=rank_count,
            stack=stack,
            given=plan,
            ranks_per_host=ranks_per_host,
            memory_bytes=memory_bytes,
        )
        return dlrm_memory(workload, rank_count=rank_count, plan=plan)
    workload = apply_stack_defaults(workload, stack)
    chosen = choose_layout(
        workload,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        memory_bytes=memory_bytes,
        stack=stack,
    )
    return _memory(workload, chosen, stack)


def _memory(
    spec: TransformerSpec, chosen: ChosenLayout, stack: SoftwareStack
) -> tuple[RankMemory, ...]:
    layout = chosen.layout
    of_stage = memory_of_stages(spec, layout, stack=stack)
    return tuple(memory for memory in of_stage for _ in range(layout.ranks_of_stage))


def build_job(
    workload: Workload,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    plan: ShardingPlan | None = None,
    stack: SoftwareStack | None = None,
) -> JobGraph:
    """The whole job of one iteration of *workload*, as `build_workload` builds it."""
    return build_workload(
        workload,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        memory_bytes=memory_bytes,
        plan=plan,
        stack=stack,
        is_whole=True,
    ).job


def _build_continued(
    spec: TransformerSpec,
    chosen: ChosenLayout,
    stack: SoftwareStack,
    memory: tuple[RankMemory, ...],
) -> BuiltWorkload:
    layout = chosen.layout
    count, fewer, stride = layout.micro_batches, layout.pp + _FILL, _STRIDE
    if layout.interleaving > 1:
        # Micro-batches go round in groups as large as there are stages.
        fewer, stride = 2 * layout.pp, layout.pp
    more = fewer + stride
    if count <= fewer + more:
        # Two smaller jobs would be as much work as the whole one.
        return BuiltWorkload(build_transformer_job(spec, chosen, stack=stack), memory)
    smaller, larger = build_shorter_jobs(spec, chosen, stack=stack, micro_batches=(fewer, more))
    steps = Fraction(count - fewer, stride)
    return BuiltWorkload(smaller, memory, Continuation(larger, steps, count))
