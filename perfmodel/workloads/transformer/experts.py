"""A layer's experts as steps: routing, exchange of tokens, grouped GEMMs, and back.

Every rank sends each of its tokens to the ranks of the experts it chose, and
gets their results back. All ranks are written as the most loaded one, because
the exchange behind the GEMMs waits for it. With a capacity factor an expert
drops the tokens beyond it; the bytes sent shrink with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import GroupedGemm, MemoryBound
from perfmodel.graph.routing import hottest_loads
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.workloads.kernels import Linear, elementwise
from perfmodel.workloads.transformer.chains import activation_steps
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.shapes import ExpertShape
from perfmodel.workloads.transformer.spec import Routing, TransformerSpec
from perfmodel.workloads.transformer.steps import Step, communication, pointwise

_UP, _DOWN = "ffn/experts up", "ffn/experts down"


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


@dataclass(frozen=True, slots=True)
class ExpertSteps:
    """Makes the steps of the routed experts of a layer; *shape* is what a rank holds of them."""

    linears: LinearSteps
    shape: ExpertShape

    def forward(self) -> list[Step]:
        """From normalised tokens to the sum of their experts' results."""
        return [
            *self.without_down(),
            self._grouped(self.shape.down, _DOWN),
            *reversed(self._routed("combine", "unsort forward", CollectiveKind.REDUCE_SCATTER)),
            self._combined("forward"),
        ]

    def without_down(self) -> list[Step]:
        """As far as the activation, which the backward pass needs."""
        return [
            *self.linears.replicated(self.shape.router, "ffn/router"),
            self._chosen("forward"),
            self._moved("ffn/permute forward", self.sent_rows),
            *self._routed("dispatch", "sort forward", CollectiveKind.ALL_GATHER),
            self._grouped(self.shape.up, _UP),
            *self._activation("forward"),
        ]

    def backward(self) -> list[Step]:
        """The same way back, with GEMMs for inputs and weights."""
        return [
            self._combined("backward"),
            *self._routed("combine gradient", "sort backward", CollectiveKind.ALL_GATHER),
            *self._grouped_backward(self.shape.down, _DOWN),
            *self._activation("backward"),
            *self._grouped_backward(self.shape.up, _UP),
            *reversed(
                self._routed("dispatch gradient", "unsort backward", CollectiveKind.REDUCE_SCATTER)
            ),
            self._moved("ffn/permute backward", self.sent_rows),
            self._chosen("backward"),
            *self.linears.replicated_backward(self.shape.router, "ffn/router"),
        ]

    def casts(self) -> list[Step]:
        """The casts of the stored weights of all experts to the format of GEMMs."""
        steps = []
        for linear, label in ((self.shape.up, _UP), (self.shape.down, _DOWN)):
            stacked = Linear(linear.inputs, linear.outputs * self.shape.held)
            steps += self.linears.weight_casts(stacked, label)
        return steps

    @property
    def spec(self) -> TransformerSpec:
        """The workload."""
        return self.linears.run.spec

    @property
    def sent_rows(self) -> int:
        """Rows that a rank sends: each token once per chosen expert."""
        return self.linears.split_tokens * self.spec.model.top_k

    @property
    def received_rows(self) -> int:
        """Rows that the most loaded rank receives."""
        return routed_rows(self.spec, tokens=self.linears.split_tokens, ep=self.linears.layout.ep)

    @property
    def rows(self) -> int:
        """Rows that its experts work on, including those of the other ranks of an expert."""
        return self.received_rows * self.linears.layout.etp

    def _routed(self, what: str, order: str, kind: CollectiveKind) -> list[Step]:
        """Rows sent to the ranks of the experts, to all ranks that share one, and put in *order*.

        Reversed, this is the way back to the ranks of their tokens.
        """
        layout = self.linears.layout
        steps = []
        if layout.etp > 1:
            steps.append(self._communication(kind, what, self.rows, Slot.EXPERT_TENSOR))
        if layout.ep > 1:
            steps = [self._exchange(what), *steps, self._moved(f"ffn/{order}", self.rows)]
        return steps

    def _exchange(self, what: str) -> Step:
        # The rank with most to receive delays the others, so all send as much as it receives.
        rows = math.ceil(self.received_rows * self._copies_share)
        return self._communication(CollectiveKind.ALL_TO_ALL, what, rows, Slot.EXPERTS)

    @property
    def _copies_share(self) -> float:
        """Copies of a token that are sent, as a share of the experts it chose.

        Between hosts the network decides, and the copies inside a host are made there.
        """
        layout, top_k = self.linears.layout, self.spec.model.top_k
        if not self.linears.run.stack.has(FrameworkBehaviour.TOKENS_ONCE):
            return 1.0
        places = layout.expert_hosts if layout.expert_hosts > 1 else layout.ep
        # Places that top_k independent, even choices are expected to fall on.
        return places * (1.0 - (1.0 - 1.0 / places) ** top_k) / top_k

    def _communication(self, kind: CollectiveKind, what: str, rows: int, slot: Slot) -> Step:
        dtype = self.linears.dtype
        size_bytes = rows * self.spec.model.hidden * dtype.size_bytes
        return communication(kind, f"ffn/{what}", size_bytes, dtype, slot)

    def _grouped(self, linear: Linear, label: str) -> Step:
        casts = self.linears.cast(self.rows * linear.inputs)
        gemm = self._gemm(self._rows_per_expert, linear.outputs, linear.inputs)
        return Step("grouped_mm", f"{label} forward", (*casts, gemm))

    def _grouped_backward(self, linear: Linear, label: str) -> list[Step]:
        name, rows = f"{label} backward", self._rows_per_expert
        kernels = (
            *self.linears.cast(self.rows * linear.outputs),
            self._gemm(rows, linear.inputs, linear.outputs),
            self._gemm(linear.outputs, linear.inputs, rows),
        )
        added = self.linears.accumulate(self.shape.held * linear.parameters, name)
        return [
            Step("GroupedMmBackward", name, kernels),
            *(replace(step, is_expert=True) for step in added),
        ]

    @property
    def _rows_per_expert(self) -> int:
        return max(1, -(-self.rows // self.shape.held))

    def _gemm(self, m: int, n: int, k: int) -> GroupedGemm:
        return GroupedGemm(self.shape.held, m, n, k, self.linears.gemm_dtype)

    def _activation(self, way: str) -> list[Step]:
        elements, label = self.rows * self.shape.down.inputs, f"ffn/experts activation {way}"
        return activation_steps(self.linears, elements, label, is_backward=way == "backward")

    def _chosen(self, way: str) -> Step:
        """Scores over all experts, and the choice of the largest."""
        experts = self.spec.model.experts
        scores = self.linears.split_tokens * experts
        op = elementwise("softmax", scores, DType.FP32, reads=2, row_length=experts)
        return Step("topk", f"ffn/router choice {way}", (op,))

    def _moved(self, label: str, rows: int) -> Step:
        elements = rows * self.spec.model.hidden
        return pointwise("index_select", label, "embedding", elements, self.linears.dtype)

    def _combined(self, way: str) -> Step:
        """The weighted sum of the results of a token's experts, or its gradient."""
        dtype = self.linears.dtype
        row_bytes = self.spec.model.hidden * dtype.size_bytes
        many, few = self.sent_rows * row_bytes, self.linears.split_tokens * row_bytes
        read, write = (many, few) if way == "forward" else (many + few, many)
        op = MemoryBound("embedding", read, write, dtype)
        return Step("index_add", f"ffn/combine {way}", (op,))
