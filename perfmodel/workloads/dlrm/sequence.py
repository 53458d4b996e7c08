"""Sequence layers of a recommendation model: HSTU over the vectors of a sample's history.

A layer normalises its tokens, projects them to gates, values, queries and keys with one GEMM and
SiLU, attends causally with pointwise weights in place of a softmax, normalises and gates the result
and projects it back, with a residual. Tokens are the looked-up rows of the samples, without
padding. Only the targets at the end of a sequence reach the top layers.

Leaves out: buckets of the relative bias, which the attention kernel reads from a small table, and
dropout. Priced as fused causal attention: a pointwise weight instead of a softmax.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.graph.ops import Attention, MemoryBound, Op, Pass
from perfmodel.workloads.dlrm.dense import (
    SequenceLayer,
    backward_steps,
    encoder_layers,
    forward_steps,
    sequence_layers,
)
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import SequenceSection
from perfmodel.workloads.eager import Step, pointwise


def token_count(run: DlrmRun) -> int:
    """Tokens of a rank."""
    section = run.spec.sequence
    return 0 if section is None else round(run.samples * section.length)


def forward(run: DlrmRun, section: SequenceSection) -> Iterator[Step]:
    """From looked-up vectors to the targets."""
    tokens = token_count(run)
    yield from forward_steps(run, encoder_layers(run.spec), tokens)
    if section.encoder_width:
        # Positions and times of actions.
        yield pointwise(
            "add", "sequence/positions forward", "add", tokens * section.width, run.dtype, reads=3
        )
    for layer in sequence_layers(run.spec):
        yield from _layer_forward(run, section, layer, tokens)
    yield _picked(run, section, "index", "sequence/targets forward")


def backward(run: DlrmRun, section: SequenceSection) -> Iterator[Step]:
    """From the gradients of the targets to those of looked-up vectors."""
    tokens = token_count(run)
    yield _picked(run, section, "IndexBackward", "sequence/targets backward")
    for layer in reversed(sequence_layers(run.spec)):
        yield from _layer_backward(run, section, layer, tokens)
    yield from backward_steps(run, encoder_layers(run.spec), tokens)


def _layer_forward(
    run: DlrmRun, section: SequenceSection, layer: SequenceLayer, tokens: int
) -> Iterator[Step]:
    label, gates = layer.inner.label.removesuffix("/in"), section.heads * section.value_width
    yield _norm(run, tokens, section.width, "layer_norm", f"{label}/norm forward")
    yield from forward_steps(run, (layer.inner,), tokens)
    attention = _attention(run, section, Pass.FORWARD)
    yield Step("hstu_attention", f"{label}/attention forward", (attention,))
    # The attended values are normalised and multiplied by the gates.
    yield _norm(run, tokens, gates, "layer_norm", f"{label}/gate forward", reads=2)
    yield from forward_steps(run, (layer.outer,), tokens)
    residual, elements = f"{label}/residual forward", tokens * section.width
    yield pointwise("add", residual, "residual_add", elements, run.dtype, reads=2)


def _layer_backward(
    run: DlrmRun, section: SequenceSection, layer: SequenceLayer, tokens: int
) -> Iterator[Step]:
    label, gates = layer.inner.label.removesuffix("/in"), section.heads * section.value_width
    yield from backward_steps(run, (layer.outer,), tokens)
    yield _norm(run, tokens, gates, "NormBackward", f"{label}/gate backward", reads=4, writes=2)
    attention = _attention(run, section, Pass.BACKWARD)
    yield Step("HstuAttentionBackward", f"{label}/attention backward", (attention,))
    yield from backward_steps(run, (layer.inner,), tokens)
    # Adds the gradient that passed the layer by.
    yield _norm(run, tokens, section.width, "NormBackward", f"{label}/norm backward", reads=3)


def _attention(run: DlrmRun, section: SequenceSection, direction: Pass) -> Attention:
    """Causal attention of all sequences; its work grows with the mean square of their lengths."""
    length = max(1, round((section.length**2 + section.length_deviation**2) ** 0.5))
    return Attention(
        batch=run.samples,
        query_length=length,
        key_length=length,
        heads=section.heads,
        kv_heads=section.heads,
        head_dim=max(section.query_width, section.value_width),
        dtype=run.dtype,
        is_causal=True,
        direction=direction,
        # Its kernels are fused and tiled as those of flash attention.
        kernel="flash2",
    )


def _norm(
    run: DlrmRun,
    tokens: int,
    width: int,
    operator: str,
    label: str,
    *,
    reads: int = 1,
    writes: int = 1,
) -> Step:
    size = tokens * width * run.dtype.size_bytes
    word = "layer_norm_backward" if operator.endswith("Backward") else "layer_norm"
    kernel: Op = MemoryBound(word, reads * size, writes * size, run.dtype, row_length=width)
    return Step(operator, label, (kernel,))


def _picked(run: DlrmRun, section: SequenceSection, operator: str, label: str) -> Step:
    """The targets of every sequence."""
    elements = run.samples * section.targets * section.width
    return pointwise(operator, label, "index", elements, run.dtype)
