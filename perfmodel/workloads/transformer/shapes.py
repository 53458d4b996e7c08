"""Shapes: parameters of a Transformer, and how tensor and pipeline parallelism divide them."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.spec import Head, ModelSection, Norm, Positions


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
class LayerShape:
    """One layer as one of *tp* ranks has it.

    The first of each pair of products is split by outputs, the second by
    inputs, so that a bias of the second is whole on every rank.
    """

    qkv: Linear
    projection: Linear
    up: Linear
    down: Linear
    norm: int
    heads: int
    kv_heads: int

    @property
    def parameters(self) -> int:
        """Elements a rank holds of one layer, both norms included."""
        return sum(self.tensors)

    @property
    def products(self) -> dict[str, Linear]:
        """The four products by label."""
        return {
            "attention/qkv": self.qkv,
            "attention/projection": self.projection,
            "ffn/up": self.up,
            "ffn/down": self.down,
        }

    def adapter_tensors(self, rank: int) -> tuple[int, ...]:
        """Elements of every adapter of the layer."""
        return tuple(
            rank * width
            for product in self.products.values()
            for width in (product.inputs, product.outputs)
        )

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every weight, bias and norm of the layer."""
        products = self.products.values()
        weights = [product.inputs * product.outputs for product in products]
        biases = [product.bias for product in products if product.bias]
        return (*weights, *biases, self.norm, self.norm)


def layer_shape(model: ModelSection, *, tp: int) -> LayerShape:
    """The shape of one layer on one of *tp* ranks."""
    heads = model.heads // tp
    kv_heads = max(1, model.key_heads // tp)
    width = model.head_width
    qkv_outputs = (heads + 2 * kv_heads) * width
    ffn = model.ffn // tp
    up_outputs = 2 * ffn if model.gated_ffn else ffn
    return LayerShape(
        qkv=Linear(model.hidden, qkv_outputs, qkv_outputs if model.bias else 0),
        projection=Linear(heads * width, model.hidden, model.hidden if model.bias else 0),
        up=Linear(model.hidden, up_outputs, up_outputs if model.bias else 0),
        down=Linear(ffn, model.hidden, model.hidden if model.bias else 0),
        norm=norm_parameters(model),
        heads=heads,
        kv_heads=kv_heads,
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


def parameter_count(model: ModelSection) -> int:
    """Parameters of the whole model."""
    return (
        embedding_parameters(model, tp=1)
        + model.layers * layer_shape(model, tp=1).parameters
        + head_parameters(model, tp=1)
    )


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
    """Elements a rank of pipeline *stage* holds."""
    layers = layout.layer_count(model.layers, stage=stage)
    of_layer = layer_shape(model, tp=layout.tp).parameters
    return layers * of_layer + end_parameters(model, layout, stage=stage)
