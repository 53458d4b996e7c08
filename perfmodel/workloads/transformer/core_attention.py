"""Core attention as steps: one fused kernel, or products with passes over the scores.

Unfused, nothing is saved by a causal mask: the whole matrix of scores is made,
masked and read. Plain eager code also copies queries, keys and values so that
heads lie one after another; a stack with a fused scale-mask-softmax does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import dropout, elementwise
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Step
from perfmodel.workloads.transformer.shapes import layer_shape
from perfmodel.workloads.transformer.spec import AttentionKernel

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
    seen = (spec.model.window or length) + _TILE if has_window else length
    op = Attention(
        batch=layout.micro_batch,
        query_length=length,
        key_length=min(length, seen),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=spec.model.head_width,
        dtype=spec.training.precision,
        is_causal=spec.model.causal and seen >= length,
        direction=direction,
        kernel=_kernel_word(run),
    )
    operator = "scaled_dot_product_attention"
    if direction is Pass.BACKWARD:
        operator = "ScaledDotProductAttentionBackward"
    return [Step(operator, f"attention/core {direction.value}", (op,))]


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
