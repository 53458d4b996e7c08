"""The job of one Transformer iteration: a program a pipeline stage, shared by its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.base.units import format_size
from perfmodel.graph.builder import JobBuilder, Tables
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
    return next(_iter_jobs(spec, (chosen,), stack or load_stack(spec.stack)))


def build_shorter_jobs(
    spec: TransformerSpec,
    chosen: ChosenLayout,
    *,
    stack: SoftwareStack,
    micro_batches: tuple[int, int],
) -> tuple[JobGraph, JobGraph]:
    """The same with two other numbers of *micro_batches*, each beyond one.

    What both do is made once.
    """
    shorter = [
        replace(chosen, layout=replace(chosen.layout, micro_batches=count))
        for count in micro_batches
    ]
    smaller, larger = _iter_jobs(spec, shorter, stack)
    return smaller, larger


def _iter_jobs(
    spec: TransformerSpec, choices: Sequence[ChosenLayout], stack: SoftwareStack
) -> Iterator[JobGraph]:
    tables, parts = Tables(), StageParts(TransformerRun(spec, choices[0].layout, stack))
    for chosen in choices:
        layout, job = chosen.layout, JobBuilder(tables)
        run = TransformerRun(spec, layout, stack)
        for stage in range(layout.pp):
            writer = StageWriter(job.new_program(), run, parts, stage=stage)
            program = job.add_program(writer.write())
            for _ in range(layout.ranks_of_stage):
                job.add_rank(program)
        add_groups(job, spec, layout)
        yield job.build(_facts(spec, chosen))


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
