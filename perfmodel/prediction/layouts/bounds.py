"""Bounds: a lower bound on the replayed time of a layout, without building its job.

A layer takes at least the time it adds to a job of one tensor group (with the ranks of its sequence
and expert groups). That job is replayed once per group size, micro-batch and recomputation. A stage
runs all its micro-batches; the stages before it run theirs before its first and after its last one.
All-gathers of sharded weights run one after the other on one stream. Optimizer, gradient reduction,
transfers between stages and contention are left out.

Many layouts share a rough bound, which also leaves out recomputation and how tokens reach experts.
A routed one leaves out recomputation only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np

from collectives import price_collective
from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_alike
from perfmodel.execution.executor import SerialExecutor
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication, MemoryBound
from perfmodel.graph.tables import Tables
from perfmodel.prediction.layouts.candidates import Candidate
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.jobs import apply_stack_defaults
from perfmodel.workloads.transformer.axes import OF_EXPERTS, Divided, group_size
from perfmodel.workloads.transformer.job import build_alike
from perfmodel.workloads.transformer.layout_choice import choose_layout
from perfmodel.workloads.transformer.model import blocks_of, commonest_block, one_layer_of
from perfmodel.workloads.transformer.shapes import LayerShapes
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Recompute, StateSharding
from topologies import Cluster, build_cluster

_OF_LAYER = (Divided.WIDTHS, Divided.TOKENS)
_HEAD_SHARE = 0.8
"""The least share of the head in both ends of the model; it runs on the last stage."""


class Closeness(IntEnum):
    """What a bound counts, each more than the one before."""

    ROUGH = 0
    ROUTED = 1
    CLOSE = 2


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Time that a layer and both ends of the model add per micro-batch in one tensor group."""

    layer_ns: int
    ends_ns: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A job of one layer whose time bounds layouts; *is_rough* leaves the routing of tokens out."""

    spec: TransformerSpec
    is_rough: bool = False


class Bounds:
    """Lower bounds of layouts of one model on one machine under one stack."""

    def __init__(self, cluster: Cluster, stack: SoftwareStack) -> None:
        self._cluster = replace(cluster, topology=cluster.topology.sound)
        self._stack = stack
        self._times_of: dict[Layer, LayerTimes] = {}
        self._gather_ns = cache(self._price_gather)

    def take(self, layers: Sequence[Layer], times: Sequence[LayerTimes]) -> None:
        """Store *times* that were measured elsewhere."""
        self._times_of.update(zip(layers, times, strict=True))

    @property
    def is_begun(self) -> bool:
        """Whether any layer was measured."""
        return bool(self._times_of)

    def has(self, layer: Layer) -> bool:
        """Whether *layer* was measured."""
        return layer in self._times_of

    def bound_ns(self, candidate: Candidate, closeness: Closeness = Closeness.CLOSE) -> int:
        """A lower bound on the iteration time of *candidate*."""
        layout, spec = candidate.chosen.layout, candidate.spec
        layer = layer_of(candidate, closeness)
        if layer not in self._times_of:
            self._times_of[layer] = measure_layer((self._cluster, self._stack), layer)
        times, model = self._times_of[layer], spec.model
        # Layers of other kinds are left out, which keeps the bound low; a window costs less.
        counted, blocks = commonest_block(model), blocks_of(model)
        stages = [
            float(times.layer_ns)
            * sum(
                blocks[number].costs_no_less(counted)
                for run in layout.layer_runs(model.layers, stage=stage)
                for number in run
            )
            for stage in range(layout.pp)
        ]
        # The head is by far the more expensive end, and it is on the last stage.
        stages[layout.last_stage] += times.ends_ns * (1.0 if layout.pp == 1 else _HEAD_SHARE)
        before, longest = 0.0, 0.0
        for stage_ns in stages:
            longest = max(longest, layout.micro_batches * stage_ns + before)
            if not layout.order.splits_backward:
                # The others fill the time before the last stage can start.
                before += stage_ns / layout.interleaving
        return int(max(longest, self._gathering_ns(candidate)))

    def _gathering_ns(self, candidate: Candidate) -> float:
        """Time of all all-gathers of sharded weights on their stream, if there are any."""
        layout, spec = candidate.chosen.layout, candidate.spec
        if not spec.parallel.sharding.divides_weights or layout.pp > 1 or layout.shard_ranks == 1:
            return 0.0
        shapes, size_bytes = LayerShapes(spec.model, layout), spec.training.precision.size_bytes
        ranks = tuple(layout.ranks[0, 0, :, 0].tolist())
        # Forward and backward; the last layer of forward is the first of backward.
        layers_ns = sum(
            self._gather_ns(ranks, shapes.of(layer).all_parameters * size_bytes)
            for layer in range(spec.model.layers - 1)
        )
        return layout.micro_batches * 2 * layers_ns

    def _price_gather(self, ranks: tuple[int, ...], size_bytes: int) -> float:
        gather = Collective(CollectiveKind.ALL_GATHER, size_bytes, DType.BF16)
        return price_collective(gather, cluster=self._cluster, ranks=ranks).duration_ns


def measure_layer(shared: tuple[Cluster, SoftwareStack], one: Layer) -> LayerTimes:
    """The times of the layer *one*; a module-level function, so that any worker can run it."""
    return _remembered(shared[0], _Named(shared[1]), one)


class _Named:
    """A stack that is compared by what it says: it has mappings, which cannot be hashed."""

    def __init__(self, stack: SoftwareStack) -> None:
        self.stack, self._text = stack, repr(stack)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=4096)
def _remembered(cluster: Cluster, named: _Named, one: Layer) -> LayerTimes:
    """Neighbouring questions, of a sweep or a page, bound the same layers again."""
    times_ns = replay_layers((cluster, named.stack), one, ((2, 1), (1, 1), (2, 2), (1, 2)))
    twice, once, twice_more, once_more = times_ns
    again = (twice_more - twice) - (once_more - once)
    layer_ns = max(min(twice - once, again), 0)
    return LayerTimes(layer_ns, max(min(once_more - once, once) - layer_ns, 0))


def replay_layers(
    shared: tuple[Cluster, SoftwareStack], one: Layer, sizes: Sequence[tuple[int, int]]
) -> list[int]:
    """The times of jobs of one tensor group, each with so many layers and micro-batches."""
    whole, stack = shared
    ranks = fewest_ranks(one.spec)
    per_host = min(ranks, whole.topology.gpus_per_host)
    # A layer may avoid every fault.
    sound, hosts = whole.topology.sound, -(-ranks // per_host)
    cluster = build_cluster(sound, hosts=hosts, ranks_per_host=per_host)
    tables, jobs = Tables(), list[JobGraph]()
    # Gradients of a single micro-batch are not added to those of others.
    for _, alike in groupby(sizes, key=lambda size: size[1] > 1):
        choices = []
        for layers, rounds in alike:
            model = one.spec.model.model_copy(update={"layers": layers})
            changes = {"batch": one.spec.batch * rounds, "model": model}
            spec = apply_stack_defaults(one.spec.model_copy(update=changes), stack)
            chosen = choose_layout(spec, rank_count=ranks, ranks_per_host=per_host, stack=stack)
            choices.append((spec, chosen))
        jobs += build_alike(choices, stack, tables)
    times_ns = []
    for priced in price_alike(jobs, cluster=cluster, stack=stack):
        durations = _without_routing(priced) if one.is_rough else priced.durations
        replay = SerialExecutor().replay(priced.job, durations, 1)
        times_ns.append(int(replay.iteration_end_ns[-1, 0]))
    return times_ns


def _without_routing(priced: PricedJob) -> DurationTable:
    """Durations without the work between the choice of experts and their GEMMs, and back."""
    job, values_ns = priced.job, priced.durations.values_ns.copy()
    is_routing = np.array(
        [isinstance(op, Communication | MemoryBound) for op in job.ops], dtype=np.bool_
    )
    is_expert = np.array(["/ffn/" in f"/{label}" for label in job.labels], dtype=np.bool_)
    _, first_ranks = np.unique(priced.durations.rank_offset, return_index=True)
    for rank in first_ranks.tolist():
        program = job.program_of(rank)
        rows = priced.durations.rows_of(job, rank)
        values_ns[rows][is_routing[program.op] & is_expert[program.label]] = 0
    return replace(priced.durations, values_ns=values_ns)


def fewest_ranks(spec: TransformerSpec) -> int:
    """Ranks of one stage that share sequences, GEMMs and experts: the fewest copies."""
    size_of = partial(getattr, spec.parallel)
    return math.lcm(group_size(size_of, *_OF_LAYER), group_size(size_of, *OF_EXPERTS))


def layer_of(candidate: Candidate, closeness: Closeness = Closeness.CLOSE) -> Layer:
    """*candidate* reduced to the fields that determine the time of a layer."""
    spec, layout = candidate.spec, candidate.chosen.layout
    parallel: dict[str, Any] = {
        "tp": layout.tp, "pp": 1, "dp": None, "micro_batch": layout.micro_batch,
        "interleaving": 1, "schedule": DEFAULT_SCHEDULE, "sharding": StateSharding.NONE,
        "shard_group": None,
        "sequence_parallel": layout.is_sequence_parallel,
    }  # fmt: skip
    training: dict[str, Any] = {"optimizer": "none", "clip_gradients": False}
    if closeness < Closeness.CLOSE:
        training |= {"recompute": Recompute.NONE, "recompute_modules": ()}
    if closeness is Closeness.ROUGH:
        parallel |= {"dispatcher": None, "expert_overlap": False}
    block = commonest_block(spec.model)
    if not block.has_experts:
        parallel |= {"ep": 1, "etp": 1}
    split = spec.model_copy(update={"parallel": spec.parallel.model_copy(update=parallel)})
    copies = fewest_ranks(split) // layout.ranks_of(*_OF_LAYER)
    return Layer(
        split.model_copy(
            update={
                "batch": layout.micro_batch * copies,
                "model": one_layer_of(block),
                "training": spec.training.model_copy(update=training),
            }
        ),
        is_rough=closeness is Closeness.ROUGH,
    )
