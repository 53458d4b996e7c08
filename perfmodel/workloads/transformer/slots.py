"""Slots: the communicators of a Transformer rank, and the groups behind them."""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise

from perfmodel.graph.builder import JobBuilder
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.spec import TransformerSpec


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


def add_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    """Add every group of two ranks or more."""
    for stage in range(layout.pp):
        if layout.tp > 1:
            for data in range(layout.dp):
                ranks = layout.tensor_group(data=data, stage=stage)
                job.add_group(f"tensor {stage}.{data}", ranks, slot=Slot.TENSOR)
        for tensor in range(layout.tp):
            _add_data_groups(job, layout, stage=stage, tensor=tensor)
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


def has_norm_group(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether the norm of all gradients is spread over several ranks."""
    if not spec.training.clip_gradients:
        return False
    shares = layout.shard_ranks if spec.parallel.sharding.divides_state else 1
    return layout.tp * layout.pp * shares > 1


def has_tied_group(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether the first and the last stage hold the same weight."""
    return spec.model.tied_embeddings and layout.pp > 1


def _add_norm_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    if not has_norm_group(spec, layout):
        return
    if spec.parallel.sharding.divides_state:
        job.add_group("gradient norm", range(layout.rank_count), slot=Slot.NORM)
        return
    for data in range(layout.dp):
        ranks = [
            rank
            for stage in range(layout.pp)
            for rank in layout.tensor_group(data=data, stage=stage)
        ]
        job.add_group(f"gradient norm {data}", ranks, slot=Slot.NORM)


def _add_pipeline_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    for data in range(layout.dp):
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
