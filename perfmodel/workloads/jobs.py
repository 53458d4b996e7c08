"""Jobs: one iteration of a workload on a number of ranks, as a job graph, and its memory.

An iteration of many equal micro-batches is built twice, with two smaller counts. Once the
pipeline is full every further micro-batch adds the same time, so the whole is extrapolated
linearly from the two. Fields that a workload leaves open are filled in by the stack that runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from embeddings.plan import ShardingPlan
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.job import JobGraph, RankMemory
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import DEFAULT_MEMORY_BYTES, Workload
from perfmodel.workloads.dlrm.job import build_dlrm_job, choose_plan
from perfmodel.workloads.dlrm.memory import dlrm_memory
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.fields import Section
from perfmodel.workloads.reduction import reduces_once
from perfmodel.workloads.transformer.axes import AXES
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Head

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.layout import Layout
    from topologies import Device

Spec = TypeVar("Spec", bound=DlrmSpec | TransformerSpec)
AnySection = TypeVar("AnySection", bound=Section)

ONE_BUCKET_BYTES = 2**40
"""A bucket that no model fills."""
_FILL = 2
_STRIDE = 2
"""Micro-batches of the smaller job beyond its stages, and of the larger beyond the smaller."""


MASKED_STACK, PARALLEL_STACK = "pytorch_hf", "nemo"
"""Stacks for models that name none: of masked tokens, with divided weights, and in any layout."""


@dataclass(frozen=True, slots=True, eq=False)
class Extrapolation:
    """A *larger* job of the same iteration; the whole is *steps* times its difference further."""

    larger: JobGraph
    steps: Fraction
    micro_batches: int

    def extrapolate(self, small: int, large: int) -> int:
        """A quantity of the whole iteration, from those of the smaller and the larger job."""
        return round(small + self.steps * (large - small))


@dataclass(frozen=True, slots=True, eq=False)
class BuiltWorkload:
    """A job and the peak memory of its ranks; with a *extrapolation* the job is the smaller one."""

    job: JobGraph
    memory_of_rank: tuple[RankMemory, ...]
    extrapolation: Extrapolation | None = None


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
    from perfmodel.workloads.transformer.memory import kept_of_stages, memory_of_stages
    from perfmodel.workloads.transformer.run import TransformerRun

    chosen = choose_layout(
        workload,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        memory_bytes=memory_bytes,
        stack=stack,
    )
    layout = chosen.layout
    run = TransformerRun(workload, layout, stack)
    of_stage = zip(memory_of_stages(run), kept_of_stages(run), strict=True)
    of_rank = [replace(one, kept=kept) for one, kept in of_stage]
    memory = tuple(one for one in of_rank for _ in range(layout.ranks_of_stage))
    count = layout.micro_batches
    fewer, stride = _shorter_counts(layout)
    more = fewer + stride
    if is_whole or count <= fewer + more:
        # Two smaller jobs would be as much work as the whole one.
        return BuiltWorkload(build_transformer_job(workload, chosen, stack=stack), memory)
    smaller, larger = build_shorter_jobs(workload, chosen, stack=stack, micro_batches=(fewer, more))
    steps = Fraction(count - fewer, stride)
    return BuiltWorkload(smaller, memory, Extrapolation(larger, steps, count))


def _shorter_counts(layout: Layout) -> tuple[int, int]:
    """Micro-batches of a job that is long enough to extrapolate from, and by how many more."""
    if layout.schedule != DEFAULT_SCHEDULE:
        # Deferred gradients of weights settle only after as many turns again.
        return (4 if layout.is_folded else 2) * layout.pp + _FILL, _STRIDE
    if layout.interleaving > 1:
        # Micro-batches take turns in groups as large as there are stages.
        return 2 * layout.pp, layout.pp
    if layout.runs_beside:
        return 2 * layout.pp + _FILL, _STRIDE
    return layout.pp + _FILL, _STRIDE


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
    if isinstance(workload, DlrmSpec) or "stack" in workload.model_fields_set:
        return workload.stack, ()
    name = MASKED_STACK if workload.model.head is Head.MASKED_TOKENS else PARALLEL_STACK
    sentence = (
        f"No stack is stated: {name} is used, because it was compared with public runs of such "
        f"models. Name yours with --stack."
    )
    return name, (sentence,)


def apply_stack_defaults(spec: Spec, stack: SoftwareStack, device: Device | None = None) -> Spec:
    """*spec* with the fields that it leaves open filled in from *stack*.

    These are: whether the host waits for every iteration, format and buckets of gradient
    reduction, the sharder of tables, the format of keys, and the defaults that the stack's file
    lists for such runs on *device*.
    """
    if stack.family is not None and stack.family.value != spec.family:
        raise WorkloadError(
            f"{spec.name}: stack {stack.name!r} is for {stack.family.value} workloads and this is "
            f"a {spec.family} one. Use another stack."
        )
    changes: dict[str, Any] = {}
    if stack.has(FrameworkBehaviour.READS_LOSS):
        changes["sync_each_iteration"] = True
    training: dict[str, Any] = {}
    if isinstance(spec, DlrmSpec):
        changes["sharding"] = fill(spec.sharding, sharder=stack.tables.sharder)
        changes["embedding"] = fill(spec.embedding, index_dtype=stack.tables.key_dtype)
    else:
        training = _training(spec, stack)
        taken = list_defaults(spec, stack, device)
        of_section = {name: dict[str, Any]() for name in ("parallel", "training")}
        for one in taken:
            section, _, name = one.setting.partition(".")
            of_section[section][name] = one.value
        training |= of_section["training"]
        changes["parallel"] = fill(spec.parallel, **of_section["parallel"])
    if reduces_once(stack):
        training["bucket_size"] = ONE_BUCKET_BYTES
    changes["training"] = fill(spec.training, **training)
    return fill(spec, **changes)


@dataclass(frozen=True, slots=True)
class TakenDefault:
    """A *setting* that nobody stated, and the *value* that *stack* configures for such runs."""

    setting: str
    value: Any
    stack: str


def list_defaults(
    spec: DlrmSpec | TransformerSpec, stack: SoftwareStack, device: Device | None = None
) -> tuple[TakenDefault, ...]:
    """The fields that *spec* leaves open and *stack* lists a default of, for runs on *device*."""
    if isinstance(spec, DlrmSpec):
        return ()
    kind = "experts" if spec.model.has_experts else "dense"
    kind = "adapters" if spec.training.adapters_only else kind
    chips = () if device is None else (device.name, device.generation)
    found = []
    for setting, value in stack.defaults_of(kind, chips).items():
        name, _, field = setting.partition(".")
        section = getattr(spec, name)
        if field not in section.model_fields_set:
            # A default may be as many ranks as another degree of the layout has.
            meant = (getattr(spec.parallel, str(value)) or 1) if value in AXES else value
            read = type(section).model_validate({field: meant})
            found.append(TakenDefault(setting, getattr(read, field), stack.name))
    return tuple(found)


def fill(section: AnySection, **values: Any) -> AnySection:
    """*section* with those of *values* that it does not state; sections in it are replaced."""
    open_values = {
        name: value
        for name, value in values.items()
        if isinstance(value, Section) or name not in section.model_fields_set
    }
    return section.model_copy(update=open_values) if open_values else section


def _training(spec: TransformerSpec, stack: SoftwareStack) -> dict[str, Any]:
    precision = spec.training.precision
    is_short = stack.has(FrameworkBehaviour.SHORT_GRADIENTS) or (
        stack.has(FrameworkBehaviour.FP16_GRADIENTS) and precision is DType.FP16
    )
    values: dict[str, Any] = {"gradient_dtype": precision} if is_short else {}
    if stack.has(FrameworkBehaviour.WEIGHT_BUCKETS):
        gradient = values.get("gradient_dtype", spec.training.gradient_dtype)
        ratio = gradient.size_bytes / spec.training.weight_dtype.size_bytes
        values["bucket_size"] = round(spec.training.bucket_size * ratio)
    return values
