"""The job of one Transformer iteration: a program a pipeline stage, shared by its ranks."""

from __future__ import annotations

from perfmodel.base.units import format_size
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.feeding import input_assumption
from perfmodel.workloads.transformer.layout import ChosenLayout
from perfmodel.workloads.transformer.slots import add_groups
from perfmodel.workloads.transformer.spec import Recompute, StateSharding, TransformerSpec
from perfmodel.workloads.transformer.stage import StageWriter


def build_transformer_job(
    spec: TransformerSpec, chosen: ChosenLayout, *, stack: SoftwareStack | None = None
) -> JobGraph:
    """One iteration of *spec* in the layout that was *chosen*.

    *stack* is what issues it, as a rule the one that *spec* names.
    """
    stack = stack or load_stack(spec.stack)
    layout = chosen.layout
    job = JobBuilder()
    for stage in range(layout.pp):
        writer = StageWriter(job.new_program(), spec, layout, stage=stage, stack=stack)
        program = job.add_program(writer.write())
        for _ in range(layout.tp * layout.dp):
            job.add_rank(program)
    add_groups(job, spec, layout)
    return job.build(_facts(spec, chosen))


def _facts(spec: TransformerSpec, chosen: ChosenLayout) -> JobFacts:
    layout, training = chosen.layout, spec.training
    sentences = [
        chosen.sentence,
        input_assumption(spec.input),
        "The host may run ahead of the GPU without limit; the queue of 1,024 launches is left out.",
        f"Gradients are reduced in buckets of {format_size(training.bucket_size)}.",
    ]
    if layout.is_sequence_parallel:
        sentences.append("Norms and residuals are split along the sequence over the tensor group.")
    if layout.pp > 1:
        sentences.append("Pipeline stages run one forward, one backward.")
    if layout.interleaving > 1:
        sentences.append(f"Every pipeline stage holds {layout.interleaving} runs of layers.")
    if training.recompute is Recompute.FULL:
        sentences.append("Every layer is computed again in the backward pass.")
    if training.recompute is Recompute.SELECTIVE:
        sentences.append("The attention core is computed again in the backward pass.")
    if training.recompute is Recompute.OPERATORS:
        sentences.append(
            "All but the attention core and every second product is computed again in the backward "
            "pass."
        )
    if spec.parallel.sharding is StateSharding.FULL:
        sentences.append("Weights are gathered one layer ahead of use; at most two are held.")
    return JobFacts(
        name=spec.name, source=f"specification: {spec.source}", assumptions=tuple(sentences)
    )
