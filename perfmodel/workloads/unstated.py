"""What a workload does not state: the stack that runs it does as it always does.

A field that a workload file, a row of a table or an override states is left alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.stack import FrameworkBehaviour, SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.fields import Section
from perfmodel.workloads.transformer.spec import AdapterPlaces, StageSplit, TransformerSpec

Spec = TypeVar("Spec", bound=DlrmSpec | TransformerSpec)
AnySection = TypeVar("AnySection", bound=Section)

ONE_BUCKET_BYTES = 2**40
"""A bucket that no model fills."""


def apply_stack_defaults(spec: Spec, stack: SoftwareStack) -> Spec:
    """*spec* with what it leaves open filled in from *stack*.

    That is: whether the host waits for every iteration, what the loader takes, in what format and
    pieces gradients are reduced, which share of the layers is computed again, where adapters are,
    how layers are dealt to stages, which sharder places tables and what format keys have.
    """
    if stack.family is not None and stack.family.value != spec.family:
        raise WorkloadError(
            f"{spec.name}: stack {stack.name!r} is for {stack.family.value} workloads and this is "
            f"a {spec.family} one. Take another stack."
        )
    changes: dict[str, Any] = {}
    if stack.has(FrameworkBehaviour.READS_LOSS):
        changes["sync_each_iteration"] = True
    load_ns = stack.loader.load_ns(spec.batch)
    if load_ns:
        changes["input"] = fill(spec.input, load_time=load_ns)
    if isinstance(spec, DlrmSpec):
        changes["sharding"] = fill(spec.sharding, sharder=stack.tables.sharder)
        changes["embedding"] = fill(spec.embedding, index_dtype=stack.tables.key_dtype)
        if stack.has(FrameworkBehaviour.ONE_REDUCTION):
            changes["training"] = fill(spec.training, bucket_size=ONE_BUCKET_BYTES)
    else:
        changes["training"] = fill(spec.training, **_training(spec, stack))
        if stack.has(FrameworkBehaviour.STAGES_BY_COST):
            changes["parallel"] = fill(spec.parallel, stages=StageSplit.BY_COST)
    return fill(spec, **changes)


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
    if stack.has(FrameworkBehaviour.ONE_REDUCTION):
        values["bucket_size"] = ONE_BUCKET_BYTES
    elif stack.has(FrameworkBehaviour.WEIGHT_BUCKETS):
        gradient = values.get("gradient_dtype", spec.training.gradient_dtype)
        ratio = gradient.size_bytes / spec.training.weight_dtype.size_bytes
        values["bucket_size"] = round(spec.training.bucket_size * ratio)
    if stack.has(FrameworkBehaviour.QKV_ADAPTERS):
        values["adapter_places"] = AdapterPlaces.QKV
    if stack.has(FrameworkBehaviour.ALTERNATE_RECOMPUTE):
        values["recompute_fraction"] = 0.5
    return values
