"""Shapes: parameters of a Transformer, and how tensor and pipeline parallelism divide them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.spec import (
    AdapterPlaces,
    Head,
    ModelSection,
    Norm,
    Positions,
    TrainingSection,
)

QKV = "attention/qkv"
_BEFORE_CORE = ("attention/latent", QKV, "attention/keys")


@dataclass(frozen=True, slots=True)
class Linear:
    """A fully connected layer as one rank has it; *bias* counts its elements."""

    inputs: int
    outputs: int
    bias: int = 0

    @property
    def parameters(self) -> int:
        """Elements of weight and bias."""
        return self.inputs * self.outputs + self.bias

    def adapter_parameters(self, rank: int) -> int:
        """Elements of the two products of inner width *rank* that are trained beside it."""
        return rank * (self.inputs + self.outputs)


@dataclass(frozen=True, slots=True)
class LatentShape:
    """What makes latent vectors, whole on every rank, and what makes keys and values of them."""

    down: Linear
    keys: Linear
    norms: int


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The router, whole on every rank, and both products of each of the *held* experts."""

    router: Linear
    up: Linear
    down: Linear
    held: int


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer as one of *tp* ranks has it.

    The first of each pair of products is split by outputs, the second by
    inputs, so that a bias of the second is whole on every rank. In a layer of
    experts *up* and *down* are those of the shared ones, if there are any.
    """

    qkv: Linear
    projection: Linear
    up: Linear | None
    down: Linear | None
    norm: int
    heads: int
    kv_heads: int
    latent: LatentShape | None = None
    experts: ExpertShape | None = None

    @property
    def parameters(self) -> int:
        """Elements a rank holds of one layer, both norms included, experts aside."""
        return sum(self.tensors)

    @property
    def products(self) -> dict[str, Linear]:
        """The products that a tensor group shares or repeats, by label; those of experts aside."""
        named = {
            "attention/latent": self.latent.down if self.latent else None,
            QKV: self.qkv,
            "attention/keys": self.latent.keys if self.latent else None,
            "attention/projection": self.projection,
            "ffn/router": self.experts.router if self.experts else None,
            "ffn/up": self.up,
            "ffn/down": self.down,
        }
        return {label: linear for label, linear in named.items() if linear is not None}

    def every_second(self, *, is_gated: bool) -> dict[str, Linear]:
        """Products that are computed again where every second one is kept, experts aside.

        Models with a gate issue queries, keys, values, projection, gate, up and down one by one;
        others join the first three, and nobody needs their last one again. Latent attention
        computes everything before its core again.
        """
        if self.latent is not None:
            again = {name: one for name, one in self.products.items() if name in _BEFORE_CORE}
        else:
            again = {"attention/projection": self.projection}
        if is_gated and self.latent is None:
            again[QKV] = _part(self.qkv, (self.qkv.outputs - self.projection.inputs) // 2)
        if is_gated and self.up is not None:
            again["ffn/up"] = _part(self.up, self.up.outputs // 2)
        return again

    @property
    def attention_outputs(self) -> int:
        """Numbers a token that attention's products write before its core."""
        if self.latent is None:
            return self.qkv.outputs
        return self.latent.down.outputs + self.qkv.outputs + self.latent.keys.outputs

    @property
    def expert_tensors(self) -> tuple[int, ...]:
        """Elements of the stacked weights of the experts that a rank holds."""
        if self.experts is None:
            return ()
        held = self.experts.held
        return held * self.experts.up.parameters, held * self.experts.down.parameters

    @property
    def all_parameters(self) -> int:
        """Elements a rank holds of one layer, its experts included."""
        return self.parameters + sum(self.expert_tensors)

    def adapter_tensors(self, training: TrainingSection) -> tuple[int, ...]:
        """Elements of every adapter of the layer."""
        return tuple(
            training.adapter_rank * width
            for label, product in self.products.items()
            if has_adapter(training, label)
            for width in (product.inputs, product.outputs)
        )

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every weight, bias and norm of the layer."""
        products = self.products.values()
        weights = [product.inputs * product.outputs for product in products]
        biases = [product.bias for product in products if product.bias]
        latent = (self.latent.norms,) if self.latent else ()
        return (*weights, *biases, *latent, self.norm, self.norm)


def _part(linear: Linear, outputs: int) -> Linear:
    return Linear(linear.inputs, outputs, outputs if linear.bias else 0)


def has_adapter(training: TrainingSection, label: str) -> bool:
    """Whether an adapter is trained beside the product called *label*."""
    is_everywhere = training.adapter_places is AdapterPlaces.ALL
    return training.adapters_only and (is_everywhere or label == QKV)


@lru_cache(maxsize=1024)
def layer_shape(
    model: ModelSection, *, tp: int, ep: int = 1, etp: int = 1, is_expert: bool = False
) -> LayerShape:
    """The shape of one layer, of experts or dense, on one of *tp* ranks."""
    heads = model.heads // tp
    latent = _latent_shape(model, heads) if model.kv_lora_rank else None
    kv_heads = heads if latent else max(1, model.key_heads // tp)
    ffn = (model.shared_experts * model.expert_ffn if is_expert else model.ffn) // tp
    qkv = _linear(model, model.hidden, (heads + 2 * kv_heads) * model.head_width)
    if latent:
        qkv = _linear(model, model.q_lora_rank or model.hidden, heads * model.query_width)
    up, down = _feed_forward(model, ffn)
    return LayerShape(
        qkv=qkv,
        projection=_linear(model, heads * model.head_width, model.hidden),
        up=up if ffn else None,
        down=down if ffn else None,
        norm=norm_parameters(model),
        heads=heads,
        kv_heads=kv_heads,
        latent=latent,
        experts=_expert_shape(model, ep, etp) if is_expert else None,
    )


def _linear(model: ModelSection, inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, outputs if model.bias else 0)


def _feed_forward(model: ModelSection, ffn: int) -> tuple[Linear, Linear]:
    """Both products of a feed-forward network of width *ffn*."""
    up = _linear(model, model.hidden, 2 * ffn if model.gated_ffn else ffn)
    return up, _linear(model, ffn, model.hidden)


def _expert_shape(model: ModelSection, ep: int, etp: int) -> ExpertShape:
    up, down = _feed_forward(model, model.expert_ffn // etp)
    router = _linear(model, model.hidden, model.experts)
    return ExpertShape(router, up, down, held=model.experts // ep)


def _latent_shape(model: ModelSection, heads: int) -> LatentShape:
    keys, queries = model.kv_lora_rank or 0, model.q_lora_rank or 0
    return LatentShape(
        down=_linear(model, model.hidden, queries + keys + model.rope_dim),
        keys=_linear(model, keys, 2 * heads * model.head_width),
        norms=queries + keys,
    )


class LayerShapes:
    """The shapes of dense layers and of layers of experts on a rank of *layout*."""

    def __init__(self, model: ModelSection, layout: Layout) -> None:
        self._model = model
        self.dense = layer_shape(model, tp=layout.tp)
        self.of_experts = self.dense
        if model.has_experts:
            split = {"ep": layout.ep, "etp": layout.etp}
            self.of_experts = layer_shape(model, tp=layout.tp, is_expert=True, **split)

    def of(self, layer: int) -> LayerShape:
        """The shape of *layer*."""
        return self.of_experts if self._model.is_expert_layer(layer) else self.dense

    def of_stage(self, layout: Layout, stage: int) -> list[LayerShape]:
        """The shapes of all layers of *stage*."""
        runs = layout.layer_runs(self._model.layers, stage=stage)
        return [self.of(layer) for run in runs for layer in run]

    def total(self, layout: Layout, stage: int, count: Callable[[LayerShape], int]) -> int:
        """What *count* says of all layers of *stage*; equal layers are asked once."""
        shapes = self.of_stage(layout, stage)
        of_experts = sum(shape is self.of_experts for shape in shapes)
        dense = len(shapes) - of_experts
        return of_experts * count(self.of_experts) + (dense and dense * count(self.dense))


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
    """Elements a rank holds of what turns vectors into logits, a tied weight aside."""
    vocab = -(-model.vocab // tp)
    elements = 0 if model.tied_embeddings else vocab * model.hidden
    if model.head is Head.MASKED_TOKENS:
        # A dense layer, its norm, and a bias of the tied product.
        elements += model.hidden * (model.hidden + 1) + norm_parameters(model) + vocab
    else:
        elements += norm_parameters(model)
    if model.pooler:
        elements += model.hidden * (model.hidden + 1)
    return elements


def multiplied_parameters(model: ModelSection) -> int:
    """Weights of one layer that a token is multiplied with, of experts the chosen ones."""
    shape = layer_shape(model, tp=1, is_expert=model.has_experts)
    products = sum(linear.inputs * linear.outputs for linear in shape.products.values())
    if shape.experts is None:
        return products
    chosen = (shape.experts.up, shape.experts.down)
    return products + model.top_k * sum(one.inputs * one.outputs for one in chosen)


def parameter_count(model: ModelSection) -> int:
    """Parameters of the whole model."""
    whole = LayerShapes(model, Layout(tp=1, pp=1, dp=1, micro_batch=1, micro_batches=1))
    return (
        embedding_parameters(model, tp=1)
        + sum(whole.of(layer).all_parameters for layer in range(model.layers))
        + head_parameters(model, tp=1)
    )


def active_parameter_count(model: ModelSection) -> int:
    """Parameters that one token passes through.

    Of a table that is only looked up a token reads one row, and the table is left out.
    """
    looked_up = 0 if model.tied_embeddings else model.vocab * model.hidden
    count = parameter_count(model) - looked_up
    if not model.has_experts:
        return count
    shape = layer_shape(model, tp=1, is_expert=True)
    idle = sum(shape.expert_tensors) * (model.experts - model.top_k) // model.experts
    return count - (model.layers - model.dense_layers) * idle


def end_parameters(model: ModelSection, layout: Layout, *, stage: int) -> int:
    """Elements a rank of pipeline *stage* holds outside layers.

    A tied weight stands on the first and on the last stage.
    """
    tp, elements = layout.tp, 0
    if stage == 0:
        elements += embedding_parameters(model, tp=tp)
    if stage == layout.pp - 1:
        elements += head_parameters(model, tp=tp)
        if model.tied_embeddings and layout.pp > 1:
            elements += -(-model.vocab // tp) * model.hidden
    return elements


def stage_parameters(model: ModelSection, layout: Layout, *, stage: int) -> int:
    """Elements a rank of pipeline *stage* holds, those of routed experts aside."""
    of_layers = LayerShapes(model, layout).total(layout, stage, lambda shape: shape.parameters)
    return of_layers + end_parameters(model, layout, stage=stage)


def stage_expert_parameters(model: ModelSection, layout: Layout, *, stage: int) -> int:
    """Elements a rank of pipeline *stage* holds of routed experts."""
    return LayerShapes(model, layout).total(layout, stage, lambda shape: sum(shape.expert_tensors))
