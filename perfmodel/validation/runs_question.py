"""RunQuestion: a measured run as a job on a cluster under a software stack.

An iteration of many equal micro-batches is built with two smaller numbers of
them and continued in a straight line: once the pipeline is full, each further
micro-batch adds the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.graph.job import JobGraph
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_software import find_rule, read_precision, with_precision
from perfmodel.validation.runs_table import RunFamily, RunRow
from perfmodel.validation.runs_transformer import build_transformer_spec
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.transformer.job import build_transformer_job
from perfmodel.workloads.transformer.layout import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.spec import TransformerSpec
from topologies import Cluster

_FILL = 2
_STRIDE = 2
"""Micro-batches beyond the stages of the smaller job, and from there to the larger."""


@dataclass(frozen=True, slots=True)
class RunSetting:
    """What all rows share: the kind of table and the software stacks by name."""

    family: RunFamily
    stacks: Mapping[str, SoftwareStack]


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


def build_question(setting: RunSetting, row: RunRow) -> RunQuestion:
    """The question that *row* is; raises an InputError where it cannot be asked."""
    rule = find_rule(row)
    machine = build_machine(row)
    stack = with_precision(setting.stacks[rule.profile], read_precision(row))
    sentences = list(machine.assumptions)
    if setting.family is RunFamily.DLRM:
        dlrm = build_dlrm_spec(row, rule, sentences)
        run = RunJob(build_dlrm_job(dlrm, rank_count=machine.cluster.rank_count, stack=stack))
    else:
        run = _build_run(build_transformer_spec(row, rule, sentences), machine.cluster, stack)
    if run.larger is not None:
        sentences.append("Equal micro-batches are continued in a straight line.")
    return RunQuestion(run, machine.cluster, stack, tuple(sentences))


def _build_run(spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack) -> RunJob:
    chosen = choose_layout(
        spec,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
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
