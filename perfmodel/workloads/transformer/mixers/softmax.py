"""Attention by a softmax over scores: of all tokens, of a window, with latent keys, or sparse.

Sparse attention (DSA) sees the tokens that an indexer chose: a few narrow heads score every pair,
and the largest scores of each token are kept. The indexer is whole on every rank of a tensor
group. It learns from the scores of attention, over the chosen tokens alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Pass, Unmeasured
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion
from perfmodel.workloads.eager import Step, pointwise
from perfmodel.workloads.kernels import FP32_BYTES, Linear, elementwise
from perfmodel.workloads.transformer.attention import TILE, attention_steps
from perfmodel.workloads.transformer.chains import chain_name, chain_steps
from perfmodel.workloads.transformer.mixers.mixer import LATENT, QKV, MixerShape, Mixing
from perfmodel.workloads.transformer.words import AttentionKernel, Positions, Recompute

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.model import ModelSection


class SoftmaxAttention:
    """Attention over all tokens before, or over a window of them."""

    def shape(self, model: ModelSection, *, tp: int) -> MixerShape:
        """Heads are divided; keys and values that are fewer than the ranks are on several."""
        heads, kv_heads = model.heads // tp, max(1, model.key_heads // tp)
        width = (heads + kv_heads) * model.head_width + kv_heads * model.value_width
        if model.output_gate:
            width += heads * model.value_width
        return MixerShape(
            {QKV: _linear(model, model.hidden, width)},
            _linear(model, heads * model.value_width, model.hidden),
            heads=heads,
            kv_heads=kv_heads,
        )

    def before_core(self, one: Mixing, direction: Pass) -> list[Step]:
        """Positions: the rotation of queries and keys."""
        return _rotary(one, direction, one.model.head_width, one.shape.kv_heads)

    def core(self, one: Mixing, direction: Pass) -> list[Step]:
        """The attention core, and the gate of its output."""
        steps = attention_steps(one, direction, self.seen(one.model, one.run.spec.sequence_length))
        if not one.model.output_gate:
            return steps
        elements = one.linears.tokens * one.shape.core_outputs
        label, is_forward = f"attention/gate {direction.value}", direction is Pass.FORWARD
        sizes = {"reads": 2, "writes": 1} if is_forward else {"reads": 3, "writes": 2}
        operator = "mul" if is_forward else "MulBackward"
        gate = pointwise(operator, label, "mul", elements, one.linears.dtype, **sizes)
        return [*steps, gate] if is_forward else [gate, *steps]

    def seen(self, model: ModelSection, _length: int) -> int | None:
        """How many tokens a token sees on average, if not all of them."""
        return None if model.window is None else model.window + TILE

    def core_flops(self, model: ModelSection, *, length: int, together: int) -> int:
        """Scores, and the mixture of values: two operations each per pair and number."""
        seen = min(together, model.window or together)
        return 2 * length * seen * model.heads * (model.query_width + model.value_width)

    def copied_width(self, one: Mixing) -> int:
        """Rotated queries and keys, besides the output of the GEMM that values still need."""
        run, shape = one.run, one.shape
        is_kept = not run.stack.has(FrameworkBehaviour.ROTATES_IN_PLACE)
        if run.fuses_pointwise or one.model.positions is Positions.LEARNED or not is_kept:
            return 0
        return (shape.heads + shape.kv_heads) * one.model.head_width

    def score_bytes(self, one: Mixing, recompute: Recompute) -> int:
        """None per pair in a flash kernel or if recomputed; a sum per token and head."""
        run, length = one.run, one.run.spec.sequence_length
        sequences, size = run.layout.micro_batch * one.shape.heads, run.dtype.size_bytes
        is_unfused = run.spec.training.attention is AttentionKernel.UNFUSED
        if not is_unfused or recompute is not Recompute.NONE:
            return FP32_BYTES * sequences * length // run.layout.cp
        return (size + (size + 1 if one.model.dropout else 0)) * sequences * length**2


class LatentAttention(SoftmaxAttention):
    """Attention whose keys and values are made from a latent vector, whole on every rank."""

    def shape(self, model: ModelSection, *, tp: int) -> MixerShape:
        """The latent vectors have norms."""
        heads, kv_rank, q_rank = model.heads // tp, model.kv_lora_rank or 0, model.q_lora_rank or 0
        inputs = {
            LATENT: _linear(model, model.hidden, q_rank + kv_rank + model.rope_dim),
            QKV: _linear(model, q_rank or model.hidden, heads * model.query_width),
            "attention/keys": _linear(
                model, kv_rank, heads * (model.head_width + model.value_width)
            ),
        }
        values = heads * model.value_width
        if model.output_gate:
            inputs["attention/gate"] = _linear(model, model.hidden, values)
        return MixerShape(
            inputs,
            _linear(model, values, model.hidden),
            whole=(LATENT,),
            extra=q_rank + kv_rank,
            heads=heads,
            kv_heads=heads,
        )

    def before_core(self, one: Mixing, direction: Pass) -> list[Step]:
        """Only the part beside each head is rotated, and all keys share one."""
        return _rotary(one, direction, one.model.rope_dim, 1)


class SparseAttention(SoftmaxAttention):
    """Attention over the tokens that an indexer chose, with or without latent keys."""

    def shape(self, model: ModelSection, *, tp: int) -> MixerShape:
        """Queries of the indexer come from the latent query where there is one."""
        plain, heads = _plain(model).shape(model, tp=tp), model.index_heads
        if not heads:
            return plain
        queries = Linear(model.q_lora_rank or model.hidden, heads * model.index_dim)
        # One key, and a weight for each head.
        keys = Linear(model.hidden, model.index_dim + heads)
        index = {"attention/index queries": queries, "attention/index keys": keys}
        return MixerShape(
            {**plain.inputs, **index},
            plain.projection,
            whole=(*plain.whole, *index),
            extra=plain.extra + 2 * model.index_dim,
            heads=plain.heads,
            kv_heads=plain.kv_heads,
        )

    def before_core(self, one: Mixing, direction: Pass) -> list[Step]:
        """The rotation, and the indexer: scores of all pairs, and the largest of each token."""
        model, run, dtype = one.model, one.run, one.linears.dtype
        plain = _plain(model).before_core(one, direction)
        if not model.index_heads:
            return plain
        length, tokens, label = run.spec.sequence_length, run.tokens, "attention/index"
        heads, top_k = model.index_heads, min(model.index_top_k or length, length)
        read_bytes = tokens * (heads + 1) * model.index_dim * dtype.size_bytes
        if direction is Pass.BACKWARD:
            # Queries and keys of the chosen pairs.
            flops = 2 * self._pair_flops(model, tokens * top_k)
            written = read_bytes + tokens * top_k * FP32_BYTES
            op = Unmeasured("index_backward", flops, read_bytes + written, read_bytes, dtype)
            return [
                Step("IndexBackward", f"{label} backward", (op,)),
                *plain,
            ]
        # A causal token has half of the others before it on average.
        pairs = tokens * length // (2 if model.causal else 1)
        scores = Unmeasured(
            "index_scores", self._pair_flops(model, pairs), read_bytes, pairs * FP32_BYTES, dtype
        )
        chosen = elementwise("topk", pairs, DType.FP32, writes=0, row_length=length)
        return [
            *plain,
            Step("index_scores", f"{label} scores forward", (scores,)),
            Step("topk", f"{label} choice forward", (chosen,)),
        ]

    def seen(self, model: ModelSection, length: int) -> int | None:
        """The first tokens have fewer before them than they may choose."""
        top_k = model.index_top_k or length
        if top_k >= length:
            return None
        return top_k - top_k**2 // (2 * length) if model.causal else top_k

    def core_flops(self, model: ModelSection, *, length: int, together: int) -> int:
        """Those of the chosen pairs, and the scores of the indexer over all."""
        chosen = min(together, model.index_top_k or together)
        core = super().core_flops(model, length=length, together=chosen)
        return core + self._pair_flops(model, length * together)

    def copied_width(self, one: Mixing) -> int:
        """Also the numbers of the chosen tokens, four bytes each."""
        length = one.run.spec.sequence_length
        chosen = min(one.model.index_top_k or length, length)
        return super().copied_width(one) + chosen * FP32_BYTES // one.run.dtype.size_bytes

    def _pair_flops(self, model: ModelSection, pairs: int) -> int:
        return 2 * pairs * (model.index_heads or 0) * model.index_dim


def _plain(model: ModelSection) -> SoftmaxAttention:
    """What is sparse: attention with latent keys, or without."""
    return LatentAttention() if model.kv_lora_rank is not None else SoftmaxAttention()


def _linear(model: ModelSection, inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, outputs if model.bias else 0)


def _rotary(one: Mixing, direction: Pass, width: int, key_heads: int) -> list[Step]:
    """The rotation of *width* numbers of every query head and of *key_heads*."""
    if one.model.positions is Positions.LEARNED:
        return []
    linears, run, label = one.linears, one.run, f"attention/rotary {direction.value}"
    sizes = [linears.tokens * heads * width for heads in (one.shape.heads, key_heads)]
    is_known = one.model.positions is Positions.ROTARY or run.fuses_pointwise
    if is_known and run.stack.fuses(Fusion.ROTARY):
        operator = "rotary" if direction is Pass.FORWARD else "RotaryBackward"
        return [pointwise(operator, label, "rotary", sum(sizes), linears.dtype)]
    name = chain_name("rotary", direction)
    of_queries, of_keys = (chain_steps(name, label, size, linears.dtype) for size in sizes)
    return of_queries + of_keys
