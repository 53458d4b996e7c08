"""The job of one Transformer iteration: one program per pipeline stage, shared by its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.base.units import format_size
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.tables import Tables
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.eager import host_assumptions
from perfmodel.workloads.reduction import ONE_BUCKET_BYTES
from perfmodel.workloads.transformer.data_parallel import bucket_bytes
from perfmodel.workloads.transformer.layout import add_groups
from perfmodel.workloads.transformer.layout_choice import ChosenLayout
from perfmodel.workloads.transformer.parts import StageParts
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.spec import TrainingSection, TransformerSpec
from perfmodel.workloads.transformer.stage import StageWriter
from perfmodel.workloads.transformer.words import AdapterPlaces, Recompute, Routing

_PLACES = {AdapterPlaces.ALL: "every GEMM", AdapterPlaces.QKV: "queries, keys and values"}
_RECOMPUTED = {
    Recompute.FULL: "Every layer",
    Recompute.ATTENTION: "The attention core",
    Recompute.OPS: "All but the attention core and every second GEMM",
}


def build_transformer_job(
    spec: TransformerSpec, chosen: ChosenLayout, *, stack: SoftwareStack | None = None
) -> JobGraph:
    """One iteration of *spec* in the *chosen* layout, issued by *stack*, by default its own."""
    return next(build_alike([(spec, chosen)], stack or load_stack(spec.stack)))


def build_shorter_jobs(
    spec: TransformerSpec,
    chosen: ChosenLayout,
    *,
    stack: SoftwareStack,
    micro_batches: tuple[int, int],
) -> tuple[JobGraph, JobGraph]:
    """The same job with two other numbers of *micro_batches*, each above one."""
    shorter = [
        (spec, replace(chosen, layout=replace(chosen.layout, micro_batches=count)))
        for count in micro_batches
    ]
    smaller, larger = build_alike(shorter, stack)
    return smaller, larger


def build_alike(
    choices: Sequence[tuple[TransformerSpec, ChosenLayout]],
    stack: SoftwareStack,
    tables: Tables | None = None,
) -> Iterator[JobGraph]:
    """The jobs of models in layouts that differ as `StageParts` allows.

    Their common stretches are made once, and ops are numbered as in *tables*.
    """
    tables = Tables() if tables is None else tables
    parts = StageParts(TransformerRun(choices[0][0], choices[0][1].layout, stack))
    for spec, chosen in choices:
        layout, job = chosen.layout, JobBuilder(tables)
        run = TransformerRun(spec, layout, stack)
        for stage in range(layout.pp):
            writer = StageWriter(job.new_program(), run, parts, stage=stage)
            program = job.add_program(writer.write())
            for _ in range(layout.ranks_of_stage):
                job.add_rank(program)
        add_groups(job, spec, layout)
        source = f"specification: {spec.source}"
        assumptions = tuple(_iter_assumptions(run, chosen))
        model = spec.model
        widths = f"{model.hidden}x{model.ffn}, {model.heads} heads, {model.experts} experts"
        facts = JobFacts(spec.name, source=source, assumptions=assumptions, model=widths)
        yield job.build(facts)


def _iter_assumptions(run: TransformerRun, chosen: ChosenLayout) -> Iterator[str]:
    spec, layout, training = run.spec, chosen.layout, run.spec.training
    yield chosen.sentence
    yield from host_assumptions(spec.input)
    size = bucket_bytes(run)
    pieces = "one piece" if size >= ONE_BUCKET_BYTES else f"buckets of {format_size(size)}"
    yield f"Gradients are reduced in {pieces}."
    if layout.is_sequence_parallel:
        yield "Norms and residuals are split along the sequence over the tensor group."
    if layout.cp > 1:
        yield f"{layout.cp} ranks share every sequence, two mirrored chunks each."
    yield from _iter_expert_assumptions(run)
    if layout.pp > 1:
        yield layout.order.sentence
    if layout.interleaving > 1:
        yield f"Every pipeline stage holds {layout.interleaving} chunks of layers."
    if training.recompute is not Recompute.NONE:
        share = training.recompute_fraction
        where = "" if share == 1 else f", in {share:.0%} of the layers,"
        what = _RECOMPUTED[training.recompute]
        yield f"{what}{where} is recomputed in the backward pass."
    if training.recompute_modules:
        words = ", ".join(part.value for part in training.recompute_modules)
        yield f"Parts of all layers are recomputed in the backward pass: {words}."
    yield from _iter_offload_assumptions(training)
    if spec.parallel.sharding.divides_weights:
        yield (
            "Weights are gathered one layer ahead of use; at most two layers are held."
            if layout.pp == 1
            else "Weights are gathered before their first use and kept until the iteration ends."
        )
    if training.adapters_only:
        yield (
            f"Weights are frozen; adapters of rank {training.adapter_rank} on "
            f"{_PLACES[training.adapter_places]} of a layer are trained."
        )


def _iter_offload_assumptions(training: TrainingSection) -> Iterator[str]:
    if training.offload_layers:
        yield (
            f"Activations of {training.offload_layers} layers wait in host memory; their copies "
            "are assumed to be hidden by compute."
        )
    if training.offload_optimizer:
        yield (
            f"{training.offload_optimizer:.0%} of the optimizer's state is in host memory and "
            "updated there, by a share of the host's cores that is assumed to move 30 GB/s per GPU "
            "behind PCIe and 118 GB/s behind NVLink-C2C."
        )


_ROUTED = {
    Routing.BALANCED: "is balanced",
    Routing.POWER_LAW: "follows a power law",
    Routing.IN_TURN: "takes experts in turn",
}


def _iter_expert_assumptions(run: TransformerRun) -> Iterator[str]:
    spec, layout, training = run.spec, run.layout, run.spec.training
    if spec.model.has_experts:
        how = _ROUTED[training.routing]
        kept = "no tokens are dropped"
        if training.capacity_factor is not None:
            kept = f"tokens beyond {training.capacity_factor:g} times the mean are dropped"
        yield f"Routing {how}; {kept}; ranks wait for the most loaded one."
        if layout.ep > 1:
            beside = ", while another micro-batch computes" if layout.runs_beside else ""
            yield f"Tokens are exchanged by {run.dispatcher.value}{beside}."
