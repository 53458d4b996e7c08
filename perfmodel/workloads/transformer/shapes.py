"""Shapes: parameters of a Transformer, how parallelism divides them, and its FLOPs.

FLOPs are those of GEMMs and attention, counted as in published figures: two
operations per multiply-add. Attention counts every pair of tokens, masked or not; a
window counts the pairs inside it. A weight is multiplied forward, for the gradient
of its input and, unless it is frozen, for its own gradient.
Source of the counting: Chowdhery et al., arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.workloads.family import IterationFlops
from perfmodel.workloads.kernels import Linear
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.mixers.mixer import QKV, MixerShape
from perfmodel.workloads.transformer.mixers.table import MIXERS
from perfmodel.workloads.transformer.model import Block, ModelSection, blocks_of, counted_blocks
from perfmodel.workloads.transformer.spec import TrainingSection, TransformerSpec
from perfmodel.workloads.transformer.words import (
    AdapterPlaces,
    FeedForward,
    Head,
    Norm,
    Positions,
    Recompute,
)


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The router, whole on every rank, and both GEMMs of each of the *held* experts.

    Where experts see shorter tokens, *shorten* and *lengthen* are whole on every rank.
    """

    router: Linear
    up: Linear
    down: Linear
    held: int
    shorten: Linear | None = None
    lengthen: Linear | None = None


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer as one rank of a tensor group has it.

    The first of each pair of GEMMs is split by outputs, the second by inputs, so that a bias of
    the second is whole on every rank. In a layer of experts *up* and *down* are those of the
    shared experts, if there are any. A layer has a *norm* before its mixer and one before its
    feed-forward network. One that predicts further tokens joins its input with the next embedding
    by *joining*, whole on every rank.
    """

    mixer: MixerShape
    up: Linear | None
    down: Linear | None
    norm: int
    experts: ExpertShape | None = None
    joining: Linear | None = None

    @property
    def linears(self) -> dict[str, Linear]:
        """The GEMMs that a tensor group shares or repeats, by label, without those of experts."""
        experts = self.experts
        named = {
            "further/joining": self.joining,
            **self.mixer.inputs,
            "attention/projection": self.mixer.projection,
            "ffn/router": experts.router if experts else None,
            "ffn/shorten": experts.shorten if experts else None,
            "ffn/lengthen": experts.lengthen if experts else None,
            "ffn/up": self.up,
            "ffn/down": self.down,
        }
        return {label: linear for label, linear in named.items() if linear is not None}

    def every_second(self, *, is_gated: bool) -> dict[str, Linear]:
        """GEMMs that are recomputed where every second one is kept, without those of experts.

        Models with a gate issue queries, keys, values, projection, gate, up and down one by one.
        Others issue the first three as one, and their last one is never needed again. Mixers with
        other GEMMs recompute everything before their core.
        """
        again, projection = dict(self.mixer.inputs), self.mixer.projection
        if self.issues_queries and projection is not None:
            qkv = again.pop(QKV)
            again["attention/projection"] = projection
            if is_gated:
                again[QKV] = _part(qkv, (qkv.outputs - projection.inputs) // 2)
        if is_gated and self.up is not None:
            again["ffn/up"] = _part(self.up, self.up.outputs // 2)
        return again

    @property
    def issues_queries(self) -> bool:
        """Whether queries, keys and values come from the input, and nothing else does."""
        return tuple(self.mixer.inputs) == (QKV,)

    @property
    def norms(self) -> tuple[int, ...]:
        """Elements of the norms before the mixer and the feed-forward network."""
        has_network = self.experts is not None or self.up is not None
        return (self.norm,) * ((self.mixer.projection is not None) + has_network)

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every weight, bias and norm of the layer, without its experts."""
        linears = self.linears.values()
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias]
        extra = (self.mixer.extra,) if self.mixer.extra else ()
        return (*weights, *biases, *extra, *self.norms)

    @property
    def expert_tensors(self) -> tuple[int, ...]:
        """Elements of the stacked weights of the experts that a rank holds."""
        if self.experts is None:
            return ()
        held = self.experts.held
        return held * self.experts.up.parameters, held * self.experts.down.parameters

    @property
    def all_parameters(self) -> int:
        """Elements that a rank holds of one layer, its experts included."""
        return sum(self.tensors) + sum(self.expert_tensors)

    def adapter_tensors(self, training: TrainingSection) -> tuple[int, ...]:
        """Elements of every adapter of the layer."""
        return tuple(
            training.adapter_rank * width
            for label, linear in self.linears.items()
            if has_adapter(training, label)
            for width in (linear.inputs, linear.outputs)
        )


def _part(linear: Linear, outputs: int) -> Linear:
    return Linear(linear.inputs, outputs, outputs if linear.bias else 0)


def has_adapter(training: TrainingSection, label: str) -> bool:
    """Whether an adapter is trained for the GEMM called *label*."""
    is_everywhere = training.adapter_places is AdapterPlaces.ALL
    return training.adapters_only and (is_everywhere or label == QKV)


@lru_cache(maxsize=1024)
def layer_shape(
    block: Block, *, tp: int, ep: int = 1, etp: int = 1, is_further: bool = False
) -> LayerShape:
    """The shape of a layer that is *block* on one of *tp* ranks."""
    model, hidden = block.model, block.model.hidden
    width = {
        FeedForward.DENSE: model.ffn,
        FeedForward.EXPERTS: model.shared_experts * model.expert_ffn,
        FeedForward.NONE: 0,
    }[block.ffn] // tp

    def linear(inputs: int, outputs: int) -> Linear:
        return Linear(inputs, outputs, outputs if model.bias else 0)

    def feed_forward(size: int, inner: int) -> tuple[Linear, Linear]:
        return linear(size, 2 * inner if model.gated_ffn else inner), linear(inner, size)

    up, down = feed_forward(hidden, width) if width else (None, None)
    experts = None
    if block.has_experts:
        inside, router = model.expert_width, linear(hidden, model.experts)
        gemms = feed_forward(inside, model.expert_ffn // etp)
        experts = ExpertShape(router, *gemms, model.experts // ep)
        if inside != hidden:
            pair = Linear(hidden, inside), Linear(inside, hidden)
            experts = ExpertShape(router, *gemms, model.experts // ep, *pair)
    return LayerShape(
        mixer=MIXERS[block.mixer].shape(model, tp=tp),
        up=up,
        down=down,
        norm=norm_parameters(model),
        experts=experts,
        joining=linear(2 * hidden, hidden) if is_further else None,
    )


class LayerShapes:
    """The shapes of all kinds of layers on a rank of *layout*."""

    def __init__(self, model: ModelSection, layout: Layout) -> None:
        self._layers, self._layout, self._blocks = model.layers, layout, blocks_of(model)

    def shape(self, block: Block, *, is_further: bool = False) -> LayerShape:
        """The shape of a layer that is *block*."""
        split = {"tp": self._layout.tp, "ep": self._layout.ep, "etp": self._layout.etp}
        return layer_shape(block, **split, is_further=is_further)

    def of(self, layer: int) -> LayerShape:
        """The shape of *layer*."""
        return self.shape(self._blocks[layer], is_further=layer >= self._layers)

    def of_stage(self, stage: int) -> list[LayerShape]:
        """The shapes of all layers of *stage*."""
        runs = self._layout.layer_runs(self._layers, stage=stage)
        return [self.of(layer) for run in runs for layer in run]

    def total(self, stage: int, count: Callable[[LayerShape], int]) -> int:
        """The sum of *count* over all layers of *stage*; equal layers are counted once."""
        shapes = self.of_stage(stage)
        times = Counter(map(id, shapes))
        return sum(
            count(shape) * times[key] for key, shape in {id(one): one for one in shapes}.items()
        )


def norm_parameters(model: ModelSection) -> int:
    """Elements of one norm: a scale, and for layer norm a shift."""
    return model.hidden * (2 if model.norm is Norm.LAYER else 1)


def embedding_parameters(model: ModelSection, *, tp: int) -> int:
    """Elements a rank holds of what turns tokens into vectors; rows are padded to divide."""
    elements = -(-model.vocab // tp) * model.hidden
    if model.positions is Positions.LEARNED and model.max_positions is not None:
        elements += model.max_positions * model.hidden
    if model.token_types is not None:
        elements += model.token_types * model.hidden + norm_parameters(model)
    return elements


def head_parameters(model: ModelSection, *, tp: int) -> int:
    """Elements a rank holds of what turns vectors into logits, without a tied weight."""
    vocab = -(-model.vocab // tp)
    elements = 0 if model.tied_embeddings else vocab * model.hidden
    if model.head is Head.MASKED_TOKENS:
        # A dense layer, its norm, and a bias of the tied weight.
        elements += model.hidden * (model.hidden + 1) + norm_parameters(model) + vocab
    else:
        elements += norm_parameters(model)
    if model.pooler:
        elements += model.hidden * (model.hidden + 1)
    return elements


def count_parameters(model: ModelSection) -> int:
    """Elements of all weights, biases and norms of *model*; a tied weight counts once."""
    layers = sum(
        number * layer_shape(block, tp=1).all_parameters for block, number in counted_blocks(model)
    )
    return layers + embedding_parameters(model, tp=1) + head_parameters(model, tp=1)


def multiplied_parameters(block: Block) -> int:
    """Weights of a layer that multiply a token; of experts the chosen ones."""
    shape = layer_shape(block, tp=1)
    weights = sum(linear.weight for linear in shape.linears.values())
    if shape.experts is None:
        return weights
    return weights + block.model.top_k * (shape.experts.up.weight + shape.experts.down.weight)


def end_parameters(model: ModelSection, layout: Layout, *, stage: int) -> int:
    """Elements a rank of pipeline *stage* holds outside layers.

    The first and the last stage both hold a tied weight.
    """
    tp, elements = layout.tp, 0
    if stage == 0:
        elements += embedding_parameters(model, tp=tp)
    if stage == layout.last_stage:
        elements += head_parameters(model, tp=tp)
        if model.tied_embeddings and layout.last_stage > 0:
            elements += -(-model.vocab // tp) * model.hidden
    return elements


def stage_parameters(model: ModelSection, layout: Layout, *, stage: int) -> int:
    """Elements a rank of pipeline *stage* holds, without those of routed experts."""
    of_layers = LayerShapes(model, layout).total(stage, lambda shape: sum(shape.tensors))
    return of_layers + end_parameters(model, layout, stage=stage)


def stage_expert_parameters(model: ModelSection, layout: Layout, *, stage: int) -> int:
    """Elements a rank of pipeline *stage* holds of routed experts."""
    return LayerShapes(model, layout).total(stage, lambda shape: sum(shape.expert_tensors))


def count_flops(spec: TransformerSpec) -> IterationFlops:
    """The operations of one iteration of *spec*, in any layout."""
    further = spec.model.mtp_layers
    model, recomputed = (1 + further) * _head_flops(spec), 0
    for layer in range(spec.model.layers + further):
        of_layer, again = _layer_flops(spec, layer)
        model += of_layer
        recomputed += again
    return IterationFlops(
        model_flops=spec.batch * model,
        hardware_flops=spec.batch * (model + recomputed),
        tokens=spec.batch * spec.sequence_length,
        dtype=spec.training.gemm_dtype,
    )


def _layer_flops(spec: TransformerSpec, layer: int) -> tuple[int, int]:
    """Operations of one layer over one sequence, and those that the backward pass repeats."""
    block, training, length = blocks_of(spec.model)[layer], spec.training, spec.sequence_length
    model = block.model
    shape = layer_shape(block, tp=1, is_further=layer >= spec.model.layers)
    weights = {label: linear.weight for label, linear in shape.linears.items()}
    if shape.experts is not None:
        weights["ffn/experts up"] = model.top_k * shape.experts.up.weight
        weights["ffn/experts down"] = model.top_k * shape.experts.down.weight
    gemms = 2 * length * sum(weights.values())
    adapters = 2 * length * sum(shape.adapter_tensors(training))
    core = MIXERS[block.mixer].core_flops(model, length=length, together=spec.packed_length)
    forward = gemms + adapters + core
    backward = gemms * (1 if training.adapters_only else 2) + 2 * (adapters + core)
    again = 0
    if training.recomputes(layer):
        again = {Recompute.FULL: forward, Recompute.ATTENTION: core}.get(training.recompute, 0)
    if training.recomputes(layer) and training.recompute is Recompute.OPS:
        repeated = shape.every_second(is_gated=model.gated_ffn).values()
        of_experts = sum(weights.get(label, 0) for label in ("ffn/router", "ffn/experts up"))
        again = 2 * length * (of_experts + sum(linear.weight for linear in repeated))
    return forward + backward, again


def _head_flops(spec: TransformerSpec) -> int:
    model = spec.model
    weights = model.hidden * model.vocab
    if model.head is Head.MASKED_TOKENS:
        weights += model.hidden * model.hidden
    ways = 2 if spec.training.adapters_only else 3
    return ways * 2 * spec.predicted_tokens * weights
