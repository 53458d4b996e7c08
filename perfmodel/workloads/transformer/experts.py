"""A layer's experts as steps: routing, exchange of tokens, grouped GEMMs, and back.

Every rank sends each of its tokens to the ranks of the experts it chose, and
gets their results back. All ranks are written as the most loaded one, because
the exchange after the GEMMs waits for it. With a capacity factor an expert
drops the tokens beyond it; the bytes sent shrink with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from collectives.collective import Collective, CollectiveKind
from collectives.token_exchange import TokenLibrary, TokenRouting
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import GroupedGemm, MemoryBound, Op, Pass
from perfmodel.graph.routing import hottest_loads
from perfmodel.stacks.capabilities import Dispatcher
from perfmodel.workloads.eager import Step, communication, pointwise, repeat
from perfmodel.workloads.kernels import Linear, elementwise
from perfmodel.workloads.transformer.chains import activation_steps, chain_name, chain_steps
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.shapes import ExpertShape
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Routing

_ROUTER, _UP, _DOWN = "ffn/router", "ffn/experts up", "ffn/experts down"
_LIBRARIES = {
    Dispatcher.DEEPEP: TokenLibrary.DEEPEP,
    Dispatcher.HYBRIDEP: TokenLibrary.HYBRIDEP,
}
_MULTIPROCESSORS = {TokenLibrary.DEEPEP: 20, TokenLibrary.HYBRIDEP: 16}
"""That frameworks give to the exchange by default."""


_BLOCK_SCALED, _BLOCK = (DType.MXFP8, DType.NVFP4, DType.MXFP4), 32
"""Formats with a scale of one byte for so many numbers (nvfp4: for half as many)."""


def routed_rows(spec: TransformerSpec, *, tokens: int, ep: int) -> int:
    """Rows that the most loaded of *ep* ranks works on if each has *tokens* tokens."""
    model, training = spec.model, spec.training
    is_even = training.routing is not Routing.POWER_LAW
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
        self._width = self._model.expert_width
        self._tokens = linears.split_tokens
        self._dispatcher = linears.run.dispatcher
        # Rows that a rank sends, each token once per chosen expert, that the most loaded rank
        # receives, and that its experts work on, including those of the other ranks of an expert.
        self._sent_rows = self._tokens * self._model.top_k
        self._received_rows = routed_rows(linears.run.spec, tokens=self._tokens, ep=self._layout.ep)
        self._rows = self._received_rows * self._layout.etp

    def forward(self) -> list[Step]:
        """From normalised tokens to the sum of their experts' results."""
        return [
            *self.without_down(),
            *self._products(self._shape.down, _DOWN),
            *self._biased(Pass.FORWARD),
            *reversed(self._routed("combine", "unsort forward", is_back=True)),
            *self._combined(Pass.FORWARD),
            *self._resized(self._shape.lengthen, "lengthen", Pass.FORWARD),
        ]

    def without_down(self) -> list[Step]:
        """As far as the activation, which the backward pass needs."""
        return [
            *self._linears.replicated(self._shape.router, _ROUTER),
            self._chosen(Pass.FORWARD),
            *self._resized(self._shape.shorten, "shorten", Pass.FORWARD),
            *self._permuted("permute forward"),
            *self._routed("dispatch", "sort forward", is_back=False),
            *self._products(self._shape.up, _UP),
            *self.activation(Pass.FORWARD),
        ]

    def backward(self) -> list[Step]:
        """The same way back, with GEMMs for inputs and weights."""
        return [
            *self._resized(self._shape.lengthen, "lengthen", Pass.BACKWARD),
            *self._combined(Pass.BACKWARD),
            *self._routed("combine gradient", "sort backward", is_back=False),
            *self._biased(Pass.BACKWARD),
            *self._products_backward(self._shape.down, _DOWN),
            *self.activation(Pass.BACKWARD),
            *self._products_backward(self._shape.up, _UP),
            *reversed(self._routed("dispatch gradient", "unsort backward", is_back=True)),
            *self._permuted("permute backward"),
            *self._resized(self._shape.shorten, "shorten", Pass.BACKWARD),
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

    def _resized(self, linear: Linear | None, word: str, direction: Pass) -> list[Step]:
        """Tokens made as short as experts take them, or their results as long as tokens."""
        if linear is None:
            return []
        linears, label = self._linears, f"ffn/{word}"
        is_forward = direction is Pass.FORWARD
        return (linears.replicated if is_forward else linears.replicated_backward)(linear, label)

    @property
    def _library(self) -> TokenLibrary | None:
        """The library that exchanges tokens, unless NCCL does."""
        if self._layout.ep == 1:
            return None
        return _LIBRARIES.get(self._dispatcher)

    def _routed(self, what: str, order: str, *, is_back: bool) -> list[Step]:
        """Rows sent to the ranks of the experts, to all ranks that share one, and put in *order*.

        Reversed, this is the way back to the ranks of their tokens.
        """
        steps = []
        if self._layout.etp > 1:
            kind = CollectiveKind.REDUCE_SCATTER if is_back else CollectiveKind.ALL_GATHER
            steps.append(self._communication(kind, what, self._rows, Slot.EXPERT_TENSOR))
        if self._layout.ep > 1:
            sent = self._exchanged(what, is_back=is_back)
            steps = [sent, *steps, self._moved(order, self._rows)]
        return steps

    def _exchanged(self, what: str, *, is_back: bool) -> Step:
        """The exchange of tokens between the ranks that divide the experts."""
        if self._library is not None:
            # The rank with most to receive delays the others, so all send as much as it receives.
            tokens = -(-self._received_rows // self._model.top_k)
            return self._routing(self._library, what, tokens, is_back=is_back)
        if self._dispatcher is Dispatcher.ALL_GATHER:
            kind = CollectiveKind.REDUCE_SCATTER if is_back else CollectiveKind.ALL_GATHER
            return self._communication(kind, what, self._tokens * self._layout.ep, Slot.EXPERTS)
        rows = self._received_rows
        return self._communication(CollectiveKind.ALL_TO_ALL, what, rows, Slot.EXPERTS)

    def _routing(self, library: TokenLibrary, what: str, tokens: int, *, is_back: bool) -> Step:
        model = self._model
        sms = _MULTIPROCESSORS[library]
        is_in_turn = self._linears.training.routing is Routing.IN_TURN
        chosen = (model.top_k, model.experts)
        routing = TokenRouting(library, tokens, *chosen, is_back, sms, is_in_turn)
        size_bytes = tokens * self._width * self._dtype.size_bytes
        kind = CollectiveKind.ALL_TO_ALL
        collective = Collective(kind, size_bytes, self._dtype, routing=routing)
        name = f"ffn/{what} {library.value}"
        return Step(kind.value, name, collective=collective, slot=Slot.EXPERTS)

    def _communication(self, kind: CollectiveKind, what: str, rows: int, slot: Slot) -> Step:
        size_bytes = rows * self._width * self._dtype.size_bytes
        return communication(kind, f"ffn/{what}", size_bytes, self._dtype, slot)

    def _permuted(self, what: str) -> list[Step]:
        """Copies of tokens for their experts; libraries and gathers take the tokens themselves."""
        is_whole = self._layout.ep > 1 and self._dispatcher is not Dispatcher.ALL_TO_ALL
        return [] if is_whole else [self._moved(what, self._sent_rows)]

    def _products(self, linear: Linear, label: str) -> list[Step]:
        """The GEMMs of all experts of a rank, in one kernel or one after the other."""
        casts = self._linears.cast(self._rows * linear.inputs)
        shape, name = (linear.outputs, linear.inputs), f"{label} forward"
        rows = self._rows_per_expert
        if self._linears.run.groups_experts:
            return [Step("grouped_mm", name, (*casts, self._grouped(rows, *shape)))]
        each = self._linears.cast(rows * linear.inputs)
        operator = "looped_linear" if self._is_loop else "linear"
        return repeat(Step(operator, name, (*each, *self._scaled(rows, *shape))), self.held)

    def _products_backward(self, linear: Linear, label: str) -> list[Step]:
        name, rows, held = f"{label} backward", self._rows_per_expert, self.held
        is_grouped = self._linears.run.groups_experts
        summed = self._linears.added_bytes(linear.weight) * (held if is_grouped else 1)
        shapes = (
            (rows, linear.inputs, linear.outputs),
            (linear.outputs, linear.inputs, rows, summed),
        )
        if is_grouped:
            casts = self._linears.cast(self._rows * linear.outputs)
            kernels = (*casts, *(self._grouped(*shape) for shape in shapes))
            steps = [Step("GroupedMmBackward", name, kernels, weight_kernels=1)]
        else:
            casts = self._linears.cast(rows * linear.outputs)
            of_input, of_weight = (self._scaled(*shape) for shape in shapes)
            kernels, behind = (*casts, *of_input, *of_weight), len(of_weight)
            operator = "LoopedLinearBackward" if self._is_loop else "AddmmBackward"
            steps = repeat(Step(operator, name, kernels, weight_kernels=behind), held)
        added = self._linears.accumulate(held * linear.parameters, name)
        return [*steps, *(replace(step, is_expert=True, is_weight=True) for step in added)]

    @property
    def _is_loop(self) -> bool:
        """Whether GEMMs one by one are a loop in native code, and not modules of the framework."""
        return self._linears.training.grouped_experts is None

    @property
    def held(self) -> int:
        """Experts of a rank."""
        return self._shape.held

    @property
    def _rows_per_expert(self) -> int:
        return max(1, -(-self._rows // self._shape.held))

    def _grouped(self, m: int, n: int, k: int, added_bytes: int = 0) -> GroupedGemm:
        """The GEMMs of all experts, or of one where they are launched one by one."""
        groups = self.held if self._linears.run.groups_experts else 1
        return GroupedGemm(groups, m, n, k, self._linears.gemm_dtype, added_bytes=added_bytes)

    def _scaled(self, m: int, n: int, k: int, added_bytes: int = 0) -> tuple[Op, ...]:
        """The GEMM of one expert, and before it kernels that order the scales of both operands.

        Formats with a scale per block keep scales in another order than tensor cores read them.
        """
        dtype = self._linears.gemm_dtype
        if dtype not in _BLOCK_SCALED:
            return (self._grouped(m, n, k, added_bytes),)
        sizes = (rows * k // _BLOCK for rows in (m, n))
        ordered = (MemoryBound("transpose", size, size, dtype) for size in sizes)
        return (*ordered, self._grouped(m, n, k, added_bytes))

    def activation(self, direction: Pass) -> list[Step]:
        """The activation between both GEMMs."""
        elements = self._rows * self._shape.down.inputs
        return activation_steps(self._linears, elements, "ffn/experts activation", direction)

    def _biased(self, direction: Pass) -> list[Step]:
        """The bias of the second GEMM times the score of each row, added expert by expert."""
        if not self._model.bias or self._linears.run.fuses_expert_bias:
            return []
        label, elements = f"ffn/experts bias {direction.value}", self._rows * self._width
        each, joined = (
            chain_steps(chain_name(name, direction), label, size, self._dtype)
            for name, size in (
                ("expert_bias", elements // self.held),
                ("expert_bias_joined", elements),
            )
        )
        of_experts = each * self.held
        return of_experts + joined if direction is Pass.FORWARD else joined + of_experts

    def _chosen(self, direction: Pass) -> Step:
        """Scores over all experts, and the choice of the largest."""
        experts = self._model.experts
        scores = self._tokens * experts
        op = elementwise("softmax", scores, DType.FP32, reads=2, row_length=experts)
        label = f"ffn/router choice {direction.value}"
        return Step("topk", label, (op,), is_blocking=self._is_counted(direction))

    def _is_counted(self, direction: Pass) -> bool:
        """Whether the host waits to learn how many rows every expert gets.

        It sizes buffers and GEMMs by them, unless all experts take the same number.
        """
        run = self._linears.run
        is_open = run.spec.training.capacity_factor is None and not run.captures_all
        is_sent = self._layout.ep > 1 and self._dispatcher is not Dispatcher.ALL_GATHER
        return direction is Pass.FORWARD and is_open and is_sent

    def _moved(self, what: str, rows: int) -> Step:
        elements = rows * self._width
        return pointwise("index_select", f"ffn/{what}", "embedding", elements, self._dtype)

    def _combined(self, direction: Pass) -> list[Step]:
        """The weighted sum of the results of a token's experts, or its gradient.

        Libraries add up what comes back as part of the exchange.
        """
        if self._library is not None:
            return []
        row_bytes = self._width * self._dtype.size_bytes
        many, few = self._sent_rows * row_bytes, self._tokens * row_bytes
        read, write = (many, few) if direction is Pass.FORWARD else (many + few, many)
        op = MemoryBound("embedding", read, write, self._dtype)
        return [Step("index_add", f"ffn/combine {direction.value}", (op,))]
