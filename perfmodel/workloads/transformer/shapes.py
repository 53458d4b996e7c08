"""Shapes: parameters of a Transformer, how parallelism divides them, and its FLOPs.

FLOPs are those of GEMMs and attention, counted as in published figures: two
operations per multiply-add. Attention counts every pair of tokens, masked or not; a
window counts the pairs inside it. A weight is multiplied forward, for the gradient
of its input and, unless it is frozen, for its own gradient.
Source of the counting: Chowdhery et al., arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.workloads.family import IterationFlops
from perfmodel.workloads.kernels import Linear
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.spec import ModelSection, TrainingSection, TransformerSpec
from perfmodel.workloads.transformer.words import AdapterPlaces, Head, Norm, Positions, Recompute

QKV = "attention/qkv"
_BEFORE_CORE = ("attention/latent", QKV, "attention/keys")


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The router, whole on every rank, and both GEMMs of each of the *held* experts."""

    router: Linear
    up: Linear
    down: Linear
    held: int


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer as one rank of a tensor group has it.

    The first of each pair of GEMMs is split by outputs, the second by inputs, so that a bias of
    the second is whole on every rank. In a layer of experts *up* and *down* are those of the
    shared experts, if there are any. In latent attention *latent* makes the latent vectors, whole
    on every rank, and *keys* makes keys and values from them. A layer that predicts further tokens
    joins its input with the next embedding by *joining*, whole on every rank.
    """

    qkv: Linear
    projection: Linear
    up: Linear | None
    down: Linear | None
    norm: int
    heads: int
    kv_heads: int
    latent: Linear | None = None
    keys: Linear | None = None
    latent_norms: int = 0
    experts: ExpertShape | None = None
    joining: Linear | None = None

    @property
    def linears(self) -> dict[str, Linear]:
        """The GEMMs that a tensor group shares or repeats, by label, without those of experts."""
        named = {
            "further/joining": self.joining,
            "attention/latent": self.latent,
            QKV: self.qkv,
            "attention/keys": self.keys,
            "attention/projection": self.projection,
            "ffn/router": self.experts.router if self.experts else None,
            "ffn/up": self.up,
            "ffn/down": self.down,
        }
        return {label: linear for label, linear in named.items() if linear is not None}

    def every_second(self, *, is_gated: bool) -> dict[str, Linear]:
        """GEMMs that are recomputed where every second one is kept, without those of experts.

        Models with a gate issue queries, keys, values, projection, gate, up and down one by one.
        Others issue the first three as one, and their last one is never needed again. Latent
        attention recomputes everything before its core.
        """
        if self.latent is not None:
            again = {name: one for name, one in self.linears.items() if name in _BEFORE_CORE}
        else:
            again = {"attention/projection": self.projection}
        if is_gated and self.latent is None:
            again[QKV] = _part(self.qkv, (self.qkv.outputs - self.projection.inputs) // 2)
        if is_gated and self.up is not None:
            again["ffn/up"] = _part(self.up, self.up.outputs // 2)
        return again

    @property
    def attention_outputs(self) -> int:
        """Numbers per token that the GEMMs of attention write before its core."""
        return sum(one.outputs for one in (self.latent, self.qkv, self.keys) if one is not None)

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every weight, bias and norm of the layer, without its experts."""
        linears = self.linears.values()
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias]
        latent = (self.latent_norms,) if self.latent else ()
        return (*weights, *biases, *latent, self.norm, self.norm)

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
    model: ModelSection,
    *,
    tp: int,
    ep: int = 1,
    etp: int = 1,
    is_expert: bool = False,
    is_further: bool = False,
) -> LayerShape:
    """The shape of one layer, of experts or dense, on one of *tp* ranks."""
    hidden, heads = model.hidden, model.heads // tp
    kv_rank, q_rank = model.kv_lora_rank or 0, model.q_lora_rank or 0
    kv_heads = heads if kv_rank else max(1, model.key_heads // tp)
    ffn = (model.shared_experts * model.expert_ffn if is_expert else model.ffn) // tp

    def linear(inputs: int, outputs: int) -> Linear:
        return Linear(inputs, outputs, outputs if model.bias else 0)

    def feed_forward(width: int) -> tuple[Linear, Linear]:
        return linear(hidden, 2 * width if model.gated_ffn else width), linear(width, hidden)

    qkv = linear(hidden, (heads + 2 * kv_heads) * model.head_width)
    if kv_rank:
        qkv = linear(q_rank or hidden, heads * model.query_width)
    up, down = feed_forward(ffn)
    router = linear(hidden, model.experts)
    experts = ExpertShape(router, *feed_forward(model.expert_ffn // etp), model.experts // ep)
    return LayerShape(
        qkv=qkv,
        projection=linear(heads * model.head_width, hidden),
        up=up if ffn else None,
        down=down if ffn else None,
        norm=norm_parameters(model),
        heads=heads,
        kv_heads=kv_heads,
        latent=linear(hidden, q_rank + kv_rank + model.rope_dim) if kv_rank else None,
        keys=linear(kv_rank, 2 * heads * model.head_width) if kv_rank else None,
        latent_norms=q_rank + kv_rank,
        experts=experts if is_expert else None,
        joining=linear(2 * hidden, hidden) if is_further else None,
    )


class LayerShapes:
    """The shapes of dense layers and of layers of experts on a rank of *layout*."""

    def __init__(self, model: ModelSection, layout: Layout) -> None:
        self._model, self._layout = model, layout
        self.dense = layer_shape(model, tp=layout.tp)
        self.of_experts = self.dense
        if model.has_experts:
            split = {"ep": layout.ep, "etp": layout.etp}
            self.of_experts = layer_shape(model, tp=layout.tp, is_expert=True, **split)
        self.further = replace(
            self.of_experts, joining=layer_shape(model, tp=layout.tp, is_further=True).joining
        )

    def of(self, layer: int) -> LayerShape:
        """The shape of *layer*."""
        if layer >= self._model.layers:
            return self.further
        return self.of_experts if self._model.is_expert_layer(layer) else self.dense

    def of_stage(self, stage: int) -> list[LayerShape]:
        """The shapes of all layers of *stage*."""
        runs = self._layout.layer_runs(self._model.layers, stage=stage)
        return [self.of(layer) for run in runs for layer in run]

    def total(self, stage: int, count: Callable[[LayerShape], int]) -> int:
        """The sum of *count* over all layers of *stage*; equal layers are counted once."""
        times: dict[int, int] = {}
        shapes = {id(shape): shape for shape in (self.dense, self.of_experts, self.further)}
        for shape in self.of_stage(stage):
            times[id(shape)] = times.get(id(shape), 0) + 1
        return sum(count(shapes[key]) * number for key, number in times.items())


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
        layer_shape(model, tp=1, is_expert=model.is_expert_layer(layer)).all_parameters
        for layer in range(model.layers)
    )
    return layers + embedding_parameters(model, tp=1) + head_parameters(model, tp=1)


def multiplied_parameters(model: ModelSection) -> int:
    """Weights of one layer that multiply a token; of experts the chosen ones."""
    shape = layer_shape(model, tp=1, is_expert=model.has_experts)
    weights = sum(linear.weight for linear in shape.linears.values())
    if shape.experts is None:
        return weights
    return weights + model.top_k * (shape.experts.up.weight + shape.experts.down.weight)


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
    model, training, length = spec.model, spec.training, spec.sequence_length
    shape = layer_shape(
        model,
        tp=1,
        is_expert=model.is_expert_layer(layer),
        is_further=layer >= model.layers,
    )
    weights = {label: linear.weight for label, linear in shape.linears.items()}
    if shape.experts is not None:
        weights["ffn/experts up"] = model.top_k * shape.experts.up.weight
        weights["ffn/experts down"] = model.top_k * shape.experts.down.weight
    gemms = 2 * length * sum(weights.values())
    adapters = 2 * length * sum(shape.adapter_tensors(training))
    seen = spec.packed_length
    if model.window is not None and model.has_window(layer):
        seen = min(seen, model.window)
    # Scores, and the mixture of values: two operations each per pair and number.
    core = 2 * length * seen * model.heads * (model.query_width + model.head_width)
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
