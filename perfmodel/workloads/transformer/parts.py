"""StageParts: the steps that all stages of a job are made of: layers, embedding, head and loss.

The vocabulary is split over the tensor group, so a reduction follows the lookup, and the loss takes
three small ones: largest logit, sum, and the target's logit.

A split backward pass leaves out the kernels that only serve gradients of weights; those of GEMMs
and of experts are computed later. Norms, embeddings and adapters are not split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.workloads.eager import Joining, Step, communication, pointwise
from perfmodel.workloads.kernels import FP32_BYTES, Linear, elementwise
from perfmodel.workloads.repetition import KnownStretches
from perfmodel.workloads.transformer.chains import chain_name, chain_steps, norm_steps
from perfmodel.workloads.transformer.layers import LayerKind, PartSteps, build_layer_steps
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedules import Gradients
from perfmodel.workloads.transformer.shapes import embedding_parameters, head_parameters
from perfmodel.workloads.transformer.words import Head

_OF_WEIGHTS = "weights"


class StageParts:
    """What all stages of runs are made of, and the stretches that were written of them before.

    The runs differ in the number of layers, of which the first has most, and of micro-batches;
    all or none have just one of these.
    """

    def __init__(self, run: TransformerRun) -> None:
        self._run, self._spec = run, run.spec
        self.layer = cache(self._build_layer)
        self.backward = cache(self._build_backward)
        self.embedding = build_embedding_steps(run)
        self.head = build_head_steps(run)
        self.known = KnownStretches()

    def _build_layer(self, kind: LayerKind) -> PartSteps:
        """The steps of a layer; one that predicts further tokens has a head without own weights."""
        layer = build_layer_steps(self._run, kind)
        if not kind.is_further:
            return layer
        again = [replace(step, parameters=0) for step in self.head.backward]
        return replace(
            layer,
            forward=layer.forward + self.head.forward,
            backward=(*again, *layer.backward),
        )

    def kind(self, layer: int) -> LayerKind:
        """What *layer* has in common with others of equal steps."""
        model, training = self._spec.model, self._spec.training
        is_further = layer >= model.layers
        return LayerKind(blocks_of(model)[layer], training.recomputes(layer), is_further)

    def _build_backward(self, kind: LayerKind | None, gradients: Gradients) -> tuple[Step, ...]:
        """The backward steps for *gradients* of a layer of *kind*, or of the head for None."""
        part = self.head if kind is None else self.layer(kind)
        if gradients is Gradients.ALL:
            return part.recompute + part.backward
        of_inputs, of_weights = split_backward(part.backward)
        return part.recompute + of_inputs if gradients is Gradients.INPUTS else of_weights


def split_backward(steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """*steps* for gradients of inputs, and those for gradients of weights."""
    of_inputs, of_weights = list[Step](), list[Step]()
    for step in steps:
        cut, label = len(step.kernels) - step.weight_kernels, f"{step.label} {_OF_WEIGHTS}"
        if step.is_weight:
            # Nothing is left to overlap with.
            of_weights.append(replace(step, label=label, joining=Joining.AT_ONCE, joins=()))
        elif step.weight_kernels:
            of_inputs.append(replace(step, kernels=step.kernels[:cut], weight_kernels=0))
            of_weights.append(Step(step.operator, label, step.kernels[cut:]))
        else:
            of_inputs.append(step)
    return tuple(of_inputs), tuple(of_weights)


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
    return PartSteps(
        tuple(forward), (*backward, *linears.accumulate(parameters, label, is_product=False))
    )


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
    is_wide = run.fuses_loss and run.stack.has(FrameworkBehaviour.WIDE_LOSS)
    if run.fuses_loss and not is_wide:
        kernel = elementwise(
            "cross_entropy", elements, run.dtype, writes=not is_forward, row_length=vocab
        )
        operator = "cross_entropy_loss" if is_forward else "CrossEntropyBackward"
        return [*reductions, Step(operator, label, (kernel,))]

    def chain(name: str) -> list[Step]:
        return chain_steps(name, label, elements, run.dtype)

    if run.layout.tp == 1 and not is_wide:
        return chain(chain_name("compiled_loss" if run.fuses_pointwise else "loss", direction))
    word = "wide_loss" if is_wide else "split_loss"
    if not is_forward:
        return chain(chain_name(word, direction))
    return [*chain(f"{word}_head"), *reductions[:1], *chain(f"{word}_tail"), *reductions[1:]]
