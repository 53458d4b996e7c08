"""The choice of a layout: what a workload states of it, completed for a number of ranks.

It takes the fewest ranks per model copy that fit in memory, tensor parallelism in a host first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.base.errors import WorkloadError
from perfmodel.base.units import format_size
from perfmodel.stacks.optimizers import NO_OPTIMIZER, load_optimizers
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, load_schedules
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.family import DEFAULT_MEMORY_BYTES
from perfmodel.workloads.transformer.axes import (
    AXES,
    OF_MODEL,
    Divided,
    group_size,
    powers_to,
)
from perfmodel.workloads.transformer.layout import Layout, split_layers_by_cost
from perfmodel.workloads.transformer.memory import memory_of_stages
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.shapes import multiplied_parameters
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import StageSplit, StateSharding

USABLE_SHARE = 0.9
_MICRO_BATCHES_PER_STAGE = 4
_MOST_MICRO_BATCHES = 2**16
_ENDS = 2


@dataclass(frozen=True, slots=True)
class ChosenLayout:
    """A layout, whether it fits in the memory it was chosen for, and the peak of its ranks.

    One that fits *is_safe* if it leaves a tenth of the memory: predicted peaks are not exact.
    """

    layout: Layout
    fits: bool
    sentence: str
    peak_bytes: int
    is_safe: bool


def choose_layout(
    spec: TransformerSpec,
    *,
    rank_count: int,
    ranks_per_host: int,
    stack: SoftwareStack,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> ChosenLayout:
    """The layout that *spec* states, completed for *rank_count* ranks of *memory_bytes* each.

    Chains that *stack* does not fuse keep more activations.
    """
    candidates = _candidates(spec, rank_count, ranks_per_host)
    if not candidates:
        raise WorkloadError(_explain(spec, rank_count, ranks_per_host))
    usable_bytes = int(memory_bytes * USABLE_SHARE)
    needed: list[int] = []
    for layout in candidates:
        needed.append(peak_bytes(spec, layout, stack))
        if needed[-1] <= usable_bytes:
            grown = _grow_micro_batch(spec, layout, stack, usable_bytes)
            most = needed[-1] if grown is layout else peak_bytes(spec, grown, stack)
            return _described(spec, grown, most, memory_bytes)
    least = min(needed)
    return _described(spec, candidates[needed.index(least)], least, memory_bytes)


def peak_bytes(spec: TransformerSpec, layout: Layout, stack: SoftwareStack) -> int:
    """Peak memory of the rank that needs most."""
    return max(
        memory.total_bytes for memory in memory_of_stages(TransformerRun(spec, layout, stack))
    )


def _candidates(spec: TransformerSpec, rank_count: int, ranks_per_host: int) -> list[Layout]:
    """The possible layouts with their smallest micro-batch, fewest ranks per model copy first."""
    parallel, model = spec.parallel, spec.model
    tps = [parallel.tp] if parallel.tp else powers_to(min(ranks_per_host, rank_count))
    if parallel.pp:
        pps = [parallel.pp]
    elif parallel.sharding.divides_weights:
        pps = [1]
    else:
        pps = [pp for pp in powers_to(rank_count) if model.layers % pp == 0]
    layouts = [_smallest(spec, tp, pp, rank_count, ranks_per_host) for tp in tps for pp in pps]
    possible = [one for one in layouts if next(_iter_faults(spec, one, rank_count), None) is None]
    # A further stage costs more than a wider tensor split, so pipelines come last among equals.
    return sorted(possible, key=lambda layout: (layout.tp * layout.pp, layout.pp))


def _smallest(
    spec: TransformerSpec, tp: int, pp: int, rank_count: int, ranks_per_host: int
) -> Layout:
    """The layout of tp x pp with the smallest micro-batch."""
    parallel = spec.parallel
    split = {one: getattr(parallel, one) for one in AXES} | {"tp": tp, "pp": pp}
    sharers = group_size(split.get, Divided.TOKENS)
    split["dp"] = dp = rank_count // (tp * pp * sharers)
    is_folded = pp > 1 and load_schedules()[parallel.schedule].is_folded
    micro_batch = parallel.micro_batch or 1
    return Layout(
        **split,
        micro_batch=micro_batch,
        micro_batches=spec.batch // max(1, dp) // micro_batch,
        is_sequence_parallel=tp > 1 and parallel.sequence_parallel is not False,
        interleaving=2 if is_folded else parallel.interleaving,
        shard=_shard(spec, tp, dp * sharers, ranks_per_host),
        lengths=_lengths(spec, pp),
        runs_beside=parallel.expert_overlap and group_size(split.get, Divided.EXPERTS) > 1,
        further_layers=spec.model.mtp_layers,
        schedule=parallel.schedule,
    )


def _iter_faults(spec: TransformerSpec, layout: Layout, rank_count: int) -> Iterator[str]:
    """Every reason why *layout* is impossible."""
    parallel, dp = spec.parallel, layout.dp
    step = max(1, dp) * layout.micro_batch
    near = spec.batch // step * step
    model = {
        axis.name: size
        for axis in AXES.values()
        if axis.divided in OF_MODEL and axis.is_told(size := getattr(layout, axis.name))
    }
    yield from _iter_axis_faults(spec, layout, is_always_told=True)
    yield from _iter_stage_faults(spec, layout)
    if rank_count % math.prod(model.values()):
        yield (
            f"{rank_count} ranks are not divisible by {' x '.join(model)} = "
            f"{' x '.join(map(str, model.values()))}"
        )
    yield from _iter_axis_faults(spec, layout, is_always_told=False)
    is_cut = parallel.sharding.divides_gradients or spec.training.adapters_only
    optimizer = spec.training.optimizer
    if is_cut and optimizer != NO_OPTIMIZER and load_optimizers()[optimizer].is_orthogonal:
        yield f"optimizer={optimizer} needs whole matrices: sharding none or zero1, and no adapters"
    if parallel.dp is not None and parallel.dp != dp:
        yield (
            f"dp={parallel.dp} is not {rank_count} ranks / "
            f"({' x '.join(f'{name}={size}' for name, size in model.items())}) = {dp}"
        )
    if spec.batch % step:
        yield (
            f"batch ({spec.batch}) is not divisible by dp x micro_batch = {step}; "
            f"near: batch={f'{near} or batch=' if near else ''}{near + step}"
        )
    copies = layout.weight_copies
    if layout.shard == 1:
        yield f"a shard_group of 1 divides nothing among dp={copies} ranks: set sharding=none"
    elif layout.shard is not None and copies % layout.shard:
        yield f"dp={copies} is not divisible by shard_group={layout.shard}"


def _iter_axis_faults(
    spec: TransformerSpec, layout: Layout, *, is_always_told: bool
) -> Iterator[str]:
    for axis in AXES.values():
        if axis.is_always_told is is_always_told:
            yield from axis.faults(spec, layout)


def _iter_stage_faults(spec: TransformerSpec, layout: Layout) -> Iterator[str]:
    """Why layers cannot be spread over stages of several runs."""
    runs, layers, pp = layout.interleaving, spec.model.layers, layout.pp
    lengths, micro_batches = layout.lengths, layout.micro_batches
    if stated := spec.parallel.stage_layers:
        yield from _iter_stated_faults(stated, layers, pp * runs)
    if lengths is not None and min(lengths) < 0:
        yield f"stage {lengths.index(-1) % pp} of pp={pp} would have nothing to do"
    if pp * runs > layers + _ENDS:
        yield f"layers ({layers}) are too few for pp x interleaving = {pp} x {runs}"
    yield from _iter_schedule_faults(spec, pp)
    if runs > 1 and pp == 1:
        yield f"interleaving={runs} needs pipeline stages, but pp=1"
    is_ring = runs > 1 and not layout.is_folded
    if is_ring and spec.parallel.micro_batch and micro_batches % pp:
        yield f"interleaving needs micro-batches ({micro_batches}) that are divisible by pp={pp}"


def _iter_stated_faults(stated: tuple[int, ...], layers: int, runs: int) -> Iterator[str]:
    """Why layers cannot be spread as they are stated."""
    if len(stated) != runs:
        yield f"stage_layers has {len(stated)} virtual stages, not pp x interleaving = {runs}"
    if sum(stated) != layers:
        yield f"stage_layers has {sum(stated)} layers, not {layers}"


def _iter_schedule_faults(spec: TransformerSpec, pp: int) -> Iterator[str]:
    """Why stages cannot take micro-batches in the stated order."""
    parallel = spec.parallel
    known, name = load_schedules(), parallel.schedule
    schedule = known[name]
    if name == DEFAULT_SCHEDULE:
        return
    if pp == 1:
        yield f"schedule={name} needs pipeline stages, but pp=1"
    if parallel.interleaving > 1 and not schedule.interleaves:
        held = "two chunks of layers" if schedule.is_folded else "one chunk of layers"
        yield f"stages of schedule={name} hold {held}: leave interleaving out"
    if parallel.expert_overlap and not schedule.pairs_turns:
        pairing = " or ".join(one for one in known if known[one].pairs_turns)
        yield f"schedule={name} has no turns to overlap: expert_overlap needs {pairing}"


def _explain(spec: TransformerSpec, rank_count: int, ranks_per_host: int) -> str:
    parallel = spec.parallel
    tp, pp = parallel.tp or 1, parallel.pp or 1
    layout = _smallest(spec, tp, pp, rank_count, ranks_per_host)
    faults = _iter_faults(spec, layout, rank_count)
    values = {one: getattr(parallel, one) for one in (*AXES, "micro_batch")}
    stated = ", ".join(
        f"{name}={value}"
        for name, value in values.items()
        if value and (value > 1 or name not in AXES or AXES[name].is_always_told)
    )
    return (
        f"{spec.name} on {rank_count} ranks ({ranks_per_host} per host): no layout is possible"
        f"{f' with {stated}' if stated else ''}: {next(faults, 'nothing divides')}. "
        "Change parallel.*, batch or the number of ranks (--hosts)."
    )


def _lengths(spec: TransformerSpec, pp: int) -> tuple[int, ...] | None:
    """Layers of each run where they are stated, or split by cost."""
    parallel, model = spec.parallel, spec.model
    if parallel.stage_layers is not None:
        return parallel.stage_layers
    if parallel.stages is StageSplit.EQUAL or pp == 1:
        return None
    return split_layers_by_cost(
        pp * parallel.interleaving,
        layer_costs=[*map(multiplied_parameters, blocks_of(model)[: model.layers])],
        head_cost=model.vocab * model.hidden,
    )


def _shard(spec: TransformerSpec, tp: int, dp: int, ranks_per_host: int) -> int | None:
    """Ranks that divide state: as stated, for `hsdp` those of a host, else all of them."""
    parallel = spec.parallel
    if not parallel.sharding.divides_state:
        return None
    if parallel.shard_group is not None:
        return parallel.shard_group if parallel.shard_group != dp else None
    of_host = max(1, ranks_per_host // tp)
    return of_host if parallel.sharding is StateSharding.HSDP and of_host < dp else None


def _grow_micro_batch(
    spec: TransformerSpec, layout: Layout, stack: SoftwareStack, usable_bytes: int
) -> Layout:
    """The largest micro-batch that divides, fits, and leaves a pipeline enough of them."""
    if spec.parallel.micro_batch:
        return layout
    sequences = layout.micro_batch * layout.micro_batches
    least = 1 if layout.pp == 1 else min(sequences, _MICRO_BATCHES_PER_STAGE * layout.pp)
    for count in range(least, min(sequences, _MOST_MICRO_BATCHES) + 1):
        is_even = layout.interleaving == 1 or count % layout.pp == 0
        if sequences % count == 0 and is_even:
            larger = layout.with_micro_batch(sequences // count)
            if peak_bytes(spec, larger, stack) <= usable_bytes:
                return larger
    return layout


def _described(
    spec: TransformerSpec, layout: Layout, needed_bytes: int, memory_bytes: int
) -> ChosenLayout:
    fits = needed_bytes <= memory_bytes
    split = []
    for axis in AXES.values():
        if axis.is_told(size := getattr(layout, axis.name)):
            how = f" ({getattr(spec.parallel, axis.manner).value})" if axis.manner else ""
            split.append(f"{axis.name}={size}{how}, ")
    sentence = (
        f"Layout: {''.join(split)}"
        f"{layout.micro_batches} micro-batches of {layout.micro_batch} sequences per rank"
    )
    if not fits:
        sentence += (
            f"; no layout fits in {format_size(memory_bytes)}, this one needs "
            f"{format_size(needed_bytes)}"
        )
    is_safe = needed_bytes <= int(memory_bytes * USABLE_SHARE)
    return ChosenLayout(layout, fits, sentence + ".", needed_bytes, is_safe)
