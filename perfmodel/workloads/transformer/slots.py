"""Slots: the communicators of a Transformer rank, and the groups behind them."""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise

from perfmodel.graph.builder import JobBuilder
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.spec import ContextKind, TransformerSpec


class Slot(IntEnum):
    """What a communicator is for."""

    TENSOR = 0
    DATA = 1
    FORWARD_IN = 2
    FORWARD_OUT = 3
    BACKWARD_IN = 4
    BACKWARD_OUT = 5
    NORM = 6
    TIED = 7
    REPLICA = 8
    CONTEXT = 9
    RING_OUT = 10
    RING_IN = 11
    EXPERTS = 12
    EXPERT_TENSOR = 13
    EXPERT_DATA = 14

    @property
    def stream_name(self) -> str:
        """What the stream of its collectives is called."""
        return f"{self.name.lower().replace('_', ' ')} stream"


def add_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    """Add every group of two ranks or more."""
    for stage in range(layout.pp):
        if layout.tp > 1:
            for data in range(layout.weight_copies):
                ranks = layout.tensor_group(data=data, stage=stage)
                job.add_group(f"tensor {stage}.{data}", ranks, slot=Slot.TENSOR)
        for tensor in range(layout.tp):
            _add_data_groups(job, layout, stage=stage, tensor=tensor)
            if layout.cp > 1:
                _add_context_groups(job, spec, layout, stage=stage, tensor=tensor)
        if spec.model.has_experts:
            _add_expert_groups(job, layout, stage=stage)
    _add_norm_groups(job, spec, layout)
    if layout.pp > 1:
        _add_pipeline_groups(job, spec, layout)


def _add_data_groups(job: JobBuilder, layout: Layout, *, stage: int, tensor: int) -> None:
    """The ranks that divide state, and those of different replicas with the same share."""
    name = f"{stage}.{tensor}"
    if layout.shard_ranks > 1:
        for replica in range(layout.replicas):
            ranks = layout.data_group(tensor=tensor, stage=stage, replica=replica)
            number = f".{replica}" if layout.replicas > 1 else ""
            job.add_group(f"data {name}{number}", ranks, slot=Slot.DATA)
    if layout.replicas > 1:
        for share in range(layout.shard_ranks):
            ranks = layout.replica_group(tensor=tensor, stage=stage, share=share)
            job.add_group(f"replicas {name}.{share}", ranks, slot=Slot.REPLICA)


def _add_context_groups(
    job: JobBuilder, spec: TransformerSpec, layout: Layout, *, stage: int, tensor: int
) -> None:
    """The ranks that share a sequence: together, or each with the next one round a ring."""
    for replica in range(layout.dp):
        ranks = layout.context_group(tensor=tensor, replica=replica, stage=stage)
        if spec.parallel.cp_kind is ContextKind.ALL_GATHER:
            job.add_group(f"context {stage}.{tensor}.{replica}", ranks, slot=Slot.CONTEXT)
            continue
        for source, target in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
            slots = (Slot.RING_OUT, Slot.RING_IN)
            job.add_group(f"ring {source} to {target}", (source, target), slot=slots)


def _add_expert_groups(job: JobBuilder, layout: Layout, *, stage: int) -> None:
    """The ranks that divide experts, that share one, and that hold the same ones."""
    groups = (
        ("experts", Slot.EXPERTS, layout.iter_expert_groups(stage)),
        ("expert tensor", Slot.EXPERT_TENSOR, layout.iter_expert_tensor_groups(stage)),
        ("expert copies", Slot.EXPERT_DATA, layout.iter_expert_copies(stage)),
    )
    for name, slot, members in groups:
        for number, ranks in enumerate(members):
            if len(ranks) > 1:
                job.add_group(f"{name} {stage}.{number}", ranks, slot=slot)


def has_experts_apart(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether experts are spread over ranks otherwise than everything else of a layer."""
    return spec.model.has_experts and layout.ep * layout.etp != layout.tp


def has_norm_group(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether the norm of all gradients is spread over several ranks."""
    if not spec.training.clip_gradients:
        return False
    shares = layout.shard_ranks if spec.parallel.sharding.divides_state else 1
    if has_experts_apart(spec, layout):
        return layout.rank_count > 1
    return layout.tp * layout.pp * shares > 1


def has_tied_group(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether the first and the last stage hold the same weight."""
    return spec.model.tied_embeddings and layout.pp > 1


def _add_norm_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    if not has_norm_group(spec, layout):
        return
    if spec.parallel.sharding.divides_state or has_experts_apart(spec, layout):
        job.add_group("gradient norm", range(layout.rank_count), slot=Slot.NORM)
        return
    for data in range(layout.weight_copies):
        ranks = [
            rank
            for stage in range(layout.pp)
            for rank in layout.tensor_group(data=data, stage=stage)
        ]
        job.add_group(f"gradient norm {data}", ranks, slot=Slot.NORM)


def _add_pipeline_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    for data in range(layout.weight_copies):
        for tensor in range(layout.tp):
            ranks = layout.stage_ranks(tensor=tensor, data=data)
            for before, after in pairwise(ranks):
                job.add_group(
                    f"forward {before} to {after}",
                    (before, after),
                    slot=(Slot.FORWARD_OUT, Slot.FORWARD_IN),
                )
                job.add_group(
                    f"backward {after} to {before}",
                    (after, before),
                    slot=(Slot.BACKWARD_OUT, Slot.BACKWARD_IN),
                )
            if layout.interleaving > 1:
                _add_way_back(job, first=ranks[0], last=ranks[-1])
            if has_tied_group(spec, layout):
                ends = (ranks[0], ranks[-1])
                job.add_group(f"tied weight {ends[0]}, {ends[1]}", ends, slot=Slot.TIED)


def _add_way_back(job: JobBuilder, *, first: int, last: int) -> None:
    """From the last stage's run of layers to the first stage's next one, and back."""
    job.add_group(
        f"forward {last} to {first} again",
        (last, first),
        slot=(Slot.FORWARD_OUT, Slot.FORWARD_IN),
    )
    job.add_group(
        f"backward {first} to {last} again",
        (first, last),
        slot=(Slot.BACKWARD_OUT, Slot.BACKWARD_IN),
    )
