"""Layout: how a Transformer job is spread over ranks, and which ranks communicate.

Ranks count tensor position first, then data-parallel position, then pipeline stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache, partial
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.builder import JobBuilder
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, Schedule, load_schedules
from perfmodel.workloads.transformer.axes import OF_EXPERTS, Divided, group_size
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import ContextKind


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline, context and data parallelism, and the micro-batches of every rank.

    Ranks that share a sequence (*cp*) hold the same weights, so gradients are reduced over them as
    over data-parallel ranks. Experts are spread over the ranks of a stage separately: *etp*
    neighbours share the GEMMs of an expert, *ep* such groups divide the experts. *interleaving* is
    how many separate runs of layers a pipeline stage holds. *shard* is how many data-parallel ranks
    divide state; by default all of them. *lengths* are the layers of each run; by default as equal
    as possible. With *runs_beside* a stage works on a forward and a backward turn together. The
    last stage holds *further_layers* after those of the model. *schedule* is the order in which
    stages take micro-batches.
    """

    tp: int
    pp: int
    dp: int
    micro_batch: int
    micro_batches: int
    is_sequence_parallel: bool = False
    interleaving: int = 1
    shard: int | None = None
    lengths: tuple[int, ...] | None = None
    cp: int = 1
    ep: int = 1
    etp: int = 1
    runs_beside: bool = False
    further_layers: int = 0
    schedule: str = DEFAULT_SCHEDULE

    @property
    def order(self) -> Schedule:
        """What its schedule allows."""
        return load_schedules()[self.schedule]

    @property
    def is_folded(self) -> bool:
        """Whether micro-batches go through the stages to the last and back to the first."""
        return self.order.is_folded and self.pp > 1

    @property
    def last_stage(self) -> int:
        """The stage with the last layers and the head."""
        return 0 if self.is_folded else self.pp - 1

    @property
    def rank_count(self) -> int:
        """Ranks of the job."""
        return self.pp * self.ranks_of_stage

    @property
    def weight_copies(self) -> int:
        """Ranks of a stage with the same weights outside experts: data times context parallel."""
        return self.dp * self.sharers

    @property
    def sharers(self) -> int:
        """Ranks that share every sequence."""
        return self.ranks_of(Divided.TOKENS)

    def ranks_of(self, *divided: Divided) -> int:
        """Ranks that divide any of *divided* among themselves."""
        return group_size(partial(getattr, self), *divided)

    @property
    def ranks_of_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.weight_copies

    @property
    def expert_copies(self) -> int:
        """Ranks of a stage with the same experts."""
        return self.ranks_of_stage // self.ranks_of(*OF_EXPERTS)

    @property
    def shard_ranks(self) -> int:
        """Data-parallel ranks that divide state among themselves."""
        return self.shard or self.weight_copies

    @property
    def replicas(self) -> int:
        """Groups of ranks with a whole state each."""
        return self.weight_copies // self.shard_ranks

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Ranks by pipeline stage, replica, share of the state and tensor position."""
        shape = (self.pp, self.replicas, self.shard_ranks, self.tp)
        return np.arange(self.rank_count).reshape(shape)

    def with_micro_batch(self, micro_batch: int) -> Layout:
        """The same layout with larger or smaller micro-batches."""
        sequences = self.micro_batch * self.micro_batches
        return replace(self, micro_batch=micro_batch, micro_batches=sequences // micro_batch)

    def layer_runs(self, layers: int, *, stage: int) -> tuple[range, ...]:
        """The runs of layers that *stage* holds, of a model of *layers* layers."""
        runs = self.pp * self.interleaving
        lengths = self.lengths or split_layers(layers, runs, further=self.further_layers)
        lengths = (*lengths[:-1], lengths[-1] + self.further_layers)
        ranges = [range(*ends) for ends in pairwise((0, *accumulate(lengths)))]
        if self.is_folded:
            return ranges[stage], ranges[-1 - stage]
        return tuple(ranges[stage :: self.pp])

    def layer_count(self, layers: int, *, stage: int) -> int:
        """Layers that *stage* holds."""
        return sum(len(run) for run in self.layer_runs(layers, stage=stage))


@lru_cache(maxsize=1024)
def split_layers(layers: int, runs: int, *, further: int = 0) -> tuple[int, ...]:
    """Layers of each of *runs* parts, in order.

    Equal if that divides; else the middle parts have a layer more than the others, because the
    ends also hold the embedding and the head. With *further* layers that predict later tokens,
    these and the loss count as layers of the last part, and parts are filled from the first, as in
    Megatron-Bridge's layouts; not if that leaves more than the last part without layers.
    """
    most = -(-(layers + further + 1) // runs)
    if further and layers > most * (runs - 2):
        return tuple(min(most, max(layers - run * most, 0)) for run in range(runs))
    whole, rest = divmod(layers, runs)
    first = min(1, runs - rest)
    return tuple(whole + (first <= run < first + rest) for run in range(runs))


def split_layers_by_cost(
    runs: int, *, layer_costs: Sequence[int], head_cost: int
) -> tuple[int, ...]:
    """Layers of each of *runs* parts if a part takes blocks until it exceeds its share of cost.

    Embedding, last norm and two loss blocks cost nothing. A part without blocks has -1 layers.
    """
    costs = [0, *layer_costs, 0, head_cost, 0, 0]
    total, part, part_of = sum(costs), 0, list[int]()
    for so_far in accumulate(costs):
        part_of.append(part)
        if so_far * runs > total * (part + 1) and part < runs - 1:
            part += 1
    counts = Counter(part_of[1 : len(layer_costs) + 1])
    return tuple(counts[number] if number in part_of else -1 for number in range(runs))


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
    RETURN_FORWARD_IN = 15
    RETURN_FORWARD_OUT = 16
    RETURN_BACKWARD_IN = 17
    RETURN_BACKWARD_OUT = 18

    @property
    def stream_name(self) -> str:
        """The name of the stream of its collectives."""
        return f"{self.name.lower().replace('_', ' ')} stream"


def has_separate_experts(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether experts are spread over ranks differently from the rest of a layer."""
    return spec.model.has_experts and layout.ep * layout.etp != layout.tp


def has_norm_group(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether the norm of all gradients is reduced over several ranks."""
    if not spec.training.clip_gradients:
        return False
    shares = layout.shard_ranks if spec.parallel.sharding.divides_state else 1
    if has_separate_experts(spec, layout):
        return layout.rank_count > 1
    return layout.tp * layout.pp * shares > 1


def has_tied_group(spec: TransformerSpec, layout: Layout) -> bool:
    """Whether the first and the last stage hold the same weight."""
    return spec.model.tied_embeddings and layout.last_stage > 0


def add_groups(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    """Add every group of two ranks or more."""
    for stage, of_stage in enumerate(layout.ranks):
        _add(job, f"tensor {stage}.", of_stage.reshape(-1, layout.tp), Slot.TENSOR)
        for tensor in range(layout.tp):
            place, shares = f"{stage}.{tensor}", of_stage[:, :, tensor]
            if layout.replicas > 1:
                _add(job, f"data {place}.", shares, Slot.DATA)
                _add(job, f"replicas {place}.", shares.T, Slot.REPLICA)
            elif layout.shard_ranks > 1:
                job.add_group(f"data {place}", shares[0].tolist(), slot=Slot.DATA)
            _add_context_groups(job, spec, shares.reshape(-1, layout.cp), place)
        if spec.model.has_experts:
            experts = of_stage.reshape(-1, layout.ep, layout.etp)
            exchanging = experts.swapaxes(1, 2).reshape(-1, layout.ep)
            copies = experts.reshape(layout.expert_copies, -1).T
            _add(job, f"experts {stage}.", exchanging, Slot.EXPERTS)
            _add(
                job, f"expert tensor {stage}.", experts.reshape(-1, layout.etp), Slot.EXPERT_TENSOR
            )
            _add(job, f"expert copies {stage}.", copies, Slot.EXPERT_DATA)
    _add_groups_across_stages(job, spec, layout)


def _add_groups_across_stages(job: JobBuilder, spec: TransformerSpec, layout: Layout) -> None:
    """The groups of the gradient norm, and those between pipeline stages."""
    by_stage = layout.ranks.reshape(layout.pp, layout.weight_copies, layout.tp)
    if has_norm_group(spec, layout):
        if spec.parallel.sharding.divides_state or has_separate_experts(spec, layout):
            job.add_group("gradient norm", range(layout.rank_count), slot=Slot.NORM)
        else:
            together = by_stage.swapaxes(0, 1).reshape(layout.weight_copies, -1)
            _add(job, "gradient norm ", together, Slot.NORM)
    if layout.pp > 1:
        for ranks in by_stage.reshape(layout.pp, -1).T.tolist():
            _add_pipeline_groups(job, spec, layout, ranks)


def _add(job: JobBuilder, name: str, groups: NDArray[np.int64], slot: Slot) -> None:
    """Add each row of *groups*, numbered, unless it is a single rank."""
    for number, ranks in enumerate(groups.tolist()):
        if len(ranks) > 1:
            job.add_group(f"{name}{number}", ranks, slot=slot)


def _add_context_groups(
    job: JobBuilder, spec: TransformerSpec, groups: NDArray[np.int64], place: str
) -> None:
    """The ranks that share a sequence: together, or each with its successor in a ring."""
    if spec.parallel.cp_kind is not ContextKind.RING:
        _add(job, f"context {place}.", groups, Slot.CONTEXT)
        return
    slots = (Slot.RING_OUT, Slot.RING_IN)
    for ranks in groups.tolist():
        for source, target in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
            if source != target:
                job.add_group(f"ring {source} to {target}", (source, target), slot=slots)


def _add_pipeline_groups(
    job: JobBuilder, spec: TransformerSpec, layout: Layout, ranks: Sequence[int]
) -> None:
    """Pairs of neighbours among the *ranks* that a micro-batch passes through."""
    first, last = ranks[0], ranks[-1]
    pairs = [(before, after, "") for before, after in pairwise(ranks)]
    if layout.interleaving > 1 and not layout.is_folded:
        # From the last stage's run of layers to the first stage's next one, and back.
        pairs.append((last, first, " again"))
    ways = [
        ("forward", False, (Slot.FORWARD_OUT, Slot.FORWARD_IN)),
        ("backward", True, (Slot.BACKWARD_OUT, Slot.BACKWARD_IN)),
    ]
    if layout.is_folded:
        ways += [
            ("return forward", True, (Slot.RETURN_FORWARD_OUT, Slot.RETURN_FORWARD_IN)),
            ("return backward", False, (Slot.RETURN_BACKWARD_OUT, Slot.RETURN_BACKWARD_IN)),
        ]
    for before, after, again in pairs:
        for way, is_back, slots in ways:
            ends = (after, before) if is_back else (before, after)
            job.add_group(f"{way} {ends[0]} to {ends[1]}{again}", ends, slot=slots)
    if has_tied_group(spec, layout):
        job.add_group(f"tied weight {first}, {last}", (first, last), slot=Slot.TIED)
