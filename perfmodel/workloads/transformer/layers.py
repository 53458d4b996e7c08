"""A Transformer layer as steps: attention and feed-forward, forward and backward.

Norms, residuals and dropout of post-norm models are counted as those of
pre-norm ones: the same kernels run in another order. Where chains of pointwise
kernels are fused, a residual is added by the kernel of the norm behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.graph.ops import Pass
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import dropout, dropout_residual, elementwise
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.chains import norm_steps
from perfmodel.workloads.transformer.core_attention import attention_steps
from perfmodel.workloads.transformer.experts import ExpertSteps
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Step
from perfmodel.workloads.transformer.shapes import QKV, LayerShape, LayerShapes, Linear
from perfmodel.workloads.transformer.spec import Positions, Recompute


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells the layers of a model apart."""

    has_window: bool
    is_recomputed: bool
    is_expert: bool


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The steps of a layer on one rank; *recompute* runs before *backward*.

    *casts* turn weights into the format of products, as often as `StageWriter` finds necessary.
    Layers of one *kind* have equal steps, labelled within the layer.
    """

    kind: LayerKind
    casts: tuple[Step, ...]
    forward: tuple[Step, ...]
    recompute: tuple[Step, ...]
    backward: tuple[Step, ...]


class LayerKinds:
    """The steps of every layer: equal ones are made once."""

    def __init__(self, run: TransformerRun) -> None:
        self._run = run
        self._known: dict[LayerKind, LayerSteps] = {}

    def steps(self, layer: int) -> LayerSteps:
        """The steps of *layer* for one micro-batch."""
        spec = self._run.spec
        model = spec.model
        kind = LayerKind(
            model.has_window(layer), spec.training.recomputes(layer), model.is_expert_layer(layer)
        )
        if kind not in self._known:
            self._known[kind] = _build(self._run, kind)
        return self._known[kind]


def _build(run: TransformerRun, kind: LayerKind) -> LayerSteps:
    maker, again = _LayerMaker(run, kind), kind.is_recomputed
    forward = maker.forward()
    recompute: tuple[Step, ...] = ()
    way = run.spec.training.recompute
    if again and way is Recompute.FULL:
        recompute = forward
    elif again and way is Recompute.ATTENTION:
        recompute = tuple(maker.attention(Pass.FORWARD))
    elif again and way is Recompute.OPS:
        recompute = maker.without_every_second_product()
    return LayerSteps(kind, maker.casts(), forward, _labelled_again(recompute), maker.backward())


def _labelled_again(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(replace(step, label=f"recompute/{step.label}") for step in steps)


class _LayerMaker:
    def __init__(self, run: TransformerRun, kind: LayerKind) -> None:
        self._run, self._spec, self._has_window = run, run.spec, kind.has_window
        shapes = LayerShapes(run.spec.model, run.layout)
        self._shape: LayerShape = shapes.of_experts if kind.is_expert else shapes.dense
        self._products = ProductSteps(run, run.tokens)
        shape = self._shape.experts
        self._experts = None if shape is None else ExpertSteps(self._products, shape)

    def casts(self) -> tuple[Step, ...]:
        products = self._shape.products.items()
        steps = [
            step
            for label, linear in products
            for step in self._products.weight_casts(linear, label)
        ]
        return (*steps, *(self._experts.casts() if self._experts else ()))

    def forward(self) -> tuple[Step, ...]:
        return (
            *self._until_core(),
            *self.attention(Pass.FORWARD),
            *self._products.narrow(self._shape.projection, "attention/projection"),
            *self._residual("attention"),
            *norm_steps(self._products, "ffn/norm forward"),
            *(self._experts.forward() if self._experts else ()),
            *self._feed_forward(),
            *self._residual("ffn"),
        )

    def without_every_second_product(self) -> tuple[Step, ...]:
        products = self._products
        again = self._shape.every_second(is_gated=self._spec.model.gated_ffn)
        steps = self._until_core() if self._shape.latent else self._keys_again(again)
        return (
            *steps,
            *self._residual("attention"),
            *norm_steps(products, "ffn/norm forward"),
            *(self._experts.without_down() if self._experts else ()),
            *(products.wide(again["ffn/up"], "ffn/up") if "ffn/up" in again else ()),
            *self._activation("ffn/activation forward", is_backward=False),
        )

    def _keys_again(self, again: Mapping[str, Linear]) -> list[Step]:
        """What is computed again until the projection's output, *again* the products of it."""
        products = self._products
        return [
            *norm_steps(products, "attention/norm forward"),
            *(products.wide(again[QKV], QKV) if QKV in again else ()),
            *self._rotary("attention/rotary forward", is_backward=False),
            *products.narrow(again["attention/projection"], "attention/projection"),
        ]

    def backward(self) -> tuple[Step, ...]:
        products, shape = self._products, self._shape
        return (
            *self._dropout_backward("ffn/dropout backward"),
            *self._feed_forward_backward(),
            *(self._experts.backward() if self._experts else ()),
            *self._norm_backward("ffn"),
            *self._dropout_backward("attention/dropout backward"),
            *products.narrow_backward(shape.projection, "attention/projection"),
            *self.attention(Pass.BACKWARD),
            *self._rotary("attention/rotary backward", is_backward=True),
            *self._qkv_backward(),
            *self._norm_backward("attention"),
        )

    def _until_core(self) -> list[Step]:
        """From the input to queries, keys and values."""
        products, latent = self._products, self._shape.latent
        steps = norm_steps(products, "attention/norm forward")
        if latent is not None:
            steps += products.local(latent.down, "attention/latent")
        steps += products.wide(self._shape.qkv, "attention/qkv")
        if latent is not None:
            steps += products.wide(latent.keys, "attention/keys")
        return steps + self._rotary("attention/rotary forward", is_backward=False)

    def _qkv_backward(self) -> list[Step]:
        products, latent = self._products, self._shape.latent
        steps = products.wide_backward(self._shape.qkv, "attention/qkv")
        if latent is None:
            return steps
        return [
            *products.wide_backward(latent.keys, "attention/keys"),
            *steps,
            *products.accumulate(latent.norms, "attention/latent norms backward"),
            *products.local_backward(latent.down, "attention/latent"),
        ]

    def _feed_forward(self) -> list[Step]:
        """The network that all tokens pass, if there is one."""
        up, down = self._shape.up, self._shape.down
        if up is None or down is None:
            return []
        return [
            *self._products.wide(up, "ffn/up"),
            *self._activation("ffn/activation forward", is_backward=False),
            *self._products.narrow(down, "ffn/down"),
            *self._add_shared("ffn/shared experts forward"),
        ]

    def _feed_forward_backward(self) -> list[Step]:
        up, down = self._shape.up, self._shape.down
        if up is None or down is None:
            return []
        return [
            *self._products.narrow_backward(down, "ffn/down"),
            *self._activation("ffn/activation backward", is_backward=True),
            *self._products.wide_backward(up, "ffn/up"),
            *self._add_shared("ffn/shared experts backward"),
        ]

    def _add_shared(self, label: str) -> list[Step]:
        """What shared experts made, added to what the chosen ones made."""
        return self._add(label) if self._experts is not None else []

    def attention(self, direction: Pass) -> list[Step]:
        return attention_steps(self._run, direction, has_window=self._has_window)

    def _rotary(self, label: str, *, is_backward: bool) -> list[Step]:
        if self._spec.model.positions is not Positions.ROTARY:
            return []
        products, width = self._products, self._spec.model.head_width
        queries = products.tokens * self._shape.heads * width
        keys = products.tokens * self._shape.kv_heads * width
        if self._shape.latent is not None:
            # Only the part beside each head turns, and all keys share one.
            width = self._spec.model.rope_dim
            queries, keys = products.tokens * self._shape.heads * width, products.tokens * width
        if self._run.fuses(Fusion.ROTARY):
            operator = "RotaryBackward" if is_backward else "rotary"
            return [products.pointwise("rotary", label, elements=queries + keys, operator=operator)]
        pieces = chains.ROTARY_BACKWARD if is_backward else chains.ROTARY
        return [
            step
            for elements in (queries, keys)
            for step in chains.chain_steps(pieces, label, elements=elements, dtype=products.dtype)
        ]

    def _activation(self, label: str, *, is_backward: bool) -> list[Step]:
        if self._shape.down is None:
            return []
        elements = self._products.tokens * self._shape.down.inputs
        return chains.activation_steps(self._products, elements, label, is_backward=is_backward)

    @property
    def _elements(self) -> int:
        return self._products.split_tokens * self._spec.model.hidden

    def _dropout_backward(self, label: str) -> list[Step]:
        if not self._spec.model.dropout:
            return []
        op = dropout(self._elements, self._products.dtype, is_backward=True)
        return [Step("DropoutBackward", label, (op,))]

    def _residual(self, where: str) -> list[Step]:
        dtype, label = self._products.dtype, f"{where}/residual forward"
        has_dropout = self._spec.model.dropout
        if has_dropout and self._run.fuses(Fusion.DROPOUT_RESIDUAL):
            return [Step("dropout_residual", label, (dropout_residual(self._elements, dtype),))]
        steps = []
        if has_dropout:
            op = dropout(self._elements, dtype, is_backward=False)
            steps.append(Step("dropout", f"{where}/dropout forward", (op,)))
        return steps + self._add(label)

    def _norm_backward(self, where: str) -> list[Step]:
        label = f"{where}/norm backward"
        return [
            *norm_steps(self._products, label, is_backward=True),
            *self._products.accumulate(self._shape.norm, label),
            *self._add(f"{where}/residual backward"),
        ]

    def _add(self, label: str) -> list[Step]:
        """The addition of a residual, where no norm does it on the way."""
        if self._run.fuses(Fusion.ELEMENTWISE):
            return []
        dtype = self._run.residual_dtype
        kernel = elementwise("residual_add", self._elements, dtype, reads=2)
        return [Step("add", label, (kernel,))]
