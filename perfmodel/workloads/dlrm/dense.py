"""The dense part of a recommendation model: its fully connected layers, as steps.

With a precision below fp32 weights are kept in fp32 and cast at each use, as
automatic mixed precision does; gradients are cast back before they are reduced.
A stack that fuses those casts keeps weights and gradients in the short format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Op
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import DlrmSpec, Interaction
from perfmodel.workloads.eager import Step, pointwise
from perfmodel.workloads.kernels import Linear, cast, elementwise, row_sum


@dataclass(frozen=True, slots=True)
class DenseLayer(Linear):
    """A fully connected layer; *activation* is empty where there is none."""

    label: str = ""
    activation: str = "relu"
    needs_input_gradient: bool = True


_INPUTS_OF_OUTPUT = 3
"""The projection out of a sequence layer reads gates, attended values and their product."""
CrossPair = tuple[DenseLayer, DenseLayer]
"""The matrices U and V of a cross layer."""


def _stacked(label: str, *widths: int, is_input: bool = False) -> list[DenseLayer]:
    return [
        DenseLayer(
            before, after, after, f"{label}/layer {place}", "relu", not is_input or place > 0
        )
        for place, (before, after) in enumerate(pairwise(widths))
    ]


def bottom_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers over the dense features, which need no gradient."""
    dense = spec.dense
    return tuple(_stacked("bottom mlp", dense.features, *dense.bottom_mlp, is_input=True))


def top_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers that end in the click probability, or in the output that sums are added to."""
    *layers, last = _stacked("top mlp", spec.top_inputs, *spec.dense.top_mlp)
    return (*layers, replace(last, activation="" if spec.has_skipping_sums else "sigmoid"))


def cross_layers(spec: DlrmSpec) -> tuple[CrossPair, ...]:
    """Two matrices and a bias for each cross layer; none for other interactions."""
    if spec.dense.interaction is not Interaction.CROSS:
        return ()
    width, rank = spec.interaction_inputs, spec.dense.cross.rank
    return tuple(
        (
            DenseLayer(width, rank, 0, f"cross {place}/down", ""),
            DenseLayer(rank, width, width, f"cross {place}/up", ""),
        )
        for place in range(spec.dense.cross.layers)
    )


@dataclass(frozen=True, slots=True)
class SequenceLayer:
    """One layer: the projection of its tokens, and the one back."""

    inner: DenseLayer
    outer: DenseLayer


def encoder_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers that make tokens of looked-up vectors; none without sequences."""
    section = spec.sequence
    if section is None or not section.encoder_width:
        return ()
    width, inner = section.width, section.encoder_width
    return (
        DenseLayer(spec.deep_width, inner, inner, "sequence/encoder 0", "silu"),
        DenseLayer(inner, width, width, "sequence/encoder 1", ""),
    )


def sequence_layers(spec: DlrmSpec) -> tuple[SequenceLayer, ...]:
    """The layers over tokens; none without sequences."""
    section = spec.sequence
    if section is None:
        return ()
    gates, heads = section.heads * section.value_width, section.heads
    projected = 2 * gates + 2 * heads * section.query_width
    return tuple(
        SequenceLayer(
            DenseLayer(section.width, projected, projected, f"sequence {place}/in", "silu"),
            DenseLayer(_INPUTS_OF_OUTPUT * gates, section.width, 0, f"sequence {place}/out", ""),
        )
        for place in range(section.layers)
    )


def dense_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """All layers, in the order of the forward pass."""
    crossed = tuple(layer for pair in cross_layers(spec) for layer in pair)
    return bottom_layers(spec) + token_layers(spec) + crossed + top_layers(spec)


def token_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers over tokens, of the encoder and of the sequence layers."""
    inside = (layer for one in sequence_layers(spec) for layer in (one.inner, one.outer))
    return (*encoder_layers(spec), *inside)


def dense_parameters(spec: DlrmSpec) -> int:
    """Parameters outside the tables."""
    return sum(layer.parameters for layer in dense_layers(spec))


def forward_steps(run: DlrmRun, layers: Sequence[DenseLayer], samples: int) -> Iterator[Step]:
    """The forward pass of *layers* over *samples* samples."""
    for layer in layers:
        label, dtype = f"{layer.label} forward", run.dtype
        if _casts_weights(run):
            yield Step("to", label, _casts(layer, DType.FP32, dtype))
        kernels: tuple[Op, ...] = (layer.forward_gemm(samples, dtype),)
        if layer.bias and run.has_unfused_bias:
            row_bytes = layer.outputs * dtype.size_bytes
            kernels = (MemoryBound("copy", row_bytes, samples * row_bytes, dtype), *kernels)
        yield Step("linear", label, kernels)
        word = layer.activation
        if word and not run.stack.fuses(Fusion.ACTIVATION_FORWARD):
            yield pointwise(word, label, word, samples * layer.outputs, dtype)


def backward_steps(
    run: DlrmRun, layers: Sequence[DenseLayer], samples: int, *, is_reduced: bool = True
) -> Iterator[Step]:
    """The backward pass of *layers*, last layer first; *is_reduced* says it of their gradients."""
    for layer in reversed(layers):
        label, word = f"{layer.label} backward", layer.activation
        if word and not run.stack.fuses(Fusion.BIAS_ACTIVATION):
            elements, operator = samples * layer.outputs, f"{word.capitalize()}Backward"
            yield pointwise(operator, label, word, elements, run.dtype, reads=2)
        kernels: list[Op] = [layer.weight_gemm(samples, run.dtype)]
        if layer.needs_input_gradient:
            kernels.insert(0, layer.input_gemm(samples, run.dtype))
        summed: tuple[Op, ...] = ()
        if layer.bias and run.stack.sums_bias_gradients:
            summed = (row_sum(samples, layer.outputs, run.dtype),)
        if run.has_unfused_bias and summed:
            yield Step("AddmmBackward", label, tuple(kernels))
            yield Step("sum", label, summed)
            yield Step("view", label)
        else:
            yield Step("AddmmBackward", label, (*kernels, *summed))
        yield Step("TBackward", label)
        if _casts_weights(run):
            yield Step("ToCopyBackward", label, _casts(layer, run.dtype, DType.FP32))
        for size in layer.tensors:
            yield _accumulated(run, size, label, is_reduced=is_reduced)


def cross_forward_steps(run: DlrmRun, pairs: Sequence[CrossPair]) -> Iterator[Step]:
    """x0 * (V (U x) + b) + x for every pair (U, V)."""
    for pair in pairs:
        yield from forward_steps(run, pair, run.samples)
        label = f"{pair[1].label} forward"
        if run.fuses_pointwise:
            yield _crossed(run, pair, "mul_add", label, reads=3)
        else:
            yield _crossed(run, pair, "mul", label)
            yield _crossed(run, pair, "add", label)


def cross_backward_steps(run: DlrmRun, pairs: Sequence[CrossPair]) -> Iterator[Step]:
    """The backward pass of the cross layers.

    Each factor takes one multiplication before the layers; behind them the gradients of x0
    and of x, which arrive from two sides each, are added up.
    """
    for pair in reversed(pairs):
        label = f"{pair[1].label} backward"
        if run.fuses_pointwise:
            # Reads the gradient, x0, the layer's output and the sum for x0; writes two of them.
            yield _crossed(run, pair, "MulAddBackward", label, reads=4, writes=2)
            yield from backward_steps(run, pair, run.samples)
            continue
        for operator in ("MulBackward", "MulBackward"):
            yield _crossed(run, pair, operator, label)
        yield from backward_steps(run, pair, run.samples)
        for operator in ("add", "add"):
            yield _crossed(run, pair, operator, label)


def _crossed(
    run: DlrmRun, pair: CrossPair, operator: str, label: str, reads: int = 2, writes: int = 1
) -> Step:
    elements = run.samples * pair[1].outputs
    return pointwise(
        operator, label, "residual_add", elements, run.dtype, reads=reads, writes=writes
    )


def _casts_weights(run: DlrmRun) -> bool:
    return run.dtype.size_bytes < run.gradient_dtype.size_bytes


def _casts(layer: DenseLayer, source: DType, target: DType) -> tuple[Op, ...]:
    return tuple(cast(size, source, target) for size in layer.tensors)


def _accumulated(run: DlrmRun, size: int, label: str, *, is_reduced: bool) -> Step:
    """The gradient of a tensor of *size* numbers is put where it is reduced."""
    kernels: tuple[Op, ...] = ()
    if run.stack.has(FrameworkBehaviour.ZEROED_GRADIENTS):
        kernels = (elementwise("add", size, DType.FP32, reads=2),)
    elif is_reduced and run.rank_count > 1 and run.copies_gradients:
        # The gradient is divided by the number of ranks on its way into the bucket.
        kernels = (elementwise("copy", size, DType.FP32),)
    return Step("AccumulateGrad", label, kernels, parameters=size if is_reduced else 0)
