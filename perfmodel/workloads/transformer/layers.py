"""The layers of a Transformer as steps, forward and backward.

Norms, residuals and dropout of post-norm models are counted as those of
pre-norm ones: the same kernels run in another order. Where chains of pointwise
kernels are fused, the kernel of the norm after a residual adds it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.eager import Step, pointwise
from perfmodel.workloads.kernels import dropout
from perfmodel.workloads.transformer.attention import attention_steps
from perfmodel.workloads.transformer.chains import (
    activation_steps,
    chain_name,
    chain_steps,
    norm_steps,
)
from perfmodel.workloads.transformer.experts import ExpertSteps
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.shapes import QKV, LayerShapes
from perfmodel.workloads.transformer.words import Positions, Recompute, RecomputedPart, SavedOutput

_JOINING = "further/joining"
LAYER = "layer "
"""What labels of a layer begin with, before its number and a slash."""


@dataclass(frozen=True, slots=True)
class LayerNaming:
    """Labels of layers count from the *first* one of a stretch."""

    first: int

    def take_off(self, label: str) -> str:
        """*label* with its layer counted from the first."""
        number, slash, rest = label.removeprefix(LAYER).partition("/")
        if not (slash and label.startswith(LAYER)):
            return label
        return f"{LAYER}{int(number) - self.first}/{rest}"

    def put_on(self, label: str) -> str:
        """*label* with its layer counted from the model's first."""
        return LayerNaming(-self.first).take_off(label)


@dataclass(frozen=True, slots=True)
class PartSteps:
    """The steps of a layer, of the embedding or of the head; *recompute* runs before *backward*.

    *casts* convert weights to the format of GEMMs, as often as `StageWriter` finds necessary.
    """

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    casts: tuple[Step, ...] = ()
    recompute: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What distinguishes the layers of a model; layers of one kind have equal steps."""

    has_window: bool
    is_recomputed: bool
    is_expert: bool
    is_further: bool = False


def build_layer_steps(run: TransformerRun, kind: LayerKind) -> PartSteps:
    """The steps of a layer of *kind* for one micro-batch, labelled within the layer."""
    maker, way = _LayerMaker(run, kind), run.spec.training.recompute
    forward = maker.forward()
    recompute: list[Step] = []
    if kind.is_recomputed and way is Recompute.FULL:
        recompute = maker.forward(run.spec.training.saved_outputs)
    elif kind.is_recomputed and way is Recompute.ATTENTION:
        recompute = maker.attention(Pass.FORWARD)
    elif kind.is_recomputed and way is Recompute.OPS:
        recompute = maker.without_every_second_gemm()
    if way is not Recompute.FULL or not kind.is_recomputed:
        recompute = recompute + maker.recomputed_parts()
    again = [replace(step, label=f"recompute/{step.label}") for step in recompute]
    return PartSteps(tuple(forward), tuple(maker.backward()), tuple(maker.casts()), tuple(again))


class _LayerMaker:
    """Makes the steps of a layer of *kind*."""

    def __init__(self, run: TransformerRun, kind: LayerKind) -> None:
        self._run, self._model, self._has_window = run, run.spec.model, kind.has_window
        shapes = LayerShapes(run.spec.model, run.layout)
        self._shape = shapes.of_experts if kind.is_expert else shapes.dense
        self._shape = shapes.further if kind.is_further else self._shape
        self._linears = LinearSteps(run, run.tokens)
        self._elements = self._linears.split_tokens * self._model.hidden
        shape = self._shape.experts
        self._experts = None if shape is None else ExpertSteps(self._linears, shape)

    def casts(self) -> list[Step]:
        """The casts of weights to the format of GEMMs."""
        steps: list[Step] = []
        for label, linear in self._shape.linears.items():
            steps += self._linears.weight_casts(linear, label)
        return steps + (self._experts.casts() if self._experts else [])

    def forward(self, saved: Collection[SavedOutput] = ()) -> list[Step]:
        """The forward pass, without what makes *saved* outputs of attention and a dense FFN."""
        linears, shape = self._linears, self._shape
        steps = [
            *(linears.replicated(shape.joining, _JOINING) if shape.joining else ()),
            *self._until_core(is_saved=SavedOutput.QKV in saved),
            *(() if SavedOutput.CORE in saved else self.attention(Pass.FORWARD)),
            *(
                ()
                if SavedOutput.PROJECTION in saved
                else linears.row_parallel(shape.projection, "attention/projection")
            ),
            *self._residual("attention"),
            *norm_steps(linears, "ffn", Pass.FORWARD),
            *(self._experts.forward() if self._experts else ()),
        ]
        if shape.up is not None:
            steps += [*self._feed_forward(saved), *self._add_shared(Pass.FORWARD)]
        return steps + self._residual("ffn")

    def _feed_forward(self, saved: Collection[SavedOutput] = ()) -> list[Step]:
        """The GEMMs of a dense layer or of shared experts, with their activation."""
        shape, linears = self._shape, self._linears
        if shape.up is None or shape.down is None:
            return []
        up = () if SavedOutput.UP in saved else linears.column_parallel(shape.up, "ffn/up")
        down = () if SavedOutput.DOWN in saved else linears.row_parallel(shape.down, "ffn/down")
        return [*up, *self._activation(Pass.FORWARD), *down]

    def without_every_second_gemm(self) -> list[Step]:
        """The forward pass until the down GEMM, without every second GEMM and the core."""
        linears, shape = self._linears, self._shape
        again = shape.every_second(is_gated=self._model.gated_ffn)
        if shape.latent:
            steps = self._until_core()
        else:
            steps = [
                *norm_steps(linears, "attention", Pass.FORWARD),
                *(linears.column_parallel(again[QKV], QKV) if QKV in again else ()),
                *self._rotary(Pass.FORWARD),
                *linears.row_parallel(shape.projection, "attention/projection"),
            ]
        return [
            *steps,
            *self._residual("attention"),
            *norm_steps(linears, "ffn", Pass.FORWARD),
            *(self._experts.without_down() if self._experts else ()),
            *(linears.column_parallel(again["ffn/up"], "ffn/up") if "ffn/up" in again else ()),
            *self._activation(Pass.FORWARD),
        ]

    def recomputed_parts(self) -> list[Step]:
        """The parts of every layer that are recomputed, as far as this one has them."""
        linears, shape, experts = self._linears, self._shape, self._experts
        steps: list[Step] = []
        for part in self._run.spec.training.recompute_modules:
            if part is RecomputedPart.NORMS:
                for where in ("attention", "ffn"):
                    steps += norm_steps(linears, where, Pass.FORWARD)
            elif part is RecomputedPart.CORE:
                steps += self.attention(Pass.FORWARD)
            elif part is RecomputedPart.LATENT and shape.keys is not None:
                steps += linears.column_parallel(shape.qkv, QKV)
                steps += linears.column_parallel(shape.keys, "attention/keys")
                steps += self._rotary(Pass.FORWARD)
            elif part is RecomputedPart.EXPERT_ACTIVATION and experts:
                steps += experts.activation(Pass.FORWARD)
            elif part is RecomputedPart.EXPERTS and experts:
                steps += experts.forward()
            elif part is (RecomputedPart.SHARED_EXPERTS if experts else RecomputedPart.DENSE_FFN):
                steps += self._feed_forward()
        return steps

    def backward(self) -> list[Step]:
        """The backward pass."""
        linears, shape = self._linears, self._shape
        steps = self._dropout("ffn", Pass.BACKWARD)
        if shape.up is not None and shape.down is not None:
            steps += [
                *linears.row_parallel_backward(shape.down, "ffn/down"),
                *self._activation(Pass.BACKWARD),
                *linears.column_parallel_backward(shape.up, "ffn/up"),
                *self._add_shared(Pass.BACKWARD),
            ]
        steps += [
            *(self._experts.backward() if self._experts else ()),
            *self._norm_backward("ffn"),
            *self._dropout("attention", Pass.BACKWARD),
            *linears.row_parallel_backward(shape.projection, "attention/projection"),
            *self.attention(Pass.BACKWARD),
            *self._rotary(Pass.BACKWARD),
        ]
        if shape.keys is not None:
            steps += linears.column_parallel_backward(shape.keys, "attention/keys")
        steps += linears.column_parallel_backward(shape.qkv, QKV)
        if shape.latent is not None:
            steps += [
                *linears.accumulate(shape.latent_norms, "attention/latent norms backward"),
                *linears.replicated_backward(shape.latent, "attention/latent"),
            ]
        steps += self._norm_backward("attention")
        if shape.joining is not None:
            steps += linears.replicated_backward(shape.joining, _JOINING)
        return steps

    def attention(self, direction: Pass) -> list[Step]:
        """The attention core."""
        return attention_steps(self._run, direction, has_window=self._has_window)

    def _until_core(self, *, is_saved: bool = False) -> list[Step]:
        """From the input to queries, keys and values; only the norm if these are saved."""
        linears, shape = self._linears, self._shape
        steps = norm_steps(linears, "attention", Pass.FORWARD)
        if is_saved:
            return steps
        if shape.latent is not None:
            steps += linears.replicated(shape.latent, "attention/latent")
        steps += linears.column_parallel(shape.qkv, QKV)
        if shape.keys is not None:
            steps += linears.column_parallel(shape.keys, "attention/keys")
        return steps + self._rotary(Pass.FORWARD)

    def _rotary(self, direction: Pass) -> list[Step]:
        if self._model.positions is Positions.LEARNED:
            return []
        linears, shape, label = self._linears, self._shape, f"attention/rotary {direction.value}"
        width, key_heads = self._model.head_width, shape.kv_heads
        if shape.latent is not None:
            # Only the part beside each head is rotated, and all keys share one.
            width, key_heads = self._model.rope_dim, 1
        sizes = [linears.tokens * heads * width for heads in (shape.heads, key_heads)]
        is_known = self._model.positions is Positions.ROTARY or self._run.fuses_pointwise
        if is_known and self._run.stack.fuses(Fusion.ROTARY):
            operator = "rotary" if direction is Pass.FORWARD else "RotaryBackward"
            return [pointwise(operator, label, "rotary", sum(sizes), linears.dtype)]
        name = chain_name("rotary", direction)
        of_queries, of_keys = (chain_steps(name, label, size, linears.dtype) for size in sizes)
        return of_queries + of_keys

    def _activation(self, direction: Pass) -> list[Step]:
        if self._shape.down is None:
            return []
        elements = self._linears.tokens * self._shape.down.inputs
        return activation_steps(self._linears, elements, "ffn/activation", direction)

    def _dropout(self, where: str, direction: Pass) -> list[Step]:
        if not self._model.dropout:
            return []
        is_backward = direction is Pass.BACKWARD
        op = dropout(self._elements, self._run.dtype, is_backward=is_backward)
        operator = "DropoutBackward" if is_backward else "dropout"
        return [Step(operator, f"{where}/dropout {direction.value}", (op,))]

    def _residual(self, where: str) -> list[Step]:
        label = f"{where}/residual forward"
        if self._model.dropout and self._run.stack.fuses(Fusion.DROPOUT_RESIDUAL):
            # The mask is one byte per number.
            size_bytes = self._elements * self._run.dtype.size_bytes
            written_bytes = size_bytes + self._elements
            op = MemoryBound("dropout_residual", 2 * size_bytes, written_bytes, self._run.dtype)
            return [Step("dropout_residual", label, (op,))]
        return self._dropout(where, Pass.FORWARD) + self._add(label)

    def _norm_backward(self, where: str) -> list[Step]:
        return [
            *norm_steps(self._linears, where, Pass.BACKWARD),
            *self._linears.accumulate(self._shape.norm, f"{where}/norm backward"),
            *self._add(f"{where}/residual backward"),
        ]

    def _add_shared(self, direction: Pass) -> list[Step]:
        """Add the results of shared experts to those of the chosen ones."""
        return self._add(f"ffn/shared experts {direction.value}") if self._experts else []

    def _add(self, label: str) -> list[Step]:
        """The addition of a residual, unless a norm does it."""
        if self._run.fuses_pointwise:
            return []
        dtype = self._run.residual_dtype
        return [pointwise("add", label, "residual_add", self._elements, dtype, reads=2)]
