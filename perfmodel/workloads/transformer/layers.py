"""A Transformer layer as steps: attention and feed-forward, forward and backward.

Norms, residuals and dropout of post-norm models are counted as those of
pre-norm ones: the same kernels run in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Attention, MemoryBound, Pass
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.shapes import LayerShape, layer_shape
from perfmodel.workloads.transformer.spec import Norm, Positions, Recompute, TransformerSpec
from perfmodel.workloads.transformer.steps import Joining, Step


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The steps of every layer of one rank; *recompute* runs before *backward*."""

    forward: tuple[Step, ...]
    recompute: tuple[Step, ...]
    backward: tuple[Step, ...]


def build_layer_steps(spec: TransformerSpec, layout: Layout) -> LayerSteps:
    """The steps of one layer for one micro-batch."""
    maker = _LayerMaker(spec, layout)
    forward = maker.forward()
    recompute: tuple[Step, ...] = ()
    if spec.training.recompute is Recompute.FULL:
        recompute = forward
    elif spec.training.recompute is Recompute.SELECTIVE:
        recompute = (maker.attention(Pass.FORWARD),)
    return LayerSteps(forward, recompute, maker.backward())


def norm_step(products: ProductSteps, label: str, *, is_backward: bool = False) -> Step:
    """A norm over the tokens that one rank sees."""
    model = products.spec.model
    elements = products.split_tokens * model.hidden
    size = products.dtype.size_bytes
    operator = "layer_norm" if model.norm is Norm.LAYER else "rms_norm"
    # The backward pass reads the input and the gradient, once more for the parameters.
    kernel = MemoryBound(
        model.norm.value,
        read_bytes=elements * size * (3 if is_backward else 1),
        write_bytes=elements * size,
        dtype=products.dtype,
        row_length=model.hidden,
    )
    name = "NativeLayerNormBackward" if model.norm is Norm.LAYER else "RmsNormBackward"
    return Step(name if is_backward else operator, label, (kernel,), joins=(Joining.GRADIENT,))


class _LayerMaker:
    def __init__(self, spec: TransformerSpec, layout: Layout) -> None:
        self._spec = spec
        self._layout = layout
        self._shape: LayerShape = layer_shape(spec.model, tp=layout.tp)
        tokens = layout.micro_batch * spec.sequence_length
        self._products = ProductSteps(spec, layout, tokens)

    def forward(self) -> tuple[Step, ...]:
        products, shape = self._products, self._shape
        return (
            norm_step(products, "attention/norm forward"),
            *products.wide(shape.qkv, "attention/qkv"),
            *self._rotary("attention/rotary forward", "rotary"),
            self.attention(Pass.FORWARD),
            *products.narrow(shape.projection, "attention/projection"),
            *self._residual("attention", "forward"),
            norm_step(products, "ffn/norm forward"),
            *products.wide(shape.up, "ffn/up"),
            self._activation("ffn/activation forward", is_backward=False),
            *products.narrow(shape.down, "ffn/down"),
            *self._residual("ffn", "forward"),
        )

    def backward(self) -> tuple[Step, ...]:
        products, shape = self._products, self._shape
        return (
            *self._dropout("ffn/dropout backward", "DropoutBackward"),
            *products.narrow_backward(shape.down, "ffn/down"),
            self._activation("ffn/activation backward", is_backward=True),
            *products.wide_backward(shape.up, "ffn/up"),
            *self._norm_backward("ffn"),
            *self._dropout("attention/dropout backward", "DropoutBackward"),
            *products.narrow_backward(shape.projection, "attention/projection"),
            self.attention(Pass.BACKWARD),
            *self._rotary("attention/rotary backward", "RotaryBackward"),
            *products.wide_backward(shape.qkv, "attention/qkv"),
            *self._norm_backward("attention"),
        )

    def attention(self, direction: Pass) -> Step:
        spec, shape = self._spec, self._shape
        op = Attention(
            batch=self._layout.micro_batch,
            query_length=spec.sequence_length,
            key_length=spec.sequence_length,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=spec.model.head_width,
            dtype=spec.training.precision,
            is_causal=spec.model.causal,
            direction=direction,
            kernel=spec.training.attention.value,
        )
        operator = "scaled_dot_product_attention"
        if direction is Pass.BACKWARD:
            operator = "ScaledDotProductAttentionBackward"
        return Step(operator, f"attention/core {direction.value}", (op,))

    def _rotary(self, label: str, operator: str) -> list[Step]:
        if self._spec.model.positions is not Positions.ROTARY:
            return []
        heads = self._shape.heads + self._shape.kv_heads
        elements = self._products.tokens * heads * self._spec.model.head_width
        return [self._products.pointwise("rotary", label, elements=elements, operator=operator)]

    def _activation(self, label: str, *, is_backward: bool) -> Step:
        products, shape = self._products, self._shape
        numbers = products.tokens * shape.down.inputs * products.dtype.size_bytes
        if self._spec.model.gated_ffn:
            kernel, operator, inputs = "silu_mul", "silu_mul", 2
        else:
            kernel, operator, inputs = "gelu", "gelu", 1
        if is_backward:
            op = MemoryBound(kernel, (inputs + 1) * numbers, inputs * numbers, products.dtype)
            operator = "SiluMulBackward" if self._spec.model.gated_ffn else "GeluBackward"
        else:
            op = MemoryBound(kernel, inputs * numbers, numbers, products.dtype)
        return Step(operator, label, (op,))

    def _dropout(self, label: str, operator: str) -> list[Step]:
        if not self._spec.model.dropout:
            return []
        elements = self._products.split_tokens * self._spec.model.hidden
        return [self._products.pointwise("dropout", label, elements=elements, operator=operator)]

    def _residual(self, where: str, way: str) -> list[Step]:
        elements = self._products.split_tokens * self._spec.model.hidden
        add = self._products.pointwise(
            "residual_add", f"{where}/residual {way}", elements=elements, operator="add", reads=2
        )
        return [*self._dropout(f"{where}/dropout {way}", "dropout"), add]

    def _norm_backward(self, where: str) -> list[Step]:
        label = f"{where}/norm backward"
        elements = self._products.split_tokens * self._spec.model.hidden
        return [
            norm_step(self._products, label, is_backward=True),
            self._products.accumulate(self._shape.norm, label),
            self._products.pointwise(
                "residual_add",
                f"{where}/residual backward",
                elements=elements,
                operator="add",
                reads=2,
            ),
        ]
