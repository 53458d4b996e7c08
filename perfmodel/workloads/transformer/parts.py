"""StageParts: the steps that all stages of a job are made of, whole or split.

A split backward pass leaves out the kernels that only serve gradients of weights; those of GEMMs
and of experts are computed later. Norms, embeddings and adapters are not split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from perfmodel.workloads.eager import Joining, Step
from perfmodel.workloads.repetition import KnownStretches
from perfmodel.workloads.transformer.ends import build_embedding_steps, build_head_steps
from perfmodel.workloads.transformer.layers import LayerKind, PartSteps, build_layer_steps
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedules import Gradients

_OF_WEIGHTS = "weights"


class StageParts:
    """What all stages of runs are made of, and the stretches that were written of them before.

    The runs differ in the number of micro-batches only, and none has just one.
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
        return LayerKind(
            model.has_window(layer),
            training.recomputes(layer),
            model.is_expert_layer(layer),
            layer >= model.layers,
        )

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
