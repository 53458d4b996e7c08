"""Axes: the parallel degrees of a Transformer, in one table.

Choosing a layout, its faults and bounds, answers, columns of run tables and flags of trainers go
through it. A degree is a field of `parallel` and of `Layout`; what its ranks send each other is
written where the work is. Sequence parallelism has no ranks of its own: it is a switch of the
tensor group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from perfmodel.workloads.transformer.model import counted_blocks
from perfmodel.workloads.transformer.words import RECURRENT, ContextKind, FeedForward, Mixer

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.layout import Layout
    from perfmodel.workloads.transformer.model import ModelSection
    from perfmodel.workloads.transformer.spec import TransformerSpec

MOST_STAGES = 64
SHORTEST_SHARE = 8192
"""Fewest tokens of a sequence per rank: shorter sequences are not split."""
MOST_EXPERT_HOSTS = 8
MOST_UNEVEN = 1.1
"""Longest stage over the mean, if the number of stages does not divide the layers."""


class Divided(Enum):
    """What the ranks of an axis divide among themselves."""

    WIDTHS = "widths"
    LAYERS = "layers"
    TOKENS = "tokens"
    EXPERTS = "experts"
    EXPERT_WIDTHS = "expert widths"
    SEQUENCES = "sequences"


OF_MODEL = (Divided.WIDTHS, Divided.LAYERS, Divided.TOKENS)
"""What the ranks of one copy of the model divide; the others are further copies."""
OF_EXPERTS = (Divided.EXPERTS, Divided.EXPERT_WIDTHS)
"""What ranks of a stage divide once more, in groups of their own."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the values to try of a degree may depend on; *split* has the degrees before it."""

    spec: TransformerSpec
    ranks: int
    ranks_per_host: int
    split: Mapping[str, int]

    @property
    def rest(self) -> int:
        """Ranks over those that divide one copy of the model so far."""
        return self.ranks // group_size(self.split.get, *OF_MODEL)


def _no_faults(_spec: TransformerSpec, _layout: Layout) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Axis:
    """A parallel degree: the *name* of its field, and what its ranks divide.

    A search tries *values*; without, the workload's own size stays. *faults* are reasons why a
    layout is impossible. *meaning* and *columns* describe it in tables of runs, *flags* set it in
    trainers. *manner* is the field of `parallel` that says how its ranks do it.
    """

    name: str
    divided: Divided
    meaning: str
    values: Callable[[Room], Iterable[int]] | None = None
    faults: Callable[[TransformerSpec, Layout], Iterator[str]] = _no_faults
    columns: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    manner: str = ""

    @property
    def is_derived(self) -> bool:
        """Whether it is what the other degrees leave of the ranks."""
        return self.divided is Divided.SEQUENCES

    @property
    def is_always_told(self) -> bool:
        """Whether answers name it even where it is one."""
        return self.divided in (Divided.WIDTHS, Divided.LAYERS, Divided.SEQUENCES)

    def is_told(self, size: int) -> bool:
        """Whether an answer names it where it is *size*."""
        return self.is_always_told or (self.values is not None and size > 1)

    def is_set(self, size: int, model: ModelSection) -> bool:
        """Whether settings of a layout must state it: not where *size* is all there can be."""
        if self.divided in OF_EXPERTS:
            return model.has_experts
        return self.is_always_told or size > 1


def group_size(size_of: Callable[[str], Any], *divided: Divided) -> int:
    """Ranks that divide any of *divided*, if *size_of* says the degree of a field."""
    return math.prod(
        int(size_of(axis.name) or 1) for axis in AXES.values() if axis.divided in divided
    )


def powers_to(most: int) -> list[int]:
    """Powers of two up to *most*."""
    return [1 << exponent for exponent in range(most.bit_length())]


def _tensor_sizes(room: Room) -> list[int]:
    """They divide ranks and heads, on two hosts at most."""
    heads = math.gcd(*(block.model.heads for block, _ in counted_blocks(room.spec.model)))
    most = min(room.ranks_per_host * 2, room.ranks, heads)
    return [tp for tp in powers_to(most) if heads % tp == 0]


def _stage_counts(room: Room) -> list[int]:
    """They divide the layers, or nearly so."""
    layers = room.spec.model.layers
    return [
        pp
        for pp in range(1, min(room.rest, layers, MOST_STAGES) + 1)
        # Embedding and head are counted as a layer each or not at all.
        if layers % pp == 0
        or (layers + 2) % pp == 0
        or -(-layers // pp) * pp <= MOST_UNEVEN * layers
    ]


def _sequence_shares(room: Room) -> list[int]:
    """Only long sequences gain from being split."""
    longest = room.spec.sequence_length // SHORTEST_SHARE
    return powers_to(max(min(longest, room.rest, room.ranks_per_host * 2), 1))


def _expert_divisions(room: Room) -> list[int]:
    """Experts are divided over all ranks of a stage."""
    model, of_stage = room.spec.model, room.ranks // group_size(room.split.get, Divided.LAYERS)
    if not model.has_experts:
        return [room.spec.parallel.ep]
    most = min(of_stage, model.experts, room.ranks_per_host * MOST_EXPERT_HOSTS)
    return [ep for ep in powers_to(most) if model.experts % ep == 0]


def _expert_widths(room: Room) -> list[int]:
    """An expert is on one rank, or over a tensor group."""
    model, tp, ep = room.spec.model, room.split["tp"], room.split["ep"]
    if not model.has_experts:
        return [room.spec.parallel.etp]
    of_stage = room.ranks // group_size(room.split.get, Divided.LAYERS)
    can_split = model.expert_ffn % tp == 0 and of_stage % (ep * tp) == 0
    return [1, tp] if tp > 1 and can_split else [1]


def _tensor_faults(spec: TransformerSpec, layout: Layout) -> Iterator[str]:
    tp, faults = layout.tp, dict[str, None]()
    for block, _ in counted_blocks(spec.model):
        model, key_heads = block.model, block.model.key_heads
        if model.heads % tp and block.mixer is not Mixer.NONE:
            faults[f"heads ({model.heads}) are not divisible by tp={tp}"] = None
        if key_heads % tp and tp % key_heads and block.mixer is not Mixer.NONE:
            faults[f"kv_heads ({key_heads}) are neither a multiple nor a divisor of tp={tp}"] = None
        if model.ffn % tp and block.ffn is FeedForward.DENSE:
            faults[f"ffn ({model.ffn}) is not divisible by tp={tp}"] = None
    yield from faults
    if tp > 1 and spec.parallel.sequence_parallel is not False and spec.sequence_length % tp:
        yield f"sequence_length ({spec.sequence_length}) is not divisible by tp={tp}"


def _context_faults(spec: TransformerSpec, layout: Layout) -> Iterator[str]:
    """Why sequences cannot be shared by cp ranks."""
    cp, tp, length = layout.cp, layout.tp, spec.sequence_length
    # Two mirrored chunks per rank make causal work even.
    parts = 2 * cp * (tp if spec.parallel.sequence_parallel is not False else 1)
    if cp > 1 and length % parts:
        yield f"sequence_length ({length}) is not divisible by 2 x cp x tp = {parts}"
    if spec.parallel.cp_kind is ContextKind.ALL_TO_ALL and spec.model.heads % (tp * cp):
        yield f"heads ({spec.model.heads}) are not divisible by tp x cp = {tp} x {cp}"
    is_recurrent = any(block.mixer in RECURRENT for block, _ in counted_blocks(spec.model))
    if cp > 1 and is_recurrent and spec.parallel.cp_kind is not ContextKind.ALL_TO_ALL:
        yield f"a state passes over whole sequences: cp={cp} needs cp_kind all_to_all"
    if spec.predicted_tokens % cp:
        yield f"predicted tokens ({spec.predicted_tokens}) are not divisible by cp={cp}"


def _expert_faults(spec: TransformerSpec, layout: Layout) -> Iterator[str]:
    """Why experts cannot be spread over the ranks of a stage."""
    model, ep, etp, of_stage = spec.model, layout.ep, layout.etp, layout.ranks_of_stage
    if not model.has_experts:
        if ep * etp > 1:
            yield f"ep={ep} x etp={etp} needs experts, and the model has one"
        return
    if model.experts % ep:
        yield f"experts ({model.experts}) are not divisible by ep={ep}"
    if model.expert_ffn % etp:
        yield f"moe_ffn ({model.expert_ffn}) is not divisible by etp={etp}"
    if of_stage % (ep * etp):
        yield f"{of_stage} ranks of a stage are not divisible by ep x etp = {ep} x {etp}"
    yield from _combined_faults(spec, layout)
    if model.shared_experts * model.expert_ffn % layout.tp:
        yield (
            f"width of shared experts ({model.shared_experts} x {model.expert_ffn}) does not "
            f"divide by tp={layout.tp}"
        )


def _combined_faults(spec: TransformerSpec, layout: Layout) -> Iterator[str]:
    """Why experts cannot be combined with other parallelism and with adapters."""
    parallel, tp = spec.parallel, layout.tp
    if tp > 1 and parallel.sequence_parallel is False:
        yield f"experts under tp={tp} need sequence_parallel: else {tp} ranks send the same tokens"
    is_separate = layout.ep * layout.etp != tp
    if is_separate and parallel.shard_group not in (None, layout.weight_copies):
        yield "a shard_group of some data-parallel ranks cannot be combined with ep"
    if spec.training.adapters_only:
        yield "adapters of experts are not modelled"


def _flags(megatron: str, torchtitan: str, nemo: str) -> dict[str, str]:
    return {
        "Megatron-LM": megatron,
        "torchtitan": f"--parallelism.{torchtitan}",
        "NeMo": f"trainer.strategy.{nemo}",
    }


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            "tp", Divided.WIDTHS, "tensor-parallel ranks", _tensor_sizes, _tensor_faults,
            columns=("tensor_parallel", "tensor_model_parallel_size", "tensor_parallel_size",
                     "tp_size"),
            flags=_flags("--tensor-model-parallel-size {tp}", "tensor_parallel_degree {tp}",
                         "tensor_model_parallel_size={tp}"),
        ),
        Axis(
            "pp", Divided.LAYERS, "pipeline stages", _stage_counts,
            columns=("pipeline_parallel", "pipeline_model_parallel_size",
                     "pipeline_parallel_size", "pp_size"),
            flags=_flags("--pipeline-model-parallel-size {pp}", "pipeline_parallel_degree {pp}",
                         "pipeline_model_parallel_size={pp}"),
        ),
        Axis(
            "cp", Divided.TOKENS, "context-parallel ranks", _sequence_shares, _context_faults,
            columns=("context_parallel",), manner="cp_kind",
            flags=_flags("--context-parallel-size {cp} --cp-comm-type {cp_words}",
                         "context_parallel_degree {cp}", "context_parallel_size={cp}"),
        ),
        Axis(
            "ep", Divided.EXPERTS, "expert-parallel ranks", _expert_divisions, _expert_faults,
            columns=("expert_parallel",),
            flags=_flags("--expert-model-parallel-size {ep}", "expert_parallel_degree {ep}",
                         "expert_model_parallel_size={ep}"),
        ),
        Axis(
            "etp", Divided.EXPERT_WIDTHS,
            "ranks that share the GEMMs of an expert; if empty, as the framework does",
            _expert_widths,
            flags=_flags("--expert-tensor-parallel-size {etp}",
                         "expert_tensor_parallel_degree {etp}",
                         "expert_tensor_parallel_size={etp}"),
        ),
        Axis("dp", Divided.SEQUENCES, "data-parallel ranks"),
    )
}  # fmt: skip
"""Every parallel degree, in the order of settings and answers; what is left is divided last."""
