"""Mixers that keep a state instead of all tokens: linear attention with gates, and Mamba-2.

Training works on chunks of tokens: products inside every chunk, and a pass of the state from chunk
to chunk, one after the other. Everything grows with the length of a sequence, but the state. The
backward pass computes the states again. Ranks that share a sequence exchange it for heads.
Leaves out: start-up of the several small kernels that a core is.
Source of the counting: Yang et al., arXiv 2412.06464 (gated delta rule), Dao and Gu, arXiv
2405.21060 (state-space duality).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectives.collective import CollectiveKind
from perfmodel.graph.ops import Pass, Unmeasured
from perfmodel.workloads.eager import Step, communication
from perfmodel.workloads.kernels import FP32_BYTES, Linear, elementwise
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.mixers.mixer import INPUTS, MixerShape, Mixing

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.model import ModelSection
    from perfmodel.workloads.transformer.words import Recompute

_BACKWARD = 2.5
"""Operations of a backward pass over those forward: both operands of each product have a gradient,
and the states are computed again."""
_CHAINS = {Pass.FORWARD: 1, Pass.BACKWARD: 2}
"""Passes of the state from chunk to chunk: backward again, and then its gradient."""


class _Recurrent:
    """What both kinds have in common: a convolution, a scan over chunks, and a gated norm."""

    word = ""

    def widths(self, model: ModelSection, tp: int) -> tuple[int, int, int]:
        """Numbers per token that are convolved, that only gate, and that the core writes."""
        raise NotImplementedError

    def token_flops(self, model: ModelSection, *, heads: int, kv_heads: int) -> int:
        """Operations of the core per token, forward."""
        raise NotImplementedError

    def other_weights(self, model: ModelSection, *, tp: int) -> int:
        """Elements of the convolution, of the decays and of the norm."""
        convolved, _, written = self.widths(model, tp)
        decays = written if model.channel_gates else model.heads // tp
        return convolved * model.convolution + 2 * decays + model.value_width

    def shape(self, model: ModelSection, *, tp: int) -> MixerShape:
        """Heads are divided, each with its part of the convolution."""
        convolved, gates, written = self.widths(model, tp)
        return MixerShape(
            {INPUTS: Linear(model.hidden, convolved + gates)},
            Linear(written, model.hidden),
            extra=self.other_weights(model, tp=tp),
            heads=model.heads // tp,
            kv_heads=max(1, model.key_heads // tp),
        )

    def state_bytes(self, model: ModelSection, *, tp: int) -> int:
        """The state of a sequence in fp32, however long it is."""
        state = model.state_size or model.head_width
        return model.heads // tp * state * model.value_width * FP32_BYTES

    def before_core(self, one: Mixing, direction: Pass) -> list[Step]:
        """A convolution over the last tokens, channel by channel, with its activation."""
        convolved, _, _ = self.widths(one.model, one.run.layout.tp)
        is_forward = direction is Pass.FORWARD
        sizes = {"reads": 1, "writes": 1} if is_forward else {"reads": 3, "writes": 2}
        kernel = elementwise("conv", one.run.tokens * convolved, one.run.dtype, **sizes)
        operator = "conv1d" if is_forward else "ConvolutionBackward"
        step = Step(operator, f"attention/convolution {direction.value}", (kernel,))
        exchange = self._exchange(one, direction, one.shape.outputs, "inputs")
        return [*exchange, step] if is_forward else [step, *exchange]

    def core(self, one: Mixing, direction: Pass) -> list[Step]:
        """The scan, and the norm of what it writes with its gate."""
        run, model, label = one.run, one.model, f"attention/core {direction.value}"
        is_forward, written = direction is Pass.FORWARD, one.shape.core_outputs
        flops = run.tokens * self.token_flops(
            model, heads=one.shape.heads, kv_heads=one.shape.kv_heads
        )
        moved = run.tokens * self._token_bytes(one)
        chunks = -(-run.spec.packed_length // model.chunk)
        scan = Unmeasured(
            self.word,
            round(flops * (1 if is_forward else _BACKWARD)),
            moved if is_forward else 2 * moved,
            moved,
            run.dtype,
            steps=_CHAINS[direction] * chunks,
        )
        sizes = {"reads": 2, "writes": 1} if is_forward else {"reads": 3, "writes": 2}
        elements = run.tokens * written
        norm = elementwise("rms_norm", elements, run.dtype, row_length=model.value_width, **sizes)
        operators = (
            ("chunk_scan", "rms_norm") if is_forward else ("ScanBackward", "RmsNormBackward")
        )
        steps = [
            Step(operators[0], label, (scan,)),
            Step(operators[1], f"attention/gated norm {direction.value}", (norm,)),
        ]
        exchange = self._exchange(one, direction, written, "outputs")
        return [*steps, *exchange] if is_forward else [*exchange, *reversed(steps)]

    def core_flops(self, model: ModelSection, *, length: int, together: int) -> int:  # noqa: ARG002  # a role
        """The same for every token."""
        return length * self.token_flops(model, heads=model.heads, kv_heads=model.key_heads)

    def copied_width(self, one: Mixing) -> int:
        """What was convolved, what the scan wrote, and the triangle of every chunk."""
        convolved, _, written = self.widths(one.model, one.run.layout.tp)
        return convolved + written + one.shape.heads * one.model.chunk

    def score_bytes(self, one: Mixing, _recompute: Recompute) -> int:
        """The last state of every sequence."""
        layout = one.run.layout
        return layout.micro_batch * self.state_bytes(one.model, tp=layout.tp) // layout.cp

    def _token_bytes(self, one: Mixing) -> int:
        """Bytes per token that the kernels of a core read, and those that they write.

        The operands and the result, three tensors between kernels, a state per chunk, and decays in
        fp32.
        """
        model, shape, (convolved, _, written) = (
            one.model,
            one.shape,
            self.widths(one.model, one.run.layout.tp),
        )
        states = self.state_bytes(model, tp=one.run.layout.tp) // model.chunk
        decays = FP32_BYTES * (written if model.channel_gates else shape.heads)
        return (convolved + 3 * written) * one.run.dtype.size_bytes + states // 2 + decays

    def _exchange(self, one: Mixing, direction: Pass, width: int, what: str) -> list[Step]:
        """Ranks that share a sequence exchange its parts for whole sequences of some heads."""
        if one.run.layout.cp == 1:
            return []
        label = f"attention/core {direction.value} {what}"
        size_bytes = one.run.tokens * width * one.run.dtype.size_bytes
        return [
            communication(CollectiveKind.ALL_TO_ALL, label, size_bytes, one.run.dtype, Slot.CONTEXT)
        ]


class DeltaRule(_Recurrent):
    """Linear attention whose state forgets and is corrected: gated DeltaNet, and KDA.

    *kv_heads* are those of queries and keys, *heads* those of values. With *channel_gates* (KDA)
    each channel of a key has a decay of its own.
    """

    word = "delta_rule"

    def widths(self, model: ModelSection, tp: int) -> tuple[int, int, int]:
        """Queries, keys and values; the gate of the output, the decay and the correction."""
        heads, keys = model.heads // tp, max(1, model.key_heads // tp)
        written = heads * model.value_width
        decays = heads * model.head_width if model.channel_gates else heads
        return 2 * keys * model.head_width + written, written + heads + decays, written

    def token_flops(self, model: ModelSection, *, heads: int, kv_heads: int) -> int:  # noqa: ARG002  # a role
        """In a chunk K K', its inverse, its product with K and V, Q K' and that with V.

        Three products with the state: what it predicts, what corrects it, what a query reads.
        """
        key, value, chunk = model.head_width, model.value_width, model.chunk
        inside = chunk * (6 * key + 4 * value) + 2 * chunk * chunk // 3
        return heads * (inside + 6 * key * value)


class StateSpace(_Recurrent):
    """Mamba-2: *heads* of *head_dim* share the inputs and outputs of *kv_heads* groups.

    Every head has a state of *state_size* for each of its numbers.
    """

    word = "state_space"

    def widths(self, model: ModelSection, tp: int) -> tuple[int, int, int]:
        """Values, and both matrices of every group; a gate for each value, a step for each head."""
        heads, groups = model.heads // tp, max(1, model.key_heads // tp)
        written = heads * model.value_width
        return (
            written + 2 * groups * (model.state_size or model.head_width),
            written + heads,
            written,
        )

    def other_weights(self, model: ModelSection, *, tp: int) -> int:
        """The convolution has biases, a head three numbers, and the norm is over all of them."""
        convolved, _, written = self.widths(model, tp)
        return convolved * (model.convolution + 1) + 3 * (model.heads // tp) + written

    def token_flops(self, model: ModelSection, *, heads: int, kv_heads: int) -> int:
        """In a chunk C B' of every group and its product with values; into the state and out."""
        state, chunk = model.state_size or model.head_width, model.chunk
        return heads * model.value_width * (4 * state + 2 * chunk) + kv_heads * 2 * chunk * state
