"""The ends of a Transformer as steps: tokens to vectors, and vectors to loss.

The vocabulary is split over the tensor group, so a reduction follows the lookup,
and the loss takes three small ones: largest logit, sum, and the target's logit.
"""

from __future__ import annotations

from dataclasses import replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import FP32_BYTES, Linear, elementwise
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.chains import norm_steps
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.shapes import embedding_parameters, head_parameters
from perfmodel.workloads.transformer.spec import Head
from perfmodel.workloads.transformer.steps import (
    PartSteps,
    Step,
    TransformerRun,
    communication,
    pointwise,
)


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

    def chain(pieces: tuple[chains.Piece, ...]) -> list[Step]:
        return chains.chain_steps(pieces, label, elements=elements, dtype=run.dtype)

    if not reductions:
        return chain(chains.COMPILED_LOSS if run.fuses(Fusion.ELEMENTWISE) else chains.LOSS)
    largest, *others = reductions
    return [*chain(chains.SPLIT_LOSS_HEAD), largest, *chain(chains.SPLIT_LOSS_TAIL), *others]


def _loss_backward(linears: LinearSteps, vocab: int) -> list[Step]:
    """From the loss to gradients of the logits."""
    run, label, elements = linears.run, "head/loss backward", linears.tokens * vocab
    if run.fuses(Fusion.CROSS_ENTROPY):
        kernel = elementwise("cross_entropy", elements, run.dtype, row_length=vocab)
        return [Step("CrossEntropyBackward", label, (kernel,))]
    pieces: tuple[chains.Piece, ...] = chains.LOSS_BACKWARD
    if run.layout.tp > 1:
        pieces = chains.SPLIT_LOSS_BACKWARD
    elif run.fuses(Fusion.ELEMENTWISE):
        pieces = chains.COMPILED_LOSS_BACKWARD
    return chains.chain_steps(pieces, label, elements=elements, dtype=run.dtype)
