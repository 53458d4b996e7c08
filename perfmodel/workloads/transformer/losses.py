"""The loss as steps: one kernel over logits as computed, or pieces over logits in fp32.

Where the vocabulary is split over the tensor group, three small reductions
tell every rank the largest logit, the sum and the target's logit.
"""

from __future__ import annotations

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.costs.stacks import Fusion
from perfmodel.graph.ops import MemoryBound
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.steps import Step

_FORWARD, _BACKWARD = "head/loss forward", "head/loss backward"


def loss_forward(products: ProductSteps, vocab: int) -> list[Step]:
    """From logits over *vocab* words of one rank to the loss."""
    is_split = products.layout.tp > 1
    if products.switches.fuses(Fusion.CROSS_ENTROPY):
        kernel = _kernel(products, vocab, writes=0)
        return [*_reductions(products), Step("cross_entropy_loss", _FORWARD, (kernel,))]
    if not is_split:
        return _steps(chains.LOSS, products, vocab, _FORWARD)
    largest, *others = _reductions(products)
    return [
        *_steps(chains.SPLIT_LOSS_HEAD, products, vocab, _FORWARD),
        largest,
        *_steps(chains.SPLIT_LOSS_TAIL, products, vocab, _FORWARD),
        *others,
    ]


def loss_backward(products: ProductSteps, vocab: int) -> list[Step]:
    """From the loss to gradients of the logits."""
    if products.switches.fuses(Fusion.CROSS_ENTROPY):
        kernel = _kernel(products, vocab, writes=1)
        return [Step("CrossEntropyBackward", _BACKWARD, (kernel,))]
    is_split = products.layout.tp > 1
    pieces = chains.SPLIT_LOSS_BACKWARD if is_split else chains.LOSS_BACKWARD
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
