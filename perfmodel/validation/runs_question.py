"""RunQuestion: a measured run as a job on a cluster under a software stack.

An iteration of many equal micro-batches is built with two smaller numbers of
them and continued in a straight line: once the pipeline is full, each further
micro-batch adds the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.dtypes import DType
from perfmodel.graph.job import JobGraph
from perfmodel.stacks.choice import choose_stack
from perfmodel.stacks.stack import Family, SoftwareStack
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_table import RunRow
from perfmodel.validation.runs_transformer import build_transformer_spec
from perfmodel.workloads.catalog import Workload
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.transformer.job import build_transformer_job
from perfmodel.workloads.transformer.layout import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.unstated import take_over
from topologies import Cluster

_FILL = 2
_STRIDE = 2
"""Micro-batches beyond the stages of the smaller job, and from there to the larger."""


@dataclass(frozen=True, slots=True)
class RunSetting:
    """What all rows share, with nothing in it: every row names what it needs."""


@dataclass(frozen=True, slots=True, eq=False)
class RunScenario:
    """A row in the project's own nouns, and what was taken for granted to read it so."""

    workload: Workload
    cluster: Cluster
    stack: SoftwareStack
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunJob:
    """A job, and where it is continued the larger one that shows what a step more adds."""

    job: JobGraph
    larger: JobGraph | None = None
    steps: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RunQuestion:
    """Everything a run's prediction needs, and what was taken for granted to ask it."""

    run: RunJob
    cluster: Cluster
    stack: SoftwareStack
    assumptions: tuple[str, ...]


def read_scenario(row: RunRow) -> RunScenario:
    """The workload, cluster and stack that *row* names; raises an InputError where it cannot."""
    row.check()
    machine = build_machine(row)
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
    """*stack* with products computed as *row* says, and compiled where it says so."""
    if row.switch("compiled"):
        stack = stack.with_compiling()
    computed = row.text("compute_precision")
    plain = {DType.FP32: DType.TF32 if computed == DType.TF32.value else DType.FP32}
    return replace(stack, matmul_dtypes=plain)


def build_question(setting: RunSetting, row: RunRow) -> RunQuestion:
    """The question that *row* is; raises an InputError where it cannot be asked."""
    del setting
    scenario = read_scenario(row)
    cluster, stack, sentences = scenario.cluster, scenario.stack, list(scenario.assumptions)
    if isinstance(scenario.workload, DlrmSpec):
        job = build_dlrm_job(scenario.workload, rank_count=cluster.rank_count, stack=stack)
        run = RunJob(job)
    else:
        run = _build_run(take_over(scenario.workload, stack), cluster, stack)
    if run.larger is not None:
        sentences.append("Equal micro-batches are continued in a straight line.")
    return RunQuestion(run, cluster, stack, tuple(sentences))


def _build_run(spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack) -> RunJob:
    chosen = choose_layout(
        spec,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        stack=stack,
    )
    layout = chosen.layout
    count, fewer, stride = layout.micro_batches, layout.pp + _FILL, _STRIDE
    if layout.interleaving > 1:
        # Micro-batches go round in groups as large as there are stages.
        fewer, stride = 2 * layout.pp, layout.pp
    more = fewer + stride
    if count <= more:
        return RunJob(build_transformer_job(spec, chosen, stack=stack))
    return RunJob(
        job=build_transformer_job(spec, _with_count(chosen, fewer), stack=stack),
        larger=build_transformer_job(spec, _with_count(chosen, more), stack=stack),
        steps=(count - fewer) / stride,
    )


def _with_count(chosen: ChosenLayout, micro_batches: int) -> ChosenLayout:
    return replace(chosen, layout=replace(chosen.layout, micro_batches=micro_batches))
