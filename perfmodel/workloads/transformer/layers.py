"""A Transformer layer as steps: attention and feed-forward, forward and backward.

Norms, residuals and dropout of post-norm models are counted as those of
pre-norm ones: the same kernels run in another order. Where chains of pointwise
kernels are fused, a residual is added by the kernel of the norm behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import dropout, dropout_residual, elementwise
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.chains import norm_steps
from perfmodel.workloads.transformer.core_attention import attention_steps
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Step
from perfmodel.workloads.transformer.shapes import LayerShape, layer_shape
from perfmodel.workloads.transformer.spec import Positions, Recompute


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The steps of a layer on one rank; *recompute* runs before *backward*.

    *casts* turn weights into the format of products, as often as `StageWriter` finds necessary.
    Layers of one *kind* have equal steps, labelled within the layer.
    """

    kind: tuple[bool, bool]
    casts: tuple[Step, ...]
    forward: tuple[Step, ...]
    recompute: tuple[Step, ...]
    backward: tuple[Step, ...]


class LayerKinds:
    """The steps of every layer: equal ones are made once."""

    def __init__(self, run: TransformerRun) -> None:
        self._run = run
        self._known: dict[tuple[bool, bool], LayerSteps] = {}

    def steps(self, layer: int) -> LayerSteps:
        """The steps of *layer* for one micro-batch."""
        spec = self._run.spec
        kind = (spec.model.has_window(layer), spec.training.recomputes(layer))
        if kind not in self._known:
            has_window, is_recomputed = kind
            self._known[kind] = _build(self._run, has_window=has_window, again=is_recomputed)
        return self._known[kind]


def _build(run: TransformerRun, *, has_window: bool, again: bool) -> LayerSteps:
    maker = _LayerMaker(run, has_window=has_window)
    forward = maker.forward()
    recompute: tuple[Step, ...] = ()
    way = run.spec.training.recompute
    if again and way is Recompute.FULL:
        recompute = forward
    elif again and way is Recompute.ATTENTION:
        recompute = tuple(maker.attention(Pass.FORWARD))
    elif again and way is Recompute.OPS:
        recompute = maker.without_every_second_product()
    kind = (has_window, again)
    return LayerSteps(kind, maker.casts(), forward, _labelled_again(recompute), maker.backward())


def _labelled_again(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(replace(step, label=f"recompute/{step.label}") for step in steps)


class _LayerMaker:
    def __init__(self, run: TransformerRun, *, has_window: bool) -> None:
        self._run, self._spec, self._has_window = run, run.spec, has_window
        self._shape: LayerShape = layer_shape(run.spec.model, tp=run.layout.tp)
        self._products = ProductSteps(run, run.tokens)

    def casts(self) -> tuple[Step, ...]:
        products = self._shape.products.items()
        return tuple(
            step
            for label, linear in products
            for step in self._products.weight_casts(linear, label)
        )

    def forward(self) -> tuple[Step, ...]:
        products, shape = self._products, self._shape
        return (
            *norm_steps(products, "attention/norm forward"),
            *products.wide(shape.qkv, "attention/qkv"),
            *self._rotary("attention/rotary forward", is_backward=False),
            *self.attention(Pass.FORWARD),
            *products.narrow(shape.projection, "attention/projection"),
            *self._residual("attention"),
            *norm_steps(products, "ffn/norm forward"),
            *products.wide(shape.up, "ffn/up"),
            *self._activation("ffn/activation forward", is_backward=False),
            *products.narrow(shape.down, "ffn/down"),
            *self._residual("ffn"),
        )

    def without_every_second_product(self) -> tuple[Step, ...]:
        products, shape = self._products, self._shape
        return (
            *norm_steps(products, "attention/norm forward"),
            *products.wide(shape.qkv, "attention/qkv"),
            *self._rotary("attention/rotary forward", is_backward=False),
            *self._residual("attention"),
            *norm_steps(products, "ffn/norm forward"),
            *products.wide(shape.up, "ffn/up"),
            *self._activation("ffn/activation forward", is_backward=False),
        )

    def backward(self) -> tuple[Step, ...]:
        products, shape = self._products, self._shape
        return (
            *self._dropout_backward("ffn/dropout backward"),
            *products.narrow_backward(shape.down, "ffn/down"),
            *self._activation("ffn/activation backward", is_backward=True),
            *products.wide_backward(shape.up, "ffn/up"),
            *self._norm_backward("ffn"),
            *self._dropout_backward("attention/dropout backward"),
            *products.narrow_backward(shape.projection, "attention/projection"),
            *self.attention(Pass.BACKWARD),
            *self._rotary("attention/rotary backward", is_backward=True),
            *products.wide_backward(shape.qkv, "attention/qkv"),
            *self._norm_backward("attention"),
        )

    def attention(self, direction: Pass) -> list[Step]:
        return attention_steps(self._run, direction, has_window=self._has_window)

    def _rotary(self, label: str, *, is_backward: bool) -> list[Step]:
        if self._spec.model.positions is not Positions.ROTARY:
            return []
        products, width = self._products, self._spec.model.head_width
        queries = products.tokens * self._shape.heads * width
        keys = products.tokens * self._shape.kv_heads * width
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
        products, is_gated = self._products, self._spec.model.gated_ffn
        elements = products.tokens * self._shape.down.inputs
        if not self._run.fuses(Fusion.SWIGLU if is_gated else Fusion.GELU):
            pieces = chains.activation_pieces(is_gated=is_gated, is_backward=is_backward)
            return chains.chain_steps(pieces, label, elements=elements, dtype=products.dtype)
        kernel, operator, inputs = ("swiglu", "swiglu", 2) if is_gated else ("gelu", "gelu", 1)
        reads, writes = (inputs + 1, inputs) if is_backward else (inputs, 1)
        size_bytes = elements * products.dtype.size_bytes
        op = MemoryBound(kernel, reads * size_bytes, writes * size_bytes, products.dtype)
        if is_backward:
            operator = "SwigluBackward" if is_gated else "GeluBackward"
        return [Step(operator, label, (op,))]

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
