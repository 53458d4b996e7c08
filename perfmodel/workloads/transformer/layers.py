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
from perfmodel.workloads.transformer.chains import activation_steps, norm_steps
from perfmodel.workloads.transformer.experts import ExpertSteps
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.mixers.mixer import LATENT, QKV, Mixing
from perfmodel.workloads.transformer.mixers.table import MIXERS
from perfmodel.workloads.transformer.model import Block
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.shapes import LayerShapes
from perfmodel.workloads.transformer.words import Recompute, RecomputedPart, SavedOutput

_JOINING, _PROJECTION = "further/joining", "attention/projection"
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

    block: Block
    is_recomputed: bool = False
    is_further: bool = False


def build_layer_steps(run: TransformerRun, kind: LayerKind) -> PartSteps:
    """The steps of a layer of *kind* for one micro-batch, labelled within the layer."""
    maker, way = _LayerMaker(run, kind), run.spec.training.recompute
    forward = maker.forward()
    recompute: list[Step] = []
    if kind.is_recomputed and way is Recompute.FULL:
        recompute = maker.forward(run.spec.training.saved_outputs)
    elif kind.is_recomputed and way is Recompute.ATTENTION:
        recompute = maker.core(Pass.FORWARD)
    elif kind.is_recomputed and way is Recompute.OPS:
        recompute = maker.without_every_second_gemm()
    if way is not Recompute.FULL or not kind.is_recomputed:
        recompute = recompute + maker.recomputed_parts()
    again = [replace(step, label=f"recompute/{step.label}") for step in recompute]
    return PartSteps(tuple(forward), tuple(maker.backward()), tuple(maker.casts()), tuple(again))


class _LayerMaker:
    """Makes the steps of a layer of *kind*."""

    def __init__(self, run: TransformerRun, kind: LayerKind) -> None:
        self._run, self._model = run, kind.block.model
        shapes = LayerShapes(run.spec.model, run.layout)
        self._shape = shapes.shape(kind.block, is_further=kind.is_further)
        self._linears = LinearSteps(run, run.tokens)
        self._elements = self._linears.split_tokens * self._model.hidden
        self._mixer = MIXERS[kind.block.mixer]
        self._mixing = Mixing(self._linears, self._model, self._shape.mixer)
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
        steps = linears.replicated(shape.joining, _JOINING) if shape.joining else []
        if (projection := shape.mixer.projection) is not None:
            steps += self._until_core(is_saved=SavedOutput.QKV in saved)
            if SavedOutput.CORE not in saved:
                steps += self.core(Pass.FORWARD)
            if SavedOutput.PROJECTION not in saved:
                steps += linears.row_parallel(projection, _PROJECTION)
            steps += self._residual("attention")
        if not self._has_network:
            return steps
        steps += norm_steps(linears, "ffn", Pass.FORWARD)
        steps += self._experts.forward() if self._experts else ()
        if shape.up is not None:
            steps += [*self._feed_forward(saved), *self._add_shared(Pass.FORWARD)]
        return steps + self._residual("ffn")

    @property
    def _has_network(self) -> bool:
        """Whether there is a feed-forward network."""
        return self._experts is not None or self._shape.up is not None

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
        steps: list[Step] = []
        if not shape.issues_queries:
            steps = self._until_core() if shape.mixer.projection else []
        elif (projection := shape.mixer.projection) is not None:
            steps = [
                *norm_steps(linears, "attention", Pass.FORWARD),
                *(linears.column_parallel(again[QKV], QKV) if QKV in again else ()),
                *self._before_core(Pass.FORWARD),
                *linears.row_parallel(projection, _PROJECTION),
            ]
        if shape.mixer.projection is not None:
            steps += self._residual("attention")
        if not self._has_network:
            return steps
        return [
            *steps,
            *norm_steps(linears, "ffn", Pass.FORWARD),
            *(self._experts.without_down() if self._experts else ()),
            *(linears.column_parallel(again["ffn/up"], "ffn/up") if "ffn/up" in again else ()),
            *self._activation(Pass.FORWARD),
        ]

    def recomputed_parts(self) -> list[Step]:
        """The parts of every layer that are recomputed, as far as this one has them."""
        shape, experts = self._shape, self._experts
        steps: list[Step] = []
        for part in self._run.spec.training.recompute_modules:
            if part is RecomputedPart.NORMS:
                steps += self._norms()
            elif part is RecomputedPart.CORE:
                steps += self.core(Pass.FORWARD)
            elif part is RecomputedPart.LATENT and LATENT in shape.mixer.whole:
                steps += self._until_core(is_split_only=True)
            elif part is RecomputedPart.EXPERT_ACTIVATION and experts:
                steps += experts.activation(Pass.FORWARD)
            elif part is RecomputedPart.EXPERTS and experts:
                steps += experts.forward()
            elif part is (RecomputedPart.SHARED_EXPERTS if experts else RecomputedPart.DENSE_FFN):
                steps += self._feed_forward()
        return steps

    def _norms(self) -> list[Step]:
        """The norms before the mixer and before the feed-forward network."""
        parts = {"attention": self._shape.mixer.projection is not None, "ffn": self._has_network}
        return [
            step
            for where, is_there in parts.items()
            if is_there
            for step in norm_steps(self._linears, where, Pass.FORWARD)
        ]

    def backward(self) -> list[Step]:
        """The backward pass."""
        linears, shape = self._linears, self._shape
        steps: list[Step] = []
        if self._has_network:
            steps += self._dropout("ffn", Pass.BACKWARD)
            if shape.up is not None and shape.down is not None:
                steps += [
                    *linears.row_parallel_backward(shape.down, "ffn/down"),
                    *self._activation(Pass.BACKWARD),
                    *linears.column_parallel_backward(shape.up, "ffn/up"),
                    *self._add_shared(Pass.BACKWARD),
                ]
            steps += self._experts.backward() if self._experts else ()
            steps += self._norm_backward("ffn")
        if (projection := shape.mixer.projection) is not None:
            steps += [
                *self._dropout("attention", Pass.BACKWARD),
                *linears.row_parallel_backward(projection, _PROJECTION),
                *self.core(Pass.BACKWARD),
                *self._before_core(Pass.BACKWARD),
                *self._inputs_backward(),
                *self._norm_backward("attention"),
            ]
        if shape.joining is not None:
            steps += linears.replicated_backward(shape.joining, _JOINING)
        return steps

    def core(self, direction: Pass) -> list[Step]:
        """The core of the mixer."""
        return self._mixer.core(self._mixing, direction)

    def _before_core(self, direction: Pass) -> list[Step]:
        return self._mixer.before_core(self._mixing, direction)

    def _until_core(self, *, is_saved: bool = False, is_split_only: bool = False) -> list[Step]:
        """From the input to what the core takes; only the norm if this is saved.

        With *is_split_only* the norm and what is whole on every rank are left out.
        """
        steps = [] if is_split_only else norm_steps(self._linears, "attention", Pass.FORWARD)
        if is_saved:
            return steps
        for label, linear in self._shape.mixer.inputs.items():
            if label not in self._shape.mixer.whole:
                steps += self._linears.column_parallel(linear, label)
            elif not is_split_only:
                steps += self._linears.replicated(linear, label)
        return steps + self._before_core(Pass.FORWARD)

    def _inputs_backward(self) -> list[Step]:
        """The GEMMs before the core; gradients of other weights come before those of the first."""
        linears, mixer, steps = self._linears, self._shape.mixer, list[Step]()
        for label, linear in reversed([*mixer.inputs.items()]):
            if mixer.extra and label == next(iter(mixer.inputs)):
                steps += linears.accumulate(mixer.extra, f"{label} norms backward")
            if label in mixer.whole:
                steps += linears.replicated_backward(linear, label)
            else:
                steps += linears.column_parallel_backward(linear, label)
        return steps

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
