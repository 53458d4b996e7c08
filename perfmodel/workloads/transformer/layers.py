"""The layers of a Transformer as steps, its embedding and its head, forward and backward.

Norms, residuals and dropout of post-norm models are counted as those of
pre-norm ones: the same kernels run in another order. Where chains of pointwise
kernels are fused, the kernel of the norm behind a residual adds it.

The vocabulary is split over the tensor group, so a reduction follows the lookup,
and the loss takes three small ones: largest logit, sum, and the target's logit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.kernels import FP32_BYTES, Linear, dropout, elementwise
from perfmodel.workloads.transformer.attention import attention_steps
from perfmodel.workloads.transformer.chains import activation_steps, chain_steps, norm_steps
from perfmodel.workloads.transformer.experts import ExpertSteps
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.shapes import (
    QKV,
    LayerShapes,
    embedding_parameters,
    head_parameters,
)
from perfmodel.workloads.transformer.spec import Head, Positions, Recompute
from perfmodel.workloads.transformer.steps import (
    PartSteps,
    Step,
    TransformerRun,
    communication,
    pointwise,
)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What distinguishes the layers of a model; layers of one kind have equal steps."""

    has_window: bool
    is_recomputed: bool
    is_expert: bool


def build_layer_steps(run: TransformerRun, kind: LayerKind) -> PartSteps:
    """The steps of a layer of *kind* for one micro-batch, labelled within the layer."""
    maker, way = _LayerMaker(run, kind), run.spec.training.recompute
    forward = maker.forward()
    recompute: list[Step] = []
    if kind.is_recomputed and way is Recompute.FULL:
        recompute = forward
    elif kind.is_recomputed and way is Recompute.ATTENTION:
        recompute = maker.attention(Pass.FORWARD)
    elif kind.is_recomputed and way is Recompute.OPS:
        recompute = maker.without_every_second_gemm()
    again = [replace(step, label=f"recompute/{step.label}") for step in recompute]
    return PartSteps(tuple(forward), tuple(maker.backward()), tuple(maker.casts()), tuple(again))


class _LayerMaker:
    """Makes the steps of a layer of *kind*."""

    def __init__(self, run: TransformerRun, kind: LayerKind) -> None:
        self._run, self._model, self._has_window = run, run.spec.model, kind.has_window
        shapes = LayerShapes(run.spec.model, run.layout)
        self._shape = shapes.of_experts if kind.is_expert else shapes.dense
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

    def forward(self) -> list[Step]:
        """The forward pass."""
        linears, shape = self._linears, self._shape
        steps = [
            *self._until_core(),
            *self.attention(Pass.FORWARD),
            *linears.row_parallel(shape.projection, "attention/projection"),
            *self._residual("attention"),
            *norm_steps(linears, "ffn/norm forward"),
            *(self._experts.forward() if self._experts else ()),
        ]
        if shape.up is not None and shape.down is not None:
            steps += [
                *linears.column_parallel(shape.up, "ffn/up"),
                *self._activation("forward"),
                *linears.row_parallel(shape.down, "ffn/down"),
                *self._add_shared("forward"),
            ]
        return steps + self._residual("ffn")

    def without_every_second_gemm(self) -> list[Step]:
        """The forward pass until the down GEMM, without every second GEMM and the core."""
        linears, shape = self._linears, self._shape
        again = shape.every_second(is_gated=self._model.gated_ffn)
        if shape.latent:
            steps = self._until_core()
        else:
            steps = [
                *norm_steps(linears, "attention/norm forward"),
                *(linears.column_parallel(again[QKV], QKV) if QKV in again else ()),
                *self._rotary("forward"),
                *linears.row_parallel(shape.projection, "attention/projection"),
            ]
        return [
            *steps,
            *self._residual("attention"),
            *norm_steps(linears, "ffn/norm forward"),
            *(self._experts.without_down() if self._experts else ()),
            *(linears.column_parallel(again["ffn/up"], "ffn/up") if "ffn/up" in again else ()),
            *self._activation("forward"),
        ]

    def backward(self) -> list[Step]:
        """The backward pass."""
        linears, shape = self._linears, self._shape
        steps = self._dropout("ffn", "backward")
        if shape.up is not None and shape.down is not None:
            steps += [
                *linears.row_parallel_backward(shape.down, "ffn/down"),
                *self._activation("backward"),
                *linears.column_parallel_backward(shape.up, "ffn/up"),
                *self._add_shared("backward"),
            ]
        steps += [
            *(self._experts.backward() if self._experts else ()),
            *self._norm_backward("ffn"),
            *self._dropout("attention", "backward"),
            *linears.row_parallel_backward(shape.projection, "attention/projection"),
            *self.attention(Pass.BACKWARD),
            *self._rotary("backward"),
        ]
        if shape.keys is not None:
            steps += linears.column_parallel_backward(shape.keys, "attention/keys")
        steps += linears.column_parallel_backward(shape.qkv, QKV)
        if shape.latent is not None:
            steps += [
                *linears.accumulate(shape.latent_norms, "attention/latent norms backward"),
                *linears.replicated_backward(shape.latent, "attention/latent"),
            ]
        return steps + self._norm_backward("attention")

    def attention(self, direction: Pass) -> list[Step]:
        """The attention core."""
        return attention_steps(self._run, direction, has_window=self._has_window)

    def _until_core(self) -> list[Step]:
        """From the input to queries, keys and values."""
        linears, shape = self._linears, self._shape
        steps = norm_steps(linears, "attention/norm forward")
        if shape.latent is not None:
            steps += linears.replicated(shape.latent, "attention/latent")
        steps += linears.column_parallel(shape.qkv, QKV)
        if shape.keys is not None:
            steps += linears.column_parallel(shape.keys, "attention/keys")
        return steps + self._rotary("forward")

    def _rotary(self, way: str) -> list[Step]:
        if self._model.positions is not Positions.ROTARY:
            return []
        linears, shape, label = self._linears, self._shape, f"attention/rotary {way}"
        width, key_heads = self._model.head_width, shape.kv_heads
        if shape.latent is not None:
            # Only the part beside each head is rotated, and all keys share one.
            width, key_heads = self._model.rope_dim, 1
        sizes = [linears.tokens * heads * width for heads in (shape.heads, key_heads)]
        is_backward = way == "backward"
        if self._run.fuses(Fusion.ROTARY):
            operator = "RotaryBackward" if is_backward else "rotary"
            return [pointwise(operator, label, "rotary", sum(sizes), linears.dtype)]
        chain = "rotary_backward" if is_backward else "rotary"
        return [
            step
            for elements in sizes
            for step in chain_steps(chain, label, elements=elements, dtype=linears.dtype)
        ]

    def _activation(self, way: str) -> list[Step]:
        if self._shape.down is None:
            return []
        elements, label = self._linears.tokens * self._shape.down.inputs, f"ffn/activation {way}"
        return activation_steps(self._linears, elements, label, is_backward=way == "backward")

    def _dropout(self, where: str, way: str) -> list[Step]:
        if not self._model.dropout:
            return []
        is_backward = way == "backward"
        op = dropout(self._elements, self._run.dtype, is_backward=is_backward)
        operator = "DropoutBackward" if is_backward else "dropout"
        return [Step(operator, f"{where}/dropout {way}", (op,))]

    def _residual(self, where: str) -> list[Step]:
        label = f"{where}/residual forward"
        if self._model.dropout and self._run.fuses(Fusion.DROPOUT_RESIDUAL):
            # The mask is one byte per number.
            size_bytes = self._elements * self._run.dtype.size_bytes
            written_bytes = size_bytes + self._elements
            op = MemoryBound("dropout_residual", 2 * size_bytes, written_bytes, self._run.dtype)
            return [Step("dropout_residual", label, (op,))]
        return self._dropout(where, "forward") + self._add(label)

    def _norm_backward(self, where: str) -> list[Step]:
        label = f"{where}/norm backward"
        return [
            *norm_steps(self._linears, label, is_backward=True),
            *self._linears.accumulate(self._shape.norm, label),
            *self._add(f"{where}/residual backward"),
        ]

    def _add_shared(self, way: str) -> list[Step]:
        """Add the results of shared experts to those of the chosen ones."""
        return [] if self._experts is None else self._add(f"ffn/shared experts {way}")

    def _add(self, label: str) -> list[Step]:
        """The addition of a residual, unless a norm does it."""
        if self._run.fuses(Fusion.ELEMENTWISE):
            return []
        dtype = self._run.residual_dtype
        return [pointwise("add", label, "residual_add", self._elements, dtype, reads=2)]


def build_embedding_steps(run: TransformerRun) -> PartSteps:
    """Lookup of token vectors, positions added."""
    model, layout, tokens = run.spec.model, run.layout, run.tokens
    linears = LinearSteps(run, tokens, is_end=True)
    # The lookup starts the residual stream and writes its format.
    dtype, label = run.residual_dtype, "embedding/look-up backward"
    elements = tokens * model.hidden
    forward = [pointwise("embedding", "embedding/look-up forward", "embedding", elements, dtype)]
    if layout.tp > 1:
        kind = CollectiveKind.ALL_REDUCE
        if layout.is_sequence_parallel:
            kind = CollectiveKind.REDUCE_SCATTER
        output_bytes = elements * dtype.size_bytes
        forward.append(communication(kind, "embedding/output", output_bytes, dtype))
    if model.max_positions is not None:
        elements = linears.split_tokens * model.hidden
        name = "embedding/positions forward"
        forward.append(pointwise("add", name, "residual_add", elements, dtype, reads=2))
    if linears.is_frozen:
        return PartSteps(tuple(forward), ())
    parameters, elements = embedding_parameters(model, tp=layout.tp), tokens * model.hidden
    zero = MemoryBound("zero", 0, parameters * dtype.size_bytes, dtype)
    scatter = elementwise("embedding_backward", elements, dtype, reads=2)
    backward = [Step("EmbeddingBackward", label, (zero, scatter))]
    if layout.is_sequence_parallel:
        name, size_bytes = "embedding/output gradient", elements * dtype.size_bytes
        backward.insert(0, communication(CollectiveKind.ALL_GATHER, name, size_bytes, dtype))
    return PartSteps(tuple(forward), (*backward, *linears.accumulate(parameters, label)))


def build_head_steps(run: TransformerRun) -> PartSteps:
    """Final norm or transformation, logits, and the loss."""
    model, layout = run.spec.model, run.layout
    tokens = layout.micro_batch * run.spec.predicted_tokens // layout.cp
    linears = LinearSteps(run, tokens, is_end=True)
    logits = Linear(model.hidden, -(-model.vocab // layout.tp))
    forward = [
        *linears.weight_casts(logits, "head/logits"),
        *_transform(linears, "forward"),
        *norm_steps(linears, "head/norm forward"),
        *linears.column_parallel(logits, "head/logits"),
        *_loss_forward(linears, logits.outputs),
    ]
    parameters = head_parameters(model, tp=layout.tp)
    if not model.tied_embeddings:
        parameters -= logits.parameters
    backward = [
        *_loss_backward(linears, logits.outputs),
        *linears.column_parallel_backward(logits, "head/logits"),
        *norm_steps(linears, "head/norm backward", is_backward=True),
        *_transform(linears, "backward"),
        *linears.accumulate(parameters, "head/norm backward"),
    ]
    if model.tied_embeddings and layout.pp == 1:
        # The gradient of a tied weight is complete only after the backward pass of the lookup.
        backward = [
            replace(step, parameters=0) if step.parameters == logits.parameters else step
            for step in backward
        ]
    return PartSteps(tuple(forward), tuple(backward))


def _transform(linears: LinearSteps, way: str) -> list[Step]:
    """The dense layer before the logits of a model that predicts masked tokens."""
    model, label = linears.run.spec.model, f"head/transform {way}"
    if model.head is not Head.MASKED_TOKENS:
        return []
    hidden, dtype = model.hidden, linears.dtype
    elements, linear = linears.tokens * hidden, Linear(hidden, hidden, hidden)
    if way == "forward":
        dense = Step("linear", label, linears.forward_kernels(linear))
        return [dense, pointwise("gelu", label, "gelu", elements, dtype)]
    gemm = linear.input_gemm(linears.tokens, linears.gemm_dtype)
    return [
        pointwise("GeluBackward", label, "gelu", elements, dtype, reads=2),
        Step("AddmmBackward", label, (gemm, *linears.weight_kernels(linear))),
    ]


def _loss_forward(linears: LinearSteps, vocab: int) -> list[Step]:
    """From logits over *vocab* words of one rank to the loss."""
    run, label, elements = linears.run, "head/loss forward", linears.tokens * vocab
    reductions = [
        communication(
            CollectiveKind.ALL_REDUCE,
            f"head/loss {what}",
            linears.tokens * FP32_BYTES,
            DType.FP32,
        )
        for what in ("maximum", "target", "sum")
        if run.layout.tp > 1
    ]
    if run.fuses(Fusion.CROSS_ENTROPY):
        kernel = elementwise("cross_entropy", elements, run.dtype, writes=0, row_length=vocab)
        return [*reductions, Step("cross_entropy_loss", label, (kernel,))]

    chain = partial(chain_steps, label=label, elements=elements, dtype=run.dtype)
    if not reductions:
        return chain("compiled_loss" if run.fuses(Fusion.ELEMENTWISE) else "loss")
    largest, *others = reductions
    return [*chain("split_loss_head"), largest, *chain("split_loss_tail"), *others]


def _loss_backward(linears: LinearSteps, vocab: int) -> list[Step]:
    """From the loss to gradients of the logits."""
    run, label, elements = linears.run, "head/loss backward", linears.tokens * vocab
    if run.fuses(Fusion.CROSS_ENTROPY):
        kernel = elementwise("cross_entropy", elements, run.dtype, row_length=vocab)
        return [Step("CrossEntropyBackward", label, (kernel,))]
    chain = "loss_backward"
    if run.layout.tp > 1:
        chain = "split_loss_backward"
    elif run.fuses(Fusion.ELEMENTWISE):
        chain = "compiled_loss_backward"
    return chain_steps(chain, label, elements=elements, dtype=run.dtype)
