"""Core attention as steps: one fused kernel, or products with passes over the scores.

Unfused, nothing is saved by a causal mask: the whole matrix of scores is made,
masked and read. Plain eager code also copies queries, keys and values so that
heads lie one after another; a stack with a fused scale-mask-softmax does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import dropout, elementwise
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Joining, Step
from perfmodel.workloads.transformer.shapes import layer_shape
from perfmodel.workloads.transformer.slots import Slot
from perfmodel.workloads.transformer.spec import AttentionKernel, ContextKind, TransformerSpec

_KERNELS = {AttentionKernel.FMHA: "flash1"}
"""Kernels by the generation that is priced for them: the fused one of 2020 is no better."""
_TILE = 128
"""Queries that a kernel works on at once; under a window they see it and each other."""


def attention_steps(
    run: TransformerRun, direction: Pass, *, has_window: bool = False
) -> list[Step]:
    """The steps between the qkv product and the projection."""
    spec, layout = run.spec, run.layout
    shape = layer_shape(spec.model, tp=layout.tp)
    if layout.cp > 1:
        return shared_attention_steps(run, direction, has_window=has_window)
    if run.has_unfused_attention:
        core = _Unfused(
            pairs=layout.micro_batch * shape.heads,
            length=spec.sequence_length,
            width=spec.model.head_width,
            dtype=spec.training.precision,
            has_dropout=spec.model.dropout,
            is_masked_in_softmax=run.fuses(Fusion.SOFTMAX_MASK),
        )
        return core.forward() if direction is Pass.FORWARD else core.backward()
    length = spec.sequence_length
    seen = seen_tokens(spec, has_window=has_window)
    is_causal = spec.model.causal and seen >= length
    return [attention_block(run, direction, length, min(length, seen), is_causal=is_causal)]


def seen_tokens(spec: TransformerSpec, *, has_window: bool) -> int:
    """Tokens before it that a token may see, at most."""
    length = spec.sequence_length
    return (spec.model.window or length) + _TILE if has_window else length


def attention_block(
    run: TransformerRun, direction: Pass, queries: int, keys: int, *, is_causal: bool
) -> Step:
    """One fused kernel over so many *queries* and *keys* of every sequence.

    In latent attention the numbers that are compared are more than those that are mixed; the
    mean of both counts the same operations.
    """
    spec, layout = run.spec, run.layout
    shape = layer_shape(spec.model, tp=layout.tp)
    op = Attention(
        batch=layout.micro_batch,
        query_length=queries,
        key_length=keys,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=(spec.model.query_width + spec.model.head_width) // 2,
        dtype=spec.training.precision,
        is_causal=is_causal,
        direction=direction,
        kernel=_kernel_word(run),
    )
    operator = "scaled_dot_product_attention"
    if direction is Pass.BACKWARD:
        operator = "ScaledDotProductAttentionBackward"
    return Step(operator, f"attention/core {direction.value}", (op,))


def shared_attention_steps(run: TransformerRun, direction: Pass, *, has_window: bool) -> list[Step]:
    """Attention of a rank that has only its part of every sequence.

    Two mirrored chunks a rank make causal work even: of the keys of any other rank, either all
    queries see the first half, or half of the queries see all. Both are as many pairs.
    """
    if run.has_unfused_attention:
        raise WorkloadError(
            f"{run.spec.name}: cp={run.layout.cp} needs a fused attention kernel, which adds up "
            "blocks of keys, and this one is unfused. Set training.attention=flash, or cp=1."
        )
    sharing = _Sharing(run, direction, has_window)
    if run.spec.parallel.cp_kind is ContextKind.ALL_GATHER:
        return sharing.gathered()
    return sharing.ring() if direction is Pass.FORWARD else sharing.ring_backward()


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Makes attention over the keys and values of all ranks that share a sequence."""

    run: TransformerRun
    direction: Pass
    has_window: bool

    @property
    def own(self) -> int:
        """Tokens of a sequence that a rank has."""
        return self.run.spec.sequence_length // self.run.layout.cp

    @property
    def label(self) -> str:
        return f"attention/core {self.direction.value}"

    @property
    def windowed_keys(self) -> int | None:
        """Keys that a query sees under a window, where that is fewer than without it."""
        spec = self.run.spec
        seen = seen_tokens(spec, has_window=self.has_window)
        most = spec.sequence_length // 2 if spec.model.causal else spec.sequence_length
        return seen if seen < most else None

    @property
    def kv_bytes(self) -> int:
        """Keys and values of a rank's own tokens."""
        model, layout = self.run.spec.model, self.run.layout
        heads = layer_shape(model, tp=layout.tp).kv_heads
        numbers = self.run.tokens * heads * (model.query_width + model.head_width)
        return numbers * self.run.spec.training.precision.size_bytes

    def block(self, number: int) -> Step | None:
        """Attention over the keys that arrive in turn *number*; all of a window's in the first."""
        is_causal, own = self.run.spec.model.causal, self.own
        if self.windowed_keys is not None:
            if number:
                return None
            return attention_block(
                self.run, self.direction, own, self.windowed_keys, is_causal=False
            )
        keys = own // 2 if is_causal and number else own
        is_masked = is_causal and number == 0
        return attention_block(self.run, self.direction, own, keys, is_causal=is_masked)

    def gathered(self) -> list[Step]:
        """Attention behind a gather of all keys and values; gradients are scattered again."""
        length = self.run.spec.sequence_length
        most = length // 2 if self.run.spec.model.causal else length
        keys = self.windowed_keys or most
        core = attention_block(self.run, self.direction, self.own, keys, is_causal=False)
        gather = self._together(CollectiveKind.ALL_GATHER, "keys and values")
        if self.direction is Pass.FORWARD:
            return [gather, core]
        scatter = self._together(CollectiveKind.REDUCE_SCATTER, "key and value gradients")
        return [gather, core, scatter]

    def ring(self) -> list[Step]:
        """Each turn attends to the keys at hand while the next ones arrive."""
        turns, steps = self.run.layout.cp, []
        for number in range(turns):
            steps += self._pass_on(number, turns)
            block = self.block(number)
            if block is None:
                continue
            steps.append(block)
            if number:
                steps.append(self._merge(self._output_elements))
        return steps

    def ring_backward(self) -> list[Step]:
        """Keys and values go round again, and behind them their gradients, until they are home."""
        turns, steps = self.run.layout.cp, []
        elements = self.kv_bytes // self.run.spec.training.precision.size_bytes
        for number in range(turns):
            steps += self._pass_on(number, turns)
            block = self.block(number)
            steps += [block] if block is not None else []
            if number:
                steps.append(replace(self._merge(elements), joins=(Joining.BLOCK_GRADIENT,)))
            steps += self._send_and_receive("key and value gradients", Joining.BLOCK_GRADIENT)
        return [*steps, self._wait(Joining.BLOCK_GRADIENT)]

    @property
    def _output_elements(self) -> int:
        shape = layer_shape(self.run.spec.model, tp=self.run.layout.tp)
        return self.run.tokens * shape.projection.inputs

    def _pass_on(self, number: int, turns: int) -> list[Step]:
        """Send the keys at hand to the next rank, once they are here, and receive others."""
        if number + 1 < turns:
            return self._send_and_receive("keys and values", Joining.NEXT_BLOCK)
        return [self._wait(Joining.NEXT_BLOCK)]

    def _wait(self, joining: Joining) -> Step:
        return Step("wait", f"{self.label} wait", joins=(joining,))

    def _send_and_receive(self, what: str, joining: Joining) -> list[Step]:
        dtype = self.run.spec.training.precision
        moved = Collective(CollectiveKind.SEND_RECV, size_bytes=self.kv_bytes, dtype=dtype)
        joins = (joining,) if joining is Joining.NEXT_BLOCK else ()
        send = Step(
            "send_recv", f"{self.label} {what} send", collective=moved, joining=Joining.NEVER,
            joins=joins, slot=Slot.RING_OUT,
        )  # fmt: skip
        receive = replace(
            send, label=f"{self.label} {what} receive", joining=joining, joins=(),
            slot=Slot.RING_IN,
        )  # fmt: skip
        return [send, receive]

    def _merge(self, elements: int) -> Step:
        """What a block found added to what the blocks before it found."""
        op = elementwise("residual_add", elements, self.run.spec.training.precision, reads=2)
        return Step("add", f"{self.label} merge", (op,))

    def _together(self, kind: CollectiveKind, what: str) -> Step:
        size_bytes = self.kv_bytes * self.run.layout.cp
        collective = Collective(kind, size_bytes, self.run.spec.training.precision)
        name = f"{self.label} {what} {kind.value}"
        return Step(kind.value, name, collective=collective, slot=Slot.CONTEXT)


def _kernel_word(run: TransformerRun) -> str:
    kernel = run.spec.training.attention
    if kernel is AttentionKernel.FLASH:
        # Some fused kernel: the stack knows which, unless it has none by itself.
        return AttentionKernel.FLASH2.value if run.stack.unfuses_attention else "auto"
    return _KERNELS.get(kernel) or str(kernel.value)


@dataclass(frozen=True, slots=True)
class _Unfused:
    """Attention over *pairs* of sequence and head; *is_masked_in_softmax* fuses scale and mask."""

    pairs: int
    length: int
    width: int
    dtype: DType
    has_dropout: bool
    is_masked_in_softmax: bool

    def forward(self) -> list[Step]:
        label = "attention/core forward"
        steps = self._copies(label)
        steps.append(Step("bmm", label, (self._scores(),)))
        if not self.is_masked_in_softmax:
            steps += [self._pass("div", "div", label), self._pass("add", "mask", label)]
        steps.append(Step("softmax", label, (self._softmax("softmax", reads=1),)))
        if self.has_dropout:
            dropped = dropout(self._pair_count, self.dtype, is_backward=False)
            steps.append(Step("dropout", label, (dropped,)))
        steps.append(Step("bmm", label, (self._mixed(),)))
        return [*steps, self._reorder("reshape", label)]

    def backward(self) -> list[Step]:
        label = "attention/core backward"
        steps = [
            self._reorder("TransposeBackward", label),
            Step("BmmBackward", label, (self._scores(), self._mixed())),
        ]
        if self.has_dropout:
            dropped = dropout(self._pair_count, self.dtype, is_backward=True)
            steps.append(Step("MulBackward", label, (dropped,)))
        softmax = self._softmax("softmax_backward", reads=2)
        steps.append(Step("SoftmaxBackward", label, (softmax,)))
        if not self.is_masked_in_softmax:
            steps.append(self._pass("DivBackward", "div", label))
        steps.append(Step("BmmBackward", label, (self._mixed(), self._mixed())))
        return [*steps, *self._copies(label)]

    @property
    def _pair_count(self) -> int:
        return self.pairs * self.length**2

    def _scores(self) -> Gemm:
        return Gemm(self.length, self.length, self.width, self.dtype, batch=self.pairs)

    def _mixed(self) -> Gemm:
        # Also the gradients of queries, keys and values: as many tokens on either side.
        return Gemm(self.length, self.width, self.length, self.dtype, batch=self.pairs)

    def _softmax(self, word: str, *, reads: int) -> MemoryBound:
        size_bytes = self._pair_count * self.dtype.size_bytes
        return MemoryBound(word, reads * size_bytes, size_bytes, self.dtype, row_length=self.length)

    def _pass(self, operator: str, kernel: str, label: str) -> Step:
        return Step(operator, label, (elementwise(kernel, self._pair_count, self.dtype),))

    def _reorder(self, operator: str, label: str) -> Step:
        elements = self.pairs * self.length * self.width
        return Step(operator, label, (elementwise("transpose", elements, self.dtype),))

    def _copies(self, label: str) -> list[Step]:
        if self.is_masked_in_softmax:
            return []
        return [self._reorder("reshape", label) for _ in ("queries", "keys", "values")]
