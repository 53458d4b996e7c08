"""Jobs: one iteration of a workload on a number of ranks, as a job graph, and its memory.

The family of the workload builds it. An iteration of many equal micro-batches is built twice, with
two smaller counts. Once the pipeline is full every further micro-batch adds the same time, so the
whole is extrapolated linearly from the two. Fields that a workload leaves open are filled in by the
stack that runs it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from embeddings.plan import ShardingPlan
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.job import JobGraph
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.families import family_of
from perfmodel.workloads.family import DEFAULT_MEMORY_BYTES, BuiltWorkload, JobRequest, Spec
from perfmodel.workloads.fields import SpecSection, Workload
from topologies import Device

AnySection = TypeVar("AnySection", bound=SpecSection)


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

    The other arguments are those of a `JobRequest`.
    """
    for name, value in (("rank_count", rank_count), ("ranks_per_host", ranks_per_host)):
        if value < 1:
            raise WorkloadError(f"job: {name} must be at least 1, got {value}.")
    request = JobRequest(
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        stack=stack,
        memory_bytes=memory_bytes,
        plan=plan,
        is_whole=is_whole,
    )
    return family_of(workload).build(workload, request)


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


def default_stack(workload: Workload) -> tuple[str, tuple[str, ...]]:
    """The stack of a *workload* whose question names none, and a sentence if it was chosen.

    A workload that names none itself gets one that public runs of such models back: without them an
    interval is more than twice as wide. It depends on the model alone: the stack comes before the
    layout, whether that is stated or found.
    """
    name = family_of(workload).default_stack(workload)
    if name == workload.stack or "stack" in workload.model_fields_set:
        return workload.stack, ()
    sentence = (
        f"You gave no stack: {name} is assumed, for which public runs of such models exist. "
        "Set yours with --stack."
    )
    return name, (sentence,)


def apply_stack_defaults(spec: Spec, stack: SoftwareStack, device: Device | None = None) -> Spec:
    """*spec* with the fields that it leaves open filled in from *stack*.

    These are: whether the host waits for every iteration, and what the family and the
    stack's file say of such runs on *device*.
    """
    if stack.family is not None and stack.family != spec.family:
        raise WorkloadError(
            f"{spec.name}: stack {stack.name!r} is for {stack.family} workloads and this is "
            f"a {spec.family} one. Use another stack."
        )
    changes: dict[str, Any] = {}
    if stack.has(FrameworkBehaviour.READS_LOSS):
        changes["sync_each_iteration"] = True
    family = family_of(spec)
    sections = family.stack_defaults(spec, stack)
    for one in family.list_defaults(spec, stack, device):
        section, _, field = one.setting.partition(".")
        sections.setdefault(section, {})[field] = one.value
    for name, values in sections.items():
        changes[name] = fill(getattr(spec, name), **values)
    return fill(spec, **changes)


def fill(section: AnySection, **values: Any) -> AnySection:
    """*section* with those of *values* that it does not state; sections in it are replaced."""
    open_values = {
        name: value
        for name, value in values.items()
        if isinstance(value, SpecSection) or name not in section.model_fields_set
    }
    return section.model_copy(update=open_values) if open_values else section
