"""The attention core as steps: one fused kernel, or GEMMs with passes over the scores.

Unfused, a causal mask saves nothing: the whole matrix of scores is computed,
masked and read. Plain eager code also copies queries, keys and values to make
heads contiguous; a stack with a fused scale-mask-softmax does not.

Ranks that share a sequence hold two mirrored chunks each, which makes causal work
even: of the keys of another rank, either all queries see the first half, or half
of the queries see all. Both are the same number of pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectives.collective import CollectiveKind
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.ops import Attention, Gemm, Pass
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.eager import Joining, Step, communication, pointwise
from perfmodel.workloads.kernels import cast, dropout, elementwise
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.words import AttentionKernel, ContextKind

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.mixers.mixer import Mixing

_KERNELS = {AttentionKernel.FMHA: "flash1"}
"""Kernels by the generation that they are priced as: the fused one of 2020 is no better."""
TILE = 128
"""Queries that a kernel works on at once; under a window they see it and each other."""


def attention_steps(one: Mixing, direction: Pass, seen: int | None) -> list[Step]:
    """The steps between the qkv GEMM and the projection, if a token sees so many others, or all."""
    run = one.run
    spec, cp = run.spec, run.layout.cp
    length = spec.sequence_length
    seen = seen or length
    packed = spec.packed_length
    if packed < length and cp > 1:
        # The keys travel as ever; a token sees half of its sample before it on average.
        seen = min(seen, packed // 2 + TILE)
    if cp > 1:
        if run.has_unfused_attention:
            raise WorkloadError(
                f"{spec.name}: cp={cp} needs a fused attention kernel, which adds up blocks of "
                "keys, and this one is unfused. Set training.attention=flash, or cp=1."
            )
        most = length // 2 if spec.model.causal else length
        context = _ContextAttention(one, direction, seen if seen < most else None)
        casts = _casts(one, direction)
        if spec.parallel.cp_kind is ContextKind.ALL_GATHER:
            return casts + context.gathered(most)
        if spec.parallel.cp_kind is ContextKind.ALL_TO_ALL:
            keys = min(length, seen)
            return casts + context.exchanged(keys, is_causal=spec.model.causal)
        return casts + context.ring()
    if run.has_unfused_attention:
        return _unfused_steps(one, direction)
    is_causal = spec.model.causal and seen >= packed
    core = _fused_step(one, direction, packed, min(packed, seen), is_causal=is_causal)
    return [*_casts(one, direction), core]


def _casts(one: Mixing, direction: Pass) -> list[Step]:
    """The cast of queries, keys and values, or of the gradient of the output, to fewer bits."""
    run, model, shape = one.run, one.model, one.shape
    target = run.spec.training.attention_precision
    if target is None or target.size_bytes >= run.dtype.size_bytes:
        return []
    width = shape.heads * model.value_width
    if direction is Pass.FORWARD:
        inputs = shape.kv_heads * (model.query_width + model.value_width)
        width = shape.heads * model.query_width + inputs
    kernel = cast(run.tokens * width, run.dtype, target)
    return [Step("to", f"attention/core cast {direction.value}", (kernel,))]


def _fused_step(one: Mixing, direction: Pass, queries: int, keys: int, *, is_causal: bool) -> Step:
    """One fused kernel over *queries* and *keys* tokens of every sequence or packed sample.

    In latent attention heads are wider in scores than in values; the mean of both widths counts
    the same operations.
    """
    run, model = one.run, one.model
    spec, layout = run.spec, run.layout
    chosen = spec.training.attention
    kernel = _KERNELS.get(chosen) or str(chosen.value)
    if chosen is AttentionKernel.FLASH:
        # Some fused kernel: the stack's own, unless the stack has none.
        kernel = AttentionKernel.FLASH2.value if run.stack.unfuses_attention else "auto"
    samples = -(-spec.sequence_length // spec.packed_length) if layout.cp == 1 else 1
    op = Attention(
        batch=layout.micro_batch * samples,
        query_length=queries,
        key_length=keys,
        heads=one.shape.heads,
        kv_heads=one.shape.kv_heads,
        head_dim=(model.query_width + model.value_width) // 2,
        dtype=spec.training.attention_precision or run.dtype,
        is_causal=is_causal,
        direction=direction,
        kernel=kernel,
    )
    operator = "scaled_dot_product_attention"
    if direction is Pass.BACKWARD:
        operator = "ScaledDotProductAttentionBackward"
    return Step(operator, f"attention/core {direction.value}", (op,))


def _unfused_steps(one: Mixing, direction: Pass) -> list[Step]:
    """GEMMs for scores and their mixture, with passes over all scores between them."""
    run, model = one.run, one.model
    dtype, length = run.dtype, run.spec.sequence_length
    pairs = run.layout.micro_batch * one.shape.heads
    width, scores = model.head_width, pairs * length**2
    is_masked_in_softmax = run.stack.fuses(Fusion.SOFTMAX_MASK)
    is_backward = direction is Pass.BACKWARD
    label = f"attention/core {direction.value}"
    score = Gemm(length, length, width, dtype, batch=pairs)
    # Also the gradients of queries, keys and values, which have the same shape.
    mix = Gemm(length, width, length, dtype, batch=pairs)

    def reorder(operator: str) -> Step:
        return pointwise(operator, label, "transpose", pairs * length * width, dtype)

    copies = [] if is_masked_in_softmax else [reorder("reshape")] * 3
    word, reads = ("softmax_backward", 2) if is_backward else ("softmax", 1)
    softmax = elementwise(word, scores, dtype, reads=reads, row_length=length)
    steps = [Step("SoftmaxBackward" if is_backward else "softmax", label, (softmax,))]
    if model.dropout:
        operator = "MulBackward" if is_backward else "dropout"
        dropped = Step(operator, label, (dropout(scores, dtype, is_backward=is_backward),))
        steps.insert(0 if is_backward else 1, dropped)
    if is_backward:
        if not is_masked_in_softmax:
            steps.append(pointwise("DivBackward", label, "div", scores, dtype))
        first, last = (Step("BmmBackward", label, (one, mix)) for one in (score, mix))
        return [reorder("TransposeBackward"), first, *steps, last, *copies]
    if not is_masked_in_softmax:
        scale = pointwise("div", label, "div", scores, dtype)
        steps = [scale, pointwise("add", label, "mask", scores, dtype), *steps]
    first, last = (Step("bmm", label, (one,)) for one in (score, mix))
    return [*copies, first, *steps, last, reorder("reshape")]


class _ContextAttention:
    """Attention over the keys and values of all ranks that share a sequence.

    *windowed_keys* are the keys that a query sees under a window, where a window limits them.
    """

    def __init__(self, one: Mixing, direction: Pass, windowed_keys: int | None) -> None:
        run, model, self._one = one.run, one.model, one
        self._run, self._direction, self._windowed_keys = run, direction, windowed_keys
        self._cp, self._label = run.layout.cp, f"attention/core {direction.value}"
        # Tokens of a sequence on one rank, and numbers in keys and values of its own tokens.
        self._own = run.spec.sequence_length // run.layout.cp
        width = model.query_width + model.value_width
        self._kv_elements = run.tokens * one.shape.kv_heads * width

    def gathered(self, most_keys: int) -> list[Step]:
        """Attention after a gather of all keys and values; gradients are scattered again."""
        keys = self._windowed_keys or most_keys
        core = _fused_step(self._one, self._direction, self._own, keys, is_causal=False)
        gather = self._collective(CollectiveKind.ALL_GATHER, "keys and values", self._cp)
        if self._direction is Pass.FORWARD:
            return [gather, core]
        what = "key and value gradients"
        return [gather, core, self._collective(CollectiveKind.REDUCE_SCATTER, what, self._cp)]

    def exchanged(self, keys: int, *, is_causal: bool) -> list[Step]:
        """Attention over whole sequences for some heads, between two exchanges.

        Heads of keys that are fewer than the ranks are sent to several of them.
        """
        model, shape, cp = self._one.model, self._one.shape, self._cp
        length = self._run.spec.sequence_length
        is_masked = is_causal and keys >= length
        core = _fused_step(self._one, self._direction, length, keys, is_causal=is_masked)
        [op] = core.kernels
        assert isinstance(op, Attention)
        part = replace(op, heads=shape.heads // cp, kv_heads=max(1, shape.kv_heads // cp))
        width = model.query_width + model.value_width
        inputs = shape.heads * model.query_width + max(shape.kv_heads, cp) * width
        outputs = shape.heads * model.value_width
        sizes = {"queries, keys and values": inputs, "outputs": outputs}
        first, last = (
            communication(
                CollectiveKind.ALL_TO_ALL,
                f"{self._label} {what}",
                self._run.tokens * numbers * self._run.dtype.size_bytes,
                self._run.dtype,
                Slot.CONTEXT,
            )
            for what, numbers in sizes.items()
        )
        steps = [first, replace(core, kernels=(part,)), last]
        return steps if self._direction is Pass.FORWARD else [last, steps[1], first]

    def ring(self) -> list[Step]:
        """Each turn attends to the present keys while the next ones arrive.

        Backward, keys and values go round again, followed by their gradients back to their rank.
        """
        is_backward = self._direction is Pass.BACKWARD
        outputs = self._run.tokens * self._one.shape.core_outputs
        steps = []
        for turn in range(self._cp):
            block = self._block(turn)
            if turn + 1 < self._cp:
                steps += self._send_and_receive("keys and values", Joining.NEXT_BLOCK)
            else:
                steps.append(self._wait(Joining.NEXT_BLOCK))
            steps += block
            if is_backward:
                if turn:
                    merge = self._merge(self._kv_elements)
                    steps.append(replace(merge, joins=(Joining.BLOCK_GRADIENT,)))
                steps += self._send_and_receive("key and value gradients", Joining.BLOCK_GRADIENT)
            elif block and turn:
                steps.append(self._merge(outputs))
        return [*steps, self._wait(Joining.BLOCK_GRADIENT)] if is_backward else steps

    def _block(self, turn: int) -> list[Step]:
        """Attention over the keys that arrive in *turn*; all keys of a window in the first."""
        is_causal, keys = self._run.spec.model.causal, self._own
        is_masked = is_causal and turn == 0
        if self._windowed_keys is not None:
            if turn:
                return []
            keys, is_masked = self._windowed_keys, False
        elif is_causal and turn:
            keys //= 2
        return [_fused_step(self._one, self._direction, self._own, keys, is_causal=is_masked)]

    def _wait(self, joining: Joining) -> Step:
        return Step("wait", f"{self._label} wait", joins=(joining,))

    def _send_and_receive(self, what: str, joining: Joining) -> list[Step]:
        """Send to the next rank, keys once they are here, and receive from the one before."""
        name, moved = f"{self._label} {what}", self._collective(CollectiveKind.SEND_RECV, what)
        joins = (joining,) if joining is Joining.NEXT_BLOCK else ()
        sent = replace(moved, label=f"{name} send", slot=Slot.RING_OUT, joins=joins)
        received = replace(moved, label=f"{name} receive", slot=Slot.RING_IN, joining=joining)
        return [replace(sent, joining=Joining.NEVER), received]

    def _merge(self, elements: int) -> Step:
        """Add the result of a block to that of the blocks before it."""
        name = f"{self._label} merge"
        return pointwise("add", name, "residual_add", elements, self._run.dtype, reads=2)

    def _collective(self, kind: CollectiveKind, what: str, parts: int = 1) -> Step:
        size_bytes = self._kv_elements * self._run.dtype.size_bytes * parts
        name = f"{self._label} {what}"
        return communication(kind, name, size_bytes, self._run.dtype, Slot.CONTEXT)
