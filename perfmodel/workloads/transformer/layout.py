"""Layout: how a Transformer job is spread over ranks, given or chosen.

Chosen is the layout with the fewest ranks a model copy that fits in memory,
tensor parallelism inside a host before pipeline stages. Ranks count tensor
position first, then data-parallel position, then pipeline stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.base.errors import WorkloadError
from perfmodel.base.units import format_size
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import DEFAULT_MEMORY_BYTES
from perfmodel.workloads.transformer.memory import memory_of_stages
from perfmodel.workloads.transformer.placement import Layout, deal_by_cost
from perfmodel.workloads.transformer.shapes import multiplied_parameters
from perfmodel.workloads.transformer.spec import StageSplit, StateSharding, TransformerSpec

USABLE_SHARE = 0.9
_MICRO_BATCHES_A_STAGE = 4
_MOST_MICRO_BATCHES = 2**16
_ENDS = 2
_OF_ONE = ("cp", "ep", "etp")


@dataclass(frozen=True, slots=True)
class ChosenLayout:
    """A layout, whether it fits in the memory it was chosen for, and the peak of its ranks."""

    layout: Layout
    fits: bool
    sentence: str
    peak_bytes: int


def choose_layout(
    spec: TransformerSpec,
    *,
    rank_count: int,
    ranks_per_host: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    stack: SoftwareStack | None = None,
) -> ChosenLayout:
    """The layout that *spec* states, completed for *rank_count* ranks of *memory_bytes* each.

    What *stack* does not fuse keeps more activations; left out, everything is fused.
    """
    candidates = [
        layout
        for tp, pp in _iter_splits(spec, rank_count, ranks_per_host)
        if (layout := _smallest_micro_batch(spec, tp, pp, rank_count, ranks_per_host)) is not None
    ]
    if not candidates:
        raise WorkloadError(_explain(spec, rank_count, ranks_per_host))
    usable_bytes = int(memory_bytes * USABLE_SHARE)
    needed: list[int] = []
    for layout in candidates:
        needed.append(peak_bytes(spec, layout, stack))
        if needed[-1] <= usable_bytes:
            grown = _grow_micro_batch(spec, layout, stack, usable_bytes)
            most = needed[-1] if grown is layout else peak_bytes(spec, grown, stack)
            return _described(spec, grown, most, usable_bytes)
    least = min(needed)
    return _described(spec, candidates[needed.index(least)], least, usable_bytes)


def _iter_splits(
    spec: TransformerSpec, rank_count: int, ranks_per_host: int
) -> Iterable[tuple[int, int]]:
    parallel, model = spec.parallel, spec.model
    most = parallel.tp or min(ranks_per_host, rank_count)
    tps = (
        [parallel.tp] if parallel.tp else [tp for tp in _powers(most) if _tp_fault(spec, tp) == ""]
    )
    if parallel.pp:
        pps: list[int] = [parallel.pp]
    elif parallel.sharding.divides_weights:
        pps = [1]
    else:
        pps = [pp for pp in _powers(rank_count) if model.layers % pp == 0]
    splits = [
        (tp, pp)
        for tp in tps
        for pp in pps
        if not _split_fault(spec, tp, pp, rank_count, ranks_per_host)
    ]
    # A stage more is dearer than a wider tensor split, so pipelines come last among equals.
    return sorted(splits, key=lambda split: (split[0] * split[1], split[1]))


def _powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]


def _tp_fault(spec: TransformerSpec, tp: int) -> str:
    model = spec.model
    key_heads = model.key_heads
    if model.heads % tp:
        return f"heads ({model.heads}) do not divide by tp={tp}"
    if key_heads % tp and tp % key_heads:
        return f"kv_heads ({key_heads}) neither divide by tp={tp} nor divide it"
    if model.ffn % tp:
        return f"ffn ({model.ffn}) does not divide by tp={tp}"
    if tp > 1 and spec.parallel.sequence_parallel is not False and spec.sequence_length % tp:
        return f"sequence_length ({spec.sequence_length}) does not divide by tp={tp}"
    return ""


def _context_fault(spec: TransformerSpec, tp: int) -> str:
    """Why sequences cannot be shared by cp ranks, or nothing."""
    cp, length = spec.parallel.cp, spec.sequence_length
    if cp == 1:
        return ""
    # Two mirrored chunks a rank make causal work even.
    parts = 2 * cp * (tp if spec.parallel.sequence_parallel is not False else 1)
    if length % parts:
        return f"sequence_length ({length}) does not divide by 2 x cp x tp = {parts}"
    if spec.predicted_tokens % cp:
        return f"predicted tokens ({spec.predicted_tokens}) do not divide by cp={cp}"
    return ""


def _expert_fault(spec: TransformerSpec, tp: int, ranks_of_stage: int) -> str:
    """Why experts cannot be spread over the ranks of a stage, or nothing."""
    model, parallel = spec.model, spec.parallel
    ep, etp = parallel.ep, parallel.etp
    if not model.has_experts:
        return f"ep={ep} x etp={etp} needs experts, and the model has one" if ep * etp > 1 else ""
    is_apart = ep * etp != tp
    reasons = (
        (model.experts % ep, f"experts ({model.experts}) do not divide by ep={ep}"),
        (model.expert_ffn % etp, f"moe_ffn ({model.expert_ffn}) does not divide by etp={etp}"),
        (
            ranks_of_stage % (ep * etp),
            f"{ranks_of_stage} ranks of a stage do not divide by ep x etp = {ep} x {etp}",
        ),
        (
            tp > 1 and parallel.sequence_parallel is False,
            f"experts under tp={tp} need sequence_parallel: else {tp} ranks send the same tokens",
        ),
        (
            is_apart and parallel.sharding.divides_weights,
            (
                f"sharding={parallel.sharding.value} gathers weights over data-parallel ranks, and "
                f"experts are spread apart from them (ep x etp = {ep} x {etp}, tp={tp})"
            ),
        ),
        (is_apart and parallel.shard_group is not None, "shard_group and ep do not go together"),
        (spec.training.adapters_only, "adapters beside experts are not modelled"),
        (
            model.shared_experts * model.expert_ffn % tp,
            (
                f"width of shared experts ({model.shared_experts} x {model.expert_ffn}) does not "
                f"divide by tp={tp}"
            ),
        ),
    )
    return next((sentence for is_fault, sentence in reasons if is_fault), "")


def _split_fault(
    spec: TransformerSpec, tp: int, pp: int, rank_count: int, ranks_per_host: int
) -> str:
    """The first reason why tp x pp is impossible, or nothing."""
    parallel = spec.parallel
    cp = parallel.cp
    dp = rank_count // (tp * pp * cp)
    context, experts = _context_fault(spec, tp), _expert_fault(spec, tp, rank_count // pp)
    step = max(1, dp) * (parallel.micro_batch or 1)
    near = spec.batch // step * step
    reasons = (
        (_tp_fault(spec, tp), _tp_fault(spec, tp)),
        (_run_fault(spec, pp, near // step), _run_fault(spec, pp, near // step)),
        (
            rank_count % (tp * pp * cp),
            (
                f"{rank_count} ranks do not divide by tp x pp{' x cp' if cp > 1 else ''} = "
                f"{tp} x {pp}{f' x {cp}' if cp > 1 else ''}"
            ),
        ),
        (context, context),
        (experts, experts),
        (
            parallel.dp is not None and parallel.dp != dp,
            (
                f"dp={parallel.dp} is not {rank_count} ranks / (tp={tp} x pp={pp}"
                f"{f' x cp={cp}' if cp > 1 else ''}) = {dp}"
            ),
        ),
        (
            spec.batch % step,
            (
                f"batch ({spec.batch}) does not divide by dp x micro_batch = {step}; "
                f"near: batch={f'{near} or batch=' if near else ''}{near + step}"
            ),
        ),
        (
            _shard_fault(dp * cp, _shard(spec, tp, dp * cp, ranks_per_host)),
            _shard_fault(dp * cp, _shard(spec, tp, dp * cp, ranks_per_host)),
        ),
    )
    return next((sentence for is_fault, sentence in reasons if is_fault), "")


def _run_fault(spec: TransformerSpec, pp: int, micro_batches: int) -> str:
    """Why stages of several runs of layers are impossible, or nothing."""
    runs, layers = spec.parallel.interleaving, spec.model.layers
    lengths = _lengths(spec, pp)
    if lengths is not None and min(lengths) < 0:
        return f"stage {lengths.index(-1) % pp} of pp={pp} would have nothing to do"
    if pp * runs > layers + _ENDS:
        return f"layers ({layers}) are too few for pp x interleaving = {pp} x {runs}"
    if runs == 1:
        return ""
    if pp == 1:
        return f"interleaving={runs} needs pipeline stages, but pp=1"
    if spec.parallel.micro_batch and micro_batches % pp:
        return f"interleaving needs micro-batches ({micro_batches}) that divide by pp={pp}"
    return ""


def _explain(spec: TransformerSpec, rank_count: int, ranks_per_host: int) -> str:
    tp, pp = spec.parallel.tp, spec.parallel.pp
    fault = _split_fault(spec, tp or 1, pp or 1, rank_count, ranks_per_host)
    stated = ", ".join(
        f"{name}={value}"
        for name, value in spec.parallel.model_dump(
            include={"tp", "pp", "dp", "micro_batch", "cp", "ep", "etp"}
        ).items()
        if value is not None and not (name in _OF_ONE and value == 1)
    )
    return (
        f"{spec.name} on {rank_count} ranks ({ranks_per_host} a host): no layout is possible"
        f"{f' with {stated}' if stated else ''}: {fault or 'nothing divides'}. "
        "Change parallel.*, batch or the number of ranks."
    )


def _lengths(spec: TransformerSpec, pp: int) -> tuple[int, ...] | None:
    """Layers of each run where they are dealt by what they cost."""
    parallel, model = spec.parallel, spec.model
    if parallel.stages is StageSplit.EQUAL or pp == 1:
        return None
    return deal_by_cost(
        model.layers,
        pp * parallel.interleaving,
        layer_cost=multiplied_parameters(model),
        head_cost=model.vocab * model.hidden,
    )


def _shard(spec: TransformerSpec, tp: int, dp: int, ranks_per_host: int) -> int | None:
    """Ranks that divide state: as stated, for `hsdp` those of a host, else all of them."""
    parallel = spec.parallel
    if not parallel.sharding.divides_state:
        return None
    if parallel.shard_group is not None:
        return parallel.shard_group if parallel.shard_group != dp else None
    if parallel.sharding is StateSharding.HSDP:
        of_host = max(1, ranks_per_host // tp)
        return of_host if of_host < dp else None
    return None


def _shard_fault(dp: int, shard: int | None) -> str:
    if shard is None or (dp % shard == 0 and shard > 1):
        return ""
    if shard == 1:
        return f"a shard_group of 1 divides nothing among dp={dp} ranks: say sharding=none"
    return f"dp={dp} does not divide by shard_group={shard}"


def _smallest_micro_batch(
    spec: TransformerSpec, tp: int, pp: int, rank_count: int, ranks_per_host: int
) -> Layout | None:
    parallel = spec.parallel
    dp = rank_count // (tp * pp * parallel.cp)
    micro_batch = parallel.micro_batch or 1
    sequences = spec.batch // dp
    if sequences % micro_batch:
        return None
    is_split = spec.parallel.sequence_parallel
    return Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=micro_batch,
        micro_batches=sequences // micro_batch,
        is_sequence_parallel=tp > 1 and is_split is not False,
        interleaving=spec.parallel.interleaving,
        shard=_shard(spec, tp, dp * parallel.cp, ranks_per_host),
        lengths=_lengths(spec, pp),
        cp=parallel.cp,
        ep=parallel.ep,
        etp=parallel.etp,
        expert_hosts=-(-parallel.ep * parallel.etp // ranks_per_host),
    )


def _grow_micro_batch(
    spec: TransformerSpec, layout: Layout, stack: SoftwareStack | None, usable_bytes: int
) -> Layout:
    """The largest micro-batch that divides, fits, and leaves a pipeline enough of them."""
    if spec.parallel.micro_batch:
        return layout
    sequences = layout.micro_batch * layout.micro_batches
    least = 1 if layout.pp == 1 else min(sequences, _MICRO_BATCHES_A_STAGE * layout.pp)
    for count in _divisors(sequences):
        larger = layout.with_micro_batch(sequences // count)
        is_even = layout.interleaving == 1 or count % layout.pp == 0
        if count >= least and is_even and peak_bytes(spec, larger, stack) <= usable_bytes:
            return larger
    return layout


def _divisors(number: int) -> Iterable[int]:
    """Divisors of *number* up to a bound, smallest first; nobody runs more micro-batches."""
    return (
        count for count in range(1, min(number, _MOST_MICRO_BATCHES) + 1) if number % count == 0
    )


def peak_bytes(spec: TransformerSpec, layout: Layout, stack: SoftwareStack | None = None) -> int:
    """What the rank that needs most needs."""
    return max(memory.total_bytes for memory in memory_of_stages(spec, layout, stack=stack))


def _further(spec: TransformerSpec, layout: Layout) -> str:
    """Context and expert parallelism in a sentence, where there are any."""
    words = f"cp={layout.cp} ({spec.parallel.cp_kind.value}), " if layout.cp > 1 else ""
    return words + (f"ep={layout.ep}, " if layout.ep > 1 else "")


def _described(
    spec: TransformerSpec, layout: Layout, needed_bytes: int, usable_bytes: int
) -> ChosenLayout:
    fits = needed_bytes <= usable_bytes
    sentence = (
        f"Layout: tp={layout.tp}, pp={layout.pp}, {_further(spec, layout)}dp={layout.dp}, "
        f"{layout.micro_batches} "
        f"micro-batches of {layout.micro_batch} sequences a rank"
    )
    if not fits:
        sentence += (
            f"; no layout fits in {format_size(usable_bytes)}, this one needs "
            f"{format_size(needed_bytes)}"
        )
    return ChosenLayout(layout, fits, sentence + ".", needed_bytes)
