"""The job of one Transformer iteration: a program a pipeline stage, shared by its ranks."""

from __future__ import annotations

from perfmodel.base.units import format_size
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.feeding import input_assumption
from perfmodel.workloads.transformer.layout import ChosenLayout
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.slots import add_groups
from perfmodel.workloads.transformer.spec import (
    AdapterPlaces,
    Recompute,
    Routing,
    TransformerSpec,
)
from perfmodel.workloads.transformer.stage import StageParts, StageWriter

_PLACES = {AdapterPlaces.ALL: "every product", AdapterPlaces.QKV: "queries, keys and values"}


def build_transformer_job(
    spec: TransformerSpec, chosen: ChosenLayout, *, stack: SoftwareStack | None = None
) -> JobGraph:
    """One iteration of *spec* in the layout that was *chosen*.

    *stack* is what issues it, as a rule the one that *spec* names.
    """
    stack = stack or load_stack(spec.stack)
    layout = chosen.layout
    job, parts = JobBuilder(), StageParts(TransformerRun(spec, layout, stack))
    for stage in range(layout.pp):
        writer = StageWriter(job.new_program(), parts, stage=stage)
        program = job.add_program(writer.write())
        for _ in range(layout.ranks_of_stage):
            job.add_rank(program)
    add_groups(job, spec, layout)
    return job.build(_facts(spec, chosen))


def _recompute_sentence(spec: TransformerSpec) -> str:
    what = {
        Recompute.FULL: "Every layer",
        Recompute.ATTENTION: "The attention core",
        Recompute.OPS: "All but the attention core and every second product",
    }[spec.training.recompute]
    share = spec.training.recompute_fraction
    where = "" if share == 1 else f", in {share:.0%} of the layers,"
    return f"{what}{where} is computed again in the backward pass."


def _routing_sentence(spec: TransformerSpec) -> str:
    training = spec.training
    how = "evenly" if training.routing is Routing.BALANCED else "by a power law"
    kept = "none is dropped"
    if training.capacity_factor is not None:
        kept = f"beyond {training.capacity_factor:g} times the mean they are dropped"
    return f"Tokens choose experts {how}; {kept}; every rank waits for the most loaded one."


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
    if layout.cp > 1:
        sentences.append(f"{layout.cp} ranks share every sequence, two mirrored chunks each.")
    if spec.model.has_experts:
        sentences.append(_routing_sentence(spec))
    if layout.pp > 1:
        sentences.append("Pipeline stages run one forward, one backward.")
    if layout.interleaving > 1:
        sentences.append(f"Every pipeline stage holds {layout.interleaving} runs of layers.")
    if training.recompute is not Recompute.NONE:
        sentences.append(_recompute_sentence(spec))
    if spec.parallel.sharding.divides_weights:
        sentences.append(
            "Weights are gathered one layer ahead of use; at most two are held."
            if layout.pp == 1
            else "Weights are gathered before their first use and kept until the iteration ends."
        )
    if training.adapters_only:
        sentences.append(
            f"Weights are frozen; adapters of rank {training.adapter_rank} beside "
            f"{_PLACES[training.adapter_places]} of a layer are trained."
        )
    return JobFacts(
        name=spec.name, source=f"specification: {spec.source}", assumptions=tuple(sentences)
    )
