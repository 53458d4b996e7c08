"""RunQuestion: a measured run as the question that `predict` is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.dtypes import DType
from perfmodel.prediction.question import Asked, Question, workload_question
from perfmodel.stacks.choice import choose_stack
from perfmodel.stacks.stack import Family, SoftwareStack
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_table import RunRow
from perfmodel.validation.runs_transformer import build_transformer_spec
from perfmodel.workloads.catalog import Workload
from topologies import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class RunScenario:
    """A row in the project's own nouns, and what was taken for granted to read it so."""

    workload: Workload
    cluster: Cluster
    stack: SoftwareStack
    assumptions: tuple[str, ...]

    def question(self, asked: Asked) -> Question:
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
    return RunScenario(workload, machine.cluster, stack, tuple(sentences))


def _as_said(stack: SoftwareStack, row: RunRow) -> SoftwareStack:
    """*stack* with products in fp32 computed as *row* says, and compiled where it says so."""
    if row.switch("compiled"):
        stack = stack.with_compiling()
    is_tf32 = row.text("compute_precision") == DType.TF32.value
    return replace(stack, matmul_dtypes={DType.FP32: DType.TF32 if is_tf32 else DType.FP32})
