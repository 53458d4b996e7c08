"""A layer's experts as steps: routing, exchange of tokens, grouped GEMMs, and back.

Every rank sends each of its tokens to the ranks of the experts it chose, and
gets their results back. All ranks are written as the most loaded one, because
the exchange behind the GEMMs waits for it. With a capacity factor an expert
drops the tokens beyond it; the bytes sent shrink with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import GroupedGemm, MemoryBound, Pass
from perfmodel.graph.routing import hottest_loads
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.workloads.eager import Step, communication, pointwise
from perfmodel.workloads.kernels import Linear, elementwise
from perfmodel.workloads.transformer.chains import activation_steps
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.shapes import ExpertShape
from perfmodel.workloads.transformer.spec import Routing, TransformerSpec

_ROUTER, _UP, _DOWN = "ffn/router", "ffn/experts up", "ffn/experts down"


def routed_rows(spec: TransformerSpec, *, tokens: int, ep: int) -> int:
    """Rows that the most loaded of *ep* ranks works on if each has *tokens* tokens."""
    model, training = spec.model, spec.training
    is_even = training.routing is Routing.BALANCED
    rows = hottest_loads(
        tokens=tokens * ep,
        top_k=model.top_k,
        experts=model.experts,
        ranks=ep,
        exponent=None if is_even else training.routing_exponent,
    ).rows
    if training.capacity_factor is not None:
        rows = min(rows, training.capacity_factor * tokens * model.top_k)
    return math.ceil(rows)


class ExpertSteps:
    """Makes the steps of the routed experts of a layer; *shape* is what a rank holds of them."""

    def __init__(self, linears: LinearSteps, shape: ExpertShape) -> None:
        self._linears, self._shape, self._layout = linears, shape, linears.layout
        self._model, self._dtype = linears.run.spec.model, linears.dtype
        self._tokens = linears.split_tokens
        # Rows that a rank sends, each token once per chosen expert, that the most loaded rank
        # receives, and that its experts work on, including those of the other ranks of an expert.
        self._sent_rows = self._tokens * self._model.top_k
        self._received_rows = routed_rows(linears.run.spec, tokens=self._tokens, ep=self._layout.ep)
        self._rows = self._received_rows * self._layout.etp

    def forward(self) -> list[Step]:
        """From normalised tokens to the sum of their experts' results."""
        return [
            *self.without_down(),
            self._grouped(self._shape.down, _DOWN),
            *reversed(self._routed("combine", "unsort forward", CollectiveKind.REDUCE_SCATTER)),
            self._combined(Pass.FORWARD),
        ]

    def without_down(self) -> list[Step]:
        """As far as the activation, which the backward pass needs."""
        return [
            *self._linears.replicated(self._shape.router, _ROUTER),
            self._chosen(Pass.FORWARD),
            self._moved("permute forward", self._sent_rows),
            *self._routed("dispatch", "sort forward", CollectiveKind.ALL_GATHER),
            self._grouped(self._shape.up, _UP),
            *self._activation(Pass.FORWARD),
        ]

    def backward(self) -> list[Step]:
        """The same way back, with GEMMs for inputs and weights."""
        scatter = CollectiveKind.REDUCE_SCATTER
        return [
            self._combined(Pass.BACKWARD),
            *self._routed("combine gradient", "sort backward", CollectiveKind.ALL_GATHER),
            *self._grouped_backward(self._shape.down, _DOWN),
            *self._activation(Pass.BACKWARD),
            *self._grouped_backward(self._shape.up, _UP),
            *reversed(self._routed("dispatch gradient", "unsort backward", scatter)),
            self._moved("permute backward", self._sent_rows),
            self._chosen(Pass.BACKWARD),
            *self._linears.replicated_backward(self._shape.router, _ROUTER),
        ]

    def casts(self) -> list[Step]:
        """The casts of the stored weights of all experts to the format of GEMMs."""
        steps = []
        for linear, label in ((self._shape.up, _UP), (self._shape.down, _DOWN)):
            stacked = Linear(linear.inputs, linear.outputs * self._shape.held)
            steps += self._linears.weight_casts(stacked, label)
        return steps

    def _routed(self, what: str, order: str, kind: CollectiveKind) -> list[Step]:
        """Rows sent to the ranks of the experts, to all ranks that share one, and put in *order*.

        Reversed, this is the way back to the ranks of their tokens.
        """
        steps = []
        if self._layout.etp > 1:
            steps.append(self._communication(kind, what, self._rows, Slot.EXPERT_TENSOR))
        if self._layout.ep > 1:
            # The rank with most to receive delays the others, so all send as much as it receives.
            rows = math.ceil(self._received_rows * self._copies_share)
            sent = self._communication(CollectiveKind.ALL_TO_ALL, what, rows, Slot.EXPERTS)
            steps = [sent, *steps, self._moved(order, self._rows)]
        return steps

    @property
    def _copies_share(self) -> float:
        """Copies of a token that are sent, as a share of the experts it chose.

        Between hosts the network decides, and the copies inside a host are made there.
        """
        layout, top_k = self._layout, self._model.top_k
        if not self._linears.run.stack.has(FrameworkBehaviour.TOKENS_ONCE):
            return 1.0
        places = layout.expert_hosts if layout.expert_hosts > 1 else layout.ep
        # Places that top_k independent, even choices are expected to fall on.
        return places * (1.0 - (1.0 - 1.0 / places) ** top_k) / top_k

    def _communication(self, kind: CollectiveKind, what: str, rows: int, slot: Slot) -> Step:
        size_bytes = rows * self._model.hidden * self._dtype.size_bytes
        return communication(kind, f"ffn/{what}", size_bytes, self._dtype, slot)

    def _grouped(self, linear: Linear, label: str) -> Step:
        casts = self._linears.cast(self._rows * linear.inputs)
        gemm = self._gemm(self._rows_per_expert, linear.outputs, linear.inputs)
        return Step("grouped_mm", f"{label} forward", (*casts, gemm))

    def _grouped_backward(self, linear: Linear, label: str) -> list[Step]:
        name, rows = f"{label} backward", self._rows_per_expert
        kernels = (
            *self._linears.cast(self._rows * linear.outputs),
            self._gemm(rows, linear.inputs, linear.outputs),
            self._gemm(linear.outputs, linear.inputs, rows),
        )
        added = self._linears.accumulate(self._shape.held * linear.parameters, name)
        return [
            Step("GroupedMmBackward", name, kernels),
            *(replace(step, is_expert=True) for step in added),
        ]

    @property
    def _rows_per_expert(self) -> int:
        return max(1, -(-self._rows // self._shape.held))

    def _gemm(self, m: int, n: int, k: int) -> GroupedGemm:
        return GroupedGemm(self._shape.held, m, n, k, self._linears.gemm_dtype)

    def _activation(self, direction: Pass) -> list[Step]:
        elements = self._rows * self._shape.down.inputs
        return activation_steps(self._linears, elements, "ffn/experts activation", direction)

    def _chosen(self, direction: Pass) -> Step:
        """Scores over all experts, and the choice of the largest."""
        experts = self._model.experts
        scores = self._tokens * experts
        op = elementwise("softmax", scores, DType.FP32, reads=2, row_length=experts)
        return Step("topk", f"ffn/router choice {direction.value}", (op,))

    def _moved(self, what: str, rows: int) -> Step:
        elements = rows * self._model.hidden
        return pointwise("index_select", f"ffn/{what}", "embedding", elements, self._dtype)

    def _combined(self, direction: Pass) -> Step:
        """The weighted sum of the results of a token's experts, or its gradient."""
        row_bytes = self._model.hidden * self._dtype.size_bytes
        many, few = self._sent_rows * row_bytes, self._tokens * row_bytes
        read, write = (many, few) if direction is Pass.FORWARD else (many + few, many)
        op = MemoryBound("embedding", read, write, self._dtype)
        return Step("index_add", f"ffn/combine {direction.value}", (op,))
