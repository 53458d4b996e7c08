"""RunQuestion: a measured run as the question that `predict` is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.dtypes import DType
from perfmodel.prediction.question import PredictOptions, Question, workload_question
from perfmodel.stacks.profiles import choose_stack
from perfmodel.stacks.stack import Family, SoftwareStack
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_table import RunRow
from perfmodel.validation.runs_transformer import build_transformer_spec
from perfmodel.workloads.catalog import Workload
from perfmodel.workloads.transformer.layout import choose_layout, peak_bytes
from perfmodel.workloads.transformer.spec import Recompute, TransformerSpec
from perfmodel.workloads.unstated import apply_stack_defaults
from topologies import Cluster

_FAR_BEYOND = 1.2
"""Needs are known to a fifth or so: what lies closer to the memory may well have fitted."""


@dataclass(frozen=True, slots=True, eq=False)
class RunScenario:
    """A row in the project's own nouns, and what was taken for granted to read it so."""

    workload: Workload
    cluster: Cluster
    stack: SoftwareStack
    assumptions: tuple[str, ...]

    def question(self, asked: PredictOptions) -> Question:
        """What `predict` would be asked."""
        return workload_question(
            self.workload,
            cluster=self.cluster,
            stack=self.stack,
            asked=asked,
            assumptions=self.assumptions,
        )


def read_scenario(row: RunRow, *, calibration: tuple[str, ...] = ()) -> RunScenario:
    """The workload, cluster and stack that *row* names; raises an InputError where it cannot."""
    row.check()
    machine = build_machine(row, calibration=calibration)
    chosen = choose_stack(
        row.text("framework"),
        release=row.text("release"),
        family=row.family,
        placement=row.text("placement"),
    )
    stack = _as_said(chosen.stack, row)
    sentences = [*machine.assumptions, *chosen.assumptions]
    workload: Workload
    if row.family is Family.DLRM:
        workload = build_dlrm_spec(row, stack, sentences)
    else:
        workload = build_transformer_spec(row, stack, sentences)
        if not row.text("recompute"):
            workload = _recomputed(workload, machine.cluster, stack, sentences)
    return RunScenario(workload, machine.cluster, stack, tuple(sentences))


def _recomputed(
    spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack, sentences: list[str]
) -> TransformerSpec:
    """*spec* with as many quarters of its layers computed again as it takes to fit.

    What ran did fit, so where nobody states recomputation and activations need far more than the
    memory, there was some.
    """
    memory_bytes = cluster.device.memory_bytes
    if _needed_bytes(spec, cluster, stack) <= memory_bytes * _FAR_BEYOND:
        return spec
    for share in (0.25, 0.5, 0.75, 1.0):
        changes = {"recompute": Recompute.FULL, "recompute_fraction": share}
        training = spec.training.model_copy(update=changes)
        tried = spec.model_copy(update={"training": training})
        if _needed_bytes(tried, cluster, stack) <= memory_bytes:
            sentences.append(
                f"Recomputation is not stated and nothing fits without: {share:.0%} of the layers "
                "taken."
            )
            return tried
    return spec


def _needed_bytes(spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack) -> int:
    filled = apply_stack_defaults(spec, stack)
    chosen = choose_layout(
        filled,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        stack=stack,
    )
    return peak_bytes(filled, chosen.layout, stack)


def _as_said(stack: SoftwareStack, row: RunRow) -> SoftwareStack:
    """*stack* with products in fp32 computed as *row* says, and compiled where it says so."""
    if row.switch("compiled"):
        stack = stack.with_compiling()
    is_tf32 = row.text("compute_precision") == DType.TF32.value
    return replace(stack, matmul_dtypes={DType.FP32: DType.TF32 if is_tf32 else DType.FP32})
