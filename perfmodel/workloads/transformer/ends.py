"""The ends of a Transformer as steps: its embedding, and its head with the loss.

The vocabulary is split over the tensor group, so a reduction follows the lookup,
and the loss takes three small ones: largest logit, sum, and the target's logit.
"""

from __future__ import annotations

from dataclasses import replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.workloads.eager import Step, communication, pointwise
from perfmodel.workloads.kernels import FP32_BYTES, Linear, elementwise
from perfmodel.workloads.transformer.chains import chain_name, chain_steps, norm_steps
from perfmodel.workloads.transformer.layers import PartSteps
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.shapes import embedding_parameters, head_parameters
from perfmodel.workloads.transformer.words import Head


def build_embedding_steps(run: TransformerRun) -> PartSteps:
    """Lookup of token vectors, positions added."""
    model, layout, elements = run.spec.model, run.layout, run.tokens * run.spec.model.hidden
    linears = LinearSteps(run, run.tokens, is_end=True)
    # The lookup starts the residual stream and writes its format.
    dtype, label = run.residual_dtype, "embedding/look-up backward"
    size_bytes = elements * dtype.size_bytes
    forward = [pointwise("embedding", "embedding/look-up forward", "embedding", elements, dtype)]
    if layout.tp > 1:
        forward.append(communication(linears.reducing, "embedding/output", size_bytes, dtype))
    if model.max_positions is not None:
        name, split = "embedding/positions forward", linears.split_tokens * model.hidden
        forward.append(pointwise("add", name, "residual_add", split, dtype, reads=2))
    if linears.is_frozen:
        return PartSteps(tuple(forward), ())
    parameters = embedding_parameters(model, tp=layout.tp)
    zero = MemoryBound("zero", 0, parameters * dtype.size_bytes, dtype)
    scatter = elementwise("embedding_backward", elements, dtype, reads=2)
    backward = [Step("EmbeddingBackward", label, (zero, scatter))]
    if layout.is_sequence_parallel:
        name = "embedding/output gradient"
        backward.insert(0, communication(CollectiveKind.ALL_GATHER, name, size_bytes, dtype))
    return PartSteps(tuple(forward), (*backward, *linears.accumulate(parameters, label)))


def build_head_steps(run: TransformerRun) -> PartSteps:
    """Final norm or transformation, logits, and the loss."""
    model, layout = run.spec.model, run.layout
    linears = LinearSteps(run, run.predicted_tokens, is_end=True)
    logits = Linear(model.hidden, -(-model.vocab // layout.tp))
    forward = [
        *linears.weight_casts(logits, "head/logits"),
        *_transform(linears, Pass.FORWARD),
        *norm_steps(linears, "head", Pass.FORWARD),
        *linears.column_parallel(logits, "head/logits"),
        *_loss(linears, logits.outputs, Pass.FORWARD),
    ]
    parameters = head_parameters(model, tp=layout.tp)
    if not model.tied_embeddings:
        parameters -= logits.parameters
    backward = [
        *_loss(linears, logits.outputs, Pass.BACKWARD),
        *linears.column_parallel_backward(logits, "head/logits"),
        *norm_steps(linears, "head", Pass.BACKWARD),
        *_transform(linears, Pass.BACKWARD),
        *linears.accumulate(parameters, "head/norm backward"),
    ]
    if model.tied_embeddings and layout.last_stage == 0:
        # The gradient of a tied weight is complete only after the backward pass of the lookup.
        backward = [
            replace(step, parameters=0) if step.parameters == logits.parameters else step
            for step in backward
        ]
    return PartSteps(tuple(forward), tuple(backward))


def _transform(linears: LinearSteps, direction: Pass) -> list[Step]:
    """The dense layer before the logits of a model that predicts masked tokens."""
    model, label = linears.run.spec.model, f"head/transform {direction.value}"
    if model.head is not Head.MASKED_TOKENS:
        return []
    hidden, dtype = model.hidden, linears.dtype
    elements, linear = linears.tokens * hidden, Linear(hidden, hidden, hidden)
    if direction is Pass.FORWARD:
        dense = Step("linear", label, linears.forward_kernels(linear))
        return [dense, pointwise("gelu", label, "gelu", elements, dtype)]
    gemm = linear.input_gemm(linears.tokens, linears.gemm_dtype)
    return [
        pointwise("GeluBackward", label, "gelu", elements, dtype, reads=2),
        linears.backward_step("AddmmBackward", label, (gemm,), linears.weight_kernels(linear)),
    ]


def _loss(linears: LinearSteps, vocab: int, direction: Pass) -> list[Step]:
    """From logits over *vocab* words of one rank to the loss, or back to their gradients."""
    run, label = linears.run, f"head/loss {direction.value}"
    elements, is_forward = linears.tokens * vocab, direction is Pass.FORWARD
    reductions = [
        communication(
            CollectiveKind.ALL_REDUCE, f"head/loss {what}", linears.tokens * FP32_BYTES, DType.FP32
        )
        for what in ("maximum", "target", "sum")
        if is_forward and run.layout.tp > 1
    ]
    if run.fuses_loss:
        kernel = elementwise(
            "cross_entropy", elements, run.dtype, writes=not is_forward, row_length=vocab
        )
        operator = "cross_entropy_loss" if is_forward else "CrossEntropyBackward"
        return [*reductions, Step(operator, label, (kernel,))]

    def chain(name: str) -> list[Step]:
        return chain_steps(name, label, elements, run.dtype)

    if reductions:
        largest, *others = reductions
        return [*chain("split_loss_head"), largest, *chain("split_loss_tail"), *others]
    word = "compiled_loss" if run.fuses_pointwise else "loss"
    return chain(chain_name("split_loss" if run.layout.tp > 1 else word, direction))
