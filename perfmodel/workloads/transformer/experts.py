"""A layer's experts as steps: routing, exchange of tokens, grouped products, and back.

Every rank sends each of its tokens to the ranks of the experts it chose, and
gets back what they made of it. All ranks are written as the most loaded one,
because the exchange behind the products waits for that one. With a capacity
factor an expert drops what is beyond it; the bytes sent shrink with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import GroupedGemm, MemoryBound, Op
from perfmodel.stacks.stack import FrameworkBehaviour
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.routing import distinct_places, routed_rows
from perfmodel.workloads.transformer.schedule import Step
from perfmodel.workloads.transformer.shapes import ExpertShape, Linear
from perfmodel.workloads.transformer.slots import Slot
from perfmodel.workloads.transformer.spec import TransformerSpec


@dataclass(frozen=True, slots=True)
class ExpertSteps:
    """Makes the steps of the routed experts of a layer; *shape* is what a rank holds of them."""

    products: ProductSteps
    shape: ExpertShape

    def forward(self) -> list[Step]:
        """From normalised tokens to the sum of what their experts made of them."""
        return [
            *self.without_down(),
            self._grouped(self.shape.down, "ffn/experts down"),
            *self._returned("forward"),
            self._combined("ffn/combine forward"),
        ]

    def without_down(self) -> list[Step]:
        """As far as the activation, which the backward pass needs."""
        return [
            *self.products.local(self.shape.router, "ffn/router"),
            self._chosen("ffn/router choice forward"),
            self._moved("ffn/permute forward", self.sent_rows),
            *self._dispatched("forward"),
            self._grouped(self.shape.up, "ffn/experts up"),
            *self._activation("ffn/experts activation forward", is_backward=False),
        ]

    def backward(self) -> list[Step]:
        """The same way back, with products for inputs and weights."""
        return [
            self._combined("ffn/combine backward"),
            *self._dispatched("backward"),
            *self._grouped_backward(self.shape.down, "ffn/experts down"),
            *self._activation("ffn/experts activation backward", is_backward=True),
            *self._grouped_backward(self.shape.up, "ffn/experts up"),
            *self._returned("backward"),
            self._moved("ffn/permute backward", self.sent_rows),
            self._chosen("ffn/router choice backward"),
            *self.products.local_backward(self.shape.router, "ffn/router"),
        ]

    def casts(self) -> list[Step]:
        """What turns stored weights of all experts into the format of products."""
        return [
            step
            for linear, label in (
                (self.shape.up, "ffn/experts up"),
                (self.shape.down, "ffn/experts down"),
            )
            for step in self.products.weight_casts(
                Linear(linear.inputs, linear.outputs * self.shape.held), label
            )
        ]

    @property
    def spec(self) -> TransformerSpec:
        """The workload."""
        return self.products.spec

    @property
    def dtype(self) -> DType:
        """What activations are stored in."""
        return self.products.dtype

    @property
    def sent_rows(self) -> int:
        """Rows that a rank sends: each token as often as it chose experts."""
        return self.products.split_tokens * self.spec.model.top_k

    @property
    def received_rows(self) -> int:
        """Rows that the most loaded rank receives."""
        layout = self.products.layout
        return routed_rows(self.spec, tokens=self.products.split_tokens, ep=layout.ep)

    @property
    def rows(self) -> int:
        """Rows that its experts work on, those of the other ranks of an expert included."""
        return self.received_rows * self.products.layout.etp

    def _dispatched(self, way: str) -> list[Step]:
        """Rows brought to the experts: to their rank, to all ranks that share them, in order."""
        layout = self.products.layout
        what = "dispatch" if way == "forward" else "combine gradient"
        steps = []
        if layout.ep > 1:
            steps += [self._exchange(f"ffn/{what}"), self._moved(f"ffn/sort {way}", self.rows)]
        if layout.etp > 1:
            steps.insert(1 if layout.ep > 1 else 0, self._share(CollectiveKind.ALL_GATHER, what))
        return steps

    def _returned(self, way: str) -> list[Step]:
        """Rows brought back to the ranks of their tokens."""
        layout = self.products.layout
        what = "combine" if way == "forward" else "dispatch gradient"
        steps = []
        if layout.ep > 1:
            steps.append(self._moved(f"ffn/unsort {way}", self.rows))
        if layout.etp > 1:
            steps.append(self._share(CollectiveKind.REDUCE_SCATTER, what))
        if layout.ep > 1:
            steps.append(self._exchange(f"ffn/{what}"))
        return steps

    def _exchange(self, label: str) -> Step:
        kind = CollectiveKind.ALL_TO_ALL
        # The rank with most to receive holds the others up, so all send as much as it receives.
        rows = math.ceil(self.received_rows * self._copies_share)
        size_bytes = rows * self.spec.model.hidden * self.dtype.size_bytes
        collective = Collective(kind, size_bytes=size_bytes, dtype=self.dtype)
        return Step(kind.value, f"{label} {kind.value}", collective=collective, slot=Slot.EXPERTS)

    @property
    def _copies_share(self) -> float:
        """Copies of a token that travel, as a share of the experts it chose.

        Between hosts the network decides, and the copies inside a host are made there.
        """
        layout, top_k = self.products.layout, self.spec.model.top_k
        if not self.products.run.stack.has(FrameworkBehaviour.TOKENS_ONCE):
            return 1.0
        places = layout.expert_hosts if layout.expert_hosts > 1 else layout.ep
        return distinct_places(top_k, places) / top_k

    def _share(self, kind: CollectiveKind, what: str) -> Step:
        size_bytes = self.rows * self.spec.model.hidden * self.dtype.size_bytes
        collective = Collective(kind, size_bytes=size_bytes, dtype=self.dtype)
        name = f"ffn/{what} {kind.value}"
        return Step(kind.value, name, collective=collective, slot=Slot.EXPERT_TENSOR)

    def _grouped(self, linear: Linear, label: str) -> Step:
        op = self._product(linear.outputs, linear.inputs)
        return Step("grouped_mm", f"{label} forward", (*self._cast(linear.inputs), op))

    def _grouped_backward(self, linear: Linear, label: str) -> list[Step]:
        name = f"{label} backward"
        weight = GroupedGemm(
            groups=self.shape.held,
            m=linear.outputs,
            n=linear.inputs,
            k=self._rows_of_expert,
            dtype=self.products.product_dtype,
        )
        kernels: tuple[Op, ...] = (
            *self._cast(linear.outputs),
            self._product(linear.inputs, linear.outputs),
            weight,
        )
        added = self.products.accumulate(self.shape.held * linear.parameters, name)
        return [
            Step("GroupedMmBackward", name, kernels),
            *(replace(step, is_expert=True) for step in added),
        ]

    @property
    def _rows_of_expert(self) -> int:
        return max(1, -(-self.rows // self.shape.held))

    def _product(self, n: int, k: int) -> GroupedGemm:
        dtype = self.products.product_dtype
        return GroupedGemm(self.shape.held, self._rows_of_expert, n, k, dtype)

    def _cast(self, width: int) -> tuple[Op, ...]:
        return self.products.cast(self.rows * width)

    def _activation(self, label: str, *, is_backward: bool) -> list[Step]:
        elements = self.rows * self.shape.down.inputs
        return chains.activation_steps(self.products, elements, label, is_backward=is_backward)

    def _chosen(self, label: str) -> Step:
        """Scores over all experts, and which are the largest."""
        size_bytes = self.products.split_tokens * self.spec.model.experts * DType.FP32.size_bytes
        op = MemoryBound(
            "softmax", 2 * size_bytes, size_bytes, DType.FP32, row_length=self.spec.model.experts
        )
        return Step("topk", label, (op,))

    def _moved(self, label: str, rows: int) -> Step:
        op = elementwise("embedding", rows * self.spec.model.hidden, self.dtype)
        return Step("index_select", label, (op,))

    def _combined(self, label: str) -> Step:
        """The weighted sum of what the experts of a token made, or its gradient."""
        size_bytes = self.spec.model.hidden * self.dtype.size_bytes
        many, few = self.sent_rows * size_bytes, self.products.split_tokens * size_bytes
        op = MemoryBound("embedding", many, few, self.dtype)
        if label.endswith("backward"):
            op = MemoryBound("embedding", many + few, many, self.dtype)
        return Step("index_add", label, (op,))
