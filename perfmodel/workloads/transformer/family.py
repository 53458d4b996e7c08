"""Transformers as a family: what the product asks of them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.family import (
    BuiltWorkload,
    Extrapolation,
    Family,
    IterationFlops,
    JobRequest,
    TakenDefault,
)
from perfmodel.workloads.reduction import bucket_defaults
from perfmodel.workloads.transformer.axes import AXES, OF_MODEL, group_size
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Head

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.layout import Layout
    from topologies import Device

_FILL = 2
_STRIDE = 2
"""Micro-batches of the smaller job beyond its stages, and of the larger beyond the smaller."""
MASKED_STACK, PARALLEL_STACK = "pytorch_hf", "nemo"
"""Stacks for models that name none: of masked tokens, with divided weights, and in any layout."""


class TransformerFamily(Family[TransformerSpec]):
    """Layers in any parallel layout, which is chosen where it is open.

    What builds jobs is imported when it is needed: other families need none of it.
    """

    title = "a Transformer"
    spec_type = TransformerSpec
    has_layouts = True
    superseded: ClassVar = {"parallel.pp": ("interleaving", "schedule", "stages", "stage_layers")}
    alternatives: ClassVar = {"batch": "replica_batch", "replica_batch": "batch"}

    def complete(self, content: dict[str, Any], rank_count: int) -> dict[str, Any]:
        """*content* with the batch of all ranks, where it states that of a data-parallel one."""
        one = content.get("replica_batch")
        if "batch" in content or not isinstance(one, int):
            return content
        parallel = {"tp": 1, "pp": 1, **content.get("parallel", {})}
        copies = rank_count // group_size(parallel.get, *OF_MODEL)
        batch = one * max(1, copies)
        said = (
            f"batch: {batch:,}, which is {one:,} for each data-parallel rank; no other is stated."
        )
        assumed = [*content.get("assumed", ()), said]
        return {**content, "batch": batch, "parallel": parallel, "assumed": assumed}

    def default_stack(self, spec: TransformerSpec) -> str:
        """One that public runs of such models back."""
        return MASKED_STACK if spec.model.head is Head.MASKED_TOKENS else PARALLEL_STACK

    def stack_defaults(
        self, spec: TransformerSpec, stack: SoftwareStack
    ) -> dict[str, dict[str, Any]]:
        """The format and the buckets of gradients."""
        precision = spec.training.precision
        is_short = stack.has(FrameworkBehaviour.SHORT_GRADIENTS) or (
            stack.has(FrameworkBehaviour.FP16_GRADIENTS) and precision is DType.FP16
        )
        values: dict[str, Any] = {"gradient_dtype": precision} if is_short else {}
        if stack.has(FrameworkBehaviour.WEIGHT_BUCKETS):
            gradient = values.get("gradient_dtype", spec.training.gradient_dtype)
            ratio = gradient.size_bytes / spec.training.weight_dtype.size_bytes
            values["bucket_size"] = round(spec.training.bucket_size * ratio)
        return {"training": values | bucket_defaults(stack)}

    def list_defaults(
        self, spec: TransformerSpec, stack: SoftwareStack, device: Device | None
    ) -> tuple[TakenDefault, ...]:
        """Those of dense models, of experts, or of runs that train adapters only."""
        kind = "experts" if spec.model.has_experts else "dense"
        kind = "adapters" if spec.training.adapters_only else kind
        chips = () if device is None else (device.name, device.generation)
        found = []
        for setting, value in stack.defaults_of(kind, chips).items():
            name, _, field = setting.partition(".")
            section: Any = getattr(spec, name, None)
            if field not in getattr(type(section), "model_fields", {}):
                raise WorkloadError(
                    f"stack {stack.name}: defaults: {setting!r} is no setting of a Transformer. "
                    "Write its section and name, as in parallel.etp or training.recompute."
                )
            if field not in section.model_fields_set:
                # A default may be as many ranks as another degree of the layout has.
                meant = (getattr(spec.parallel, str(value)) or 1) if value in AXES else value
                read = type(section).model_validate({field: meant})
                found.append(TakenDefault(setting, getattr(read, field), stack.name))
        return tuple(found)

    def build(self, spec: TransformerSpec, request: JobRequest) -> BuiltWorkload:
        """The job in the layout that *spec* states, completed; two smaller ones if it is long."""
        from perfmodel.workloads.transformer.job import build_shorter_jobs, build_transformer_job
        from perfmodel.workloads.transformer.layout_choice import choose_layout
        from perfmodel.workloads.transformer.memory import memory_of_stages
        from perfmodel.workloads.transformer.run import TransformerRun

        chosen = choose_layout(
            spec,
            rank_count=request.rank_count,
            ranks_per_host=request.ranks_per_host,
            memory_bytes=request.memory_bytes,
            stack=request.stack,
        )
        layout, stack = chosen.layout, request.stack
        run = TransformerRun(spec, layout, stack)
        of_stage = memory_of_stages(run)
        memory = tuple(one for one in of_stage for _ in range(layout.ranks_of_stage))
        count = layout.micro_batches
        fewer, stride = _shorter_counts(layout)
        more = fewer + stride
        if request.is_whole or count <= fewer + more:
            # Two smaller jobs would be as much work as the whole one.
            return BuiltWorkload(build_transformer_job(spec, chosen, stack=stack), memory)
        smaller, larger = build_shorter_jobs(spec, chosen, stack=stack, micro_batches=(fewer, more))
        steps = Fraction(count - fewer, stride)
        return BuiltWorkload(smaller, memory, Extrapolation(larger, steps, count))

    def count_flops(self, spec: TransformerSpec) -> IterationFlops:
        """Operations and tokens, in any layout."""
        from perfmodel.workloads.transformer.shapes import count_flops

        return count_flops(spec)

    def count_parameters(self, spec: TransformerSpec) -> int:
        """Those of all layers and both ends."""
        from perfmodel.workloads.transformer.shapes import count_parameters

        return count_parameters(spec.model)


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
