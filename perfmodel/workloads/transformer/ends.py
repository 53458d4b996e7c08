"""The ends of a Transformer as steps: tokens to vectors, and vectors to loss.

The vocabulary is split over the tensor group, so a look-up is followed by a
reduction, and the loss takes three small ones (largest logit, sum, target).
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.chains import norm_steps
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Step
from perfmodel.workloads.transformer.shapes import (
    Linear,
    embedding_parameters,
    head_parameters,
)
from perfmodel.workloads.transformer.spec import Head, TransformerSpec

# Where the vocabulary is split over the tensor group, three small reductions
# tell every rank the largest logit, the sum and the target's logit.


_FORWARD, _BACKWARD = "head/loss forward", "head/loss backward"


def loss_forward(products: ProductSteps, vocab: int) -> list[Step]:
    """From logits over *vocab* words of one rank to the loss."""
    is_split = products.layout.tp > 1
    if products.run.fuses(Fusion.CROSS_ENTROPY):
        kernel = _kernel(products, vocab, writes=0)
        return [*_reductions(products), Step("cross_entropy_loss", _FORWARD, (kernel,))]
    if not is_split:
        is_compiled = products.run.fuses(Fusion.ELEMENTWISE)
        pieces = chains.COMPILED_LOSS if is_compiled else chains.LOSS
        return _steps(pieces, products, vocab, _FORWARD)
    largest, *others = _reductions(products)
    return [
        *_steps(chains.SPLIT_LOSS_HEAD, products, vocab, _FORWARD),
        largest,
        *_steps(chains.SPLIT_LOSS_TAIL, products, vocab, _FORWARD),
        *others,
    ]


def loss_backward(products: ProductSteps, vocab: int) -> list[Step]:
    """From the loss to gradients of the logits."""
    if products.run.fuses(Fusion.CROSS_ENTROPY):
        kernel = _kernel(products, vocab, writes=1)
        return [Step("CrossEntropyBackward", _BACKWARD, (kernel,))]
    is_split = products.layout.tp > 1
    pieces: tuple[chains.Piece, ...] = chains.LOSS_BACKWARD
    if is_split:
        pieces = chains.SPLIT_LOSS_BACKWARD
    elif products.run.fuses(Fusion.ELEMENTWISE):
        pieces = chains.COMPILED_LOSS_BACKWARD
    return _steps(pieces, products, vocab, _BACKWARD)


def _steps(
    pieces: tuple[chains.Piece, ...], products: ProductSteps, vocab: int, label: str
) -> list[Step]:
    elements = products.tokens * vocab
    return chains.chain_steps(pieces, label, elements=elements, dtype=products.dtype)


def _reductions(products: ProductSteps) -> list[Step]:
    if products.layout.tp == 1:
        return []
    size_bytes = products.tokens * DType.FP32.size_bytes
    small = Collective(CollectiveKind.ALL_REDUCE, size_bytes, DType.FP32)
    return [
        Step("all_reduce", f"head/loss {what} all_reduce", collective=small)
        for what in ("maximum", "target", "sum")
    ]


def _kernel(products: ProductSteps, vocab: int, *, writes: int) -> MemoryBound:
    size_bytes = products.tokens * vocab * products.dtype.size_bytes
    return MemoryBound(
        "cross_entropy", size_bytes, writes * size_bytes, products.dtype, row_length=vocab
    )


@dataclass(frozen=True, slots=True)
class EndSteps:
    """Forward and backward steps of one end of the model."""

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]


def build_embedding_steps(run: TransformerRun) -> EndSteps:
    """Look-up of token vectors, positions added."""
    spec, layout, tokens = run.spec, run.layout, run.tokens
    products = ProductSteps(run, tokens, is_end=True)
    # What is looked up starts the residual stream, in the format of that.
    dtype, hidden = run.residual_dtype, spec.model.hidden
    moved_bytes = tokens * hidden * dtype.size_bytes
    gather = MemoryBound("embedding", moved_bytes, moved_bytes, dtype)
    forward = [Step("embedding", "embedding/look-up forward", (gather,))]
    if layout.tp > 1:
        reduce = _reduction(layout, moved_bytes, dtype)
        forward.append(
            Step(reduce.kind.value, f"embedding/output {reduce.kind.value}", collective=reduce)
        )
    if spec.model.max_positions is not None:
        add = elementwise("residual_add", products.split_tokens * hidden, dtype, reads=2)
        forward.append(Step("add", "embedding/positions forward", (add,)))
    parameters = embedding_parameters(spec.model, tp=layout.tp)
    zero = MemoryBound("zero", 0, parameters * dtype.size_bytes, dtype)
    gathered = MemoryBound("embedding_backward", 2 * moved_bytes, moved_bytes, dtype)
    label = "embedding/look-up backward"
    backward = [Step("EmbeddingBackward", label, (zero, gathered))]
    if layout.is_sequence_parallel:
        again = Collective(CollectiveKind.ALL_GATHER, moved_bytes, dtype)
        backward.insert(
            0, Step("all_gather", "embedding/output gradient all_gather", collective=again)
        )
    if products.is_frozen:
        return EndSteps(tuple(forward), ())
    return EndSteps(tuple(forward), (*backward, *products.accumulate(parameters, label)))


def build_head_steps(run: TransformerRun) -> EndSteps:
    """Final norm or transformation, logits, and the loss."""
    spec, layout = run.spec, run.layout
    products = ProductSteps(
        run, layout.micro_batch * spec.predicted_tokens // layout.cp, is_end=True
    )
    logits = Linear(spec.model.hidden, -(-spec.model.vocab // layout.tp))
    forward = [
        *products.weight_casts(logits, "head/logits"),
        *_transform(products, spec),
        *norm_steps(products, "head/norm forward"),
        *products.wide(logits, "head/logits"),
        *loss_forward(products, logits.outputs),
    ]
    parameters = head_parameters(spec.model, tp=layout.tp)
    if not spec.model.tied_embeddings:
        parameters -= logits.parameters
    backward = [
        *loss_backward(products, logits.outputs),
        *products.wide_backward(logits, "head/logits"),
        *norm_steps(products, "head/norm backward", is_backward=True),
        *_transform(products, spec, is_backward=True),
        *products.accumulate(parameters, "head/norm backward"),
    ]
    if spec.model.tied_embeddings and layout.pp == 1:
        backward = [_without_parameters(step, logits.parameters) for step in backward]
    return EndSteps(tuple(forward), tuple(backward))


def _without_parameters(step: Step, parameters: int) -> Step:
    """A tied weight's gradient is complete only after the look-up's backward pass."""
    if step.parameters != parameters:
        return step
    return Step(step.operator, step.label, step.kernels)


def _transform(
    products: ProductSteps, spec: TransformerSpec, *, is_backward: bool = False
) -> list[Step]:
    """The dense layer that a model of masked tokens has before its logits."""
    if spec.model.head is not Head.MASKED_TOKENS:
        return []
    hidden = spec.model.hidden
    elements = products.tokens * hidden
    way = "backward" if is_backward else "forward"
    gelu = products.pointwise(
        "gelu",
        f"head/transform {way}",
        elements=elements,
        operator="GeluBackward" if is_backward else "gelu",
        reads=2 if is_backward else 1,
    )
    linear = Linear(hidden, hidden, hidden)
    dense = products.dense(linear, f"head/transform {way}", is_backward=is_backward)
    return [gelu, dense] if is_backward else [dense, gelu]


def _reduction(layout: Layout, size_bytes: int, dtype: DType) -> Collective:
    kind = CollectiveKind.ALL_REDUCE
    if layout.is_sequence_parallel:
        kind = CollectiveKind.REDUCE_SCATTER
    return Collective(kind, size_bytes=size_bytes, dtype=dtype)
