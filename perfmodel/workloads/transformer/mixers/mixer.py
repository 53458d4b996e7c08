"""SequenceMixer: what mixes the tokens of a sequence in a layer, as the rest of the layer sees it.

A mixer is GEMMs from the input, a core without weights that are multiplied, and a GEMM back to the
hidden width. It says its shape on a tensor-parallel rank, the steps between its GEMMs, operations,
and what the backward pass needs of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from perfmodel.graph.ops import Pass
from perfmodel.workloads.eager import Step
from perfmodel.workloads.kernels import Linear

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.linears import LinearSteps
    from perfmodel.workloads.transformer.model import ModelSection
    from perfmodel.workloads.transformer.run import TransformerRun
    from perfmodel.workloads.transformer.words import Recompute

QKV = "attention/qkv"
LATENT = "attention/latent"
INPUTS = "attention/inputs"


@dataclass(frozen=True, slots=True)
class MixerShape:
    """A mixer on one rank of a tensor group.

    Its *inputs* are GEMMs by label, in the order of the forward pass: split by outputs, but those
    that are *whole* on every rank. The *projection* is split by inputs. *extra* counts the elements
    of other weights: norms inside, convolutions, gates.
    """

    inputs: Mapping[str, Linear] = field(default_factory=dict)
    projection: Linear | None = None
    whole: tuple[str, ...] = ()
    extra: int = 0
    heads: int = 0
    kv_heads: int = 0

    @property
    def outputs(self) -> int:
        """Numbers per token that the GEMMs before the core write."""
        return sum(linear.outputs for linear in self.inputs.values())

    @property
    def core_outputs(self) -> int:
        """Numbers per token that the core writes."""
        return self.projection.inputs if self.projection else 0


@dataclass(frozen=True, slots=True)
class Mixing:
    """The mixer of a layer with the shape *model*, over a micro-batch of *linears*."""

    linears: LinearSteps
    model: ModelSection
    shape: MixerShape

    @property
    def run(self) -> TransformerRun:
        """The job."""
        return self.linears.run


class SequenceMixer(Protocol):
    """A way to mix the tokens of a sequence."""

    def shape(self, model: ModelSection, *, tp: int) -> MixerShape:
        """What one of *tp* ranks holds."""
        ...

    def before_core(self, one: Mixing, direction: Pass) -> list[Step]:
        """The steps between the GEMMs of the input and the core, without the GEMMs."""
        ...

    def core(self, one: Mixing, direction: Pass) -> list[Step]:
        """The steps between those and the projection."""
        ...

    def core_flops(self, model: ModelSection, *, length: int, together: int) -> int:
        """Operations over *length* tokens of which *together* are worked on together."""
        ...

    def copied_width(self, one: Mixing) -> int:
        """Numbers per token that are kept besides inputs and outputs of GEMMs."""
        ...

    def score_bytes(self, one: Mixing, recompute: Recompute) -> int:
        """Bytes kept of scores or states, those that remain under *recompute*."""
        ...


class NoMixer:
    """A layer without one."""

    def shape(self, _model: ModelSection, *, tp: int) -> MixerShape:  # noqa: ARG002  # a role
        """Nothing."""
        return MixerShape()

    def before_core(self, _one: Mixing, _direction: Pass) -> list[Step]:
        """Nothing."""
        return []

    core = before_core

    def core_flops(self, _model: ModelSection, *, length: int, together: int) -> int:  # noqa: ARG002  # a role
        """None."""
        return 0

    def copied_width(self, _one: Mixing) -> int:
        """None."""
        return 0

    def score_bytes(self, _one: Mixing, _recompute: Recompute) -> int:
        """None."""
        return 0
