"""Issued work: which operators of an execution trace launched something, and what it was.

An operator launches a kernel where none of its children does, it works on device tensors and does
more than change a view.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collectives.collective import CollectiveKind
from perfmodel.graph.ops import (
    Convolution,
    Copy,
    CopyRoute,
    Pass,
    Work,
)
from perfmodel.recordings.collective_calls import WORLD, kind_of_name, size_of_dtype
from perfmodel.recordings.executed_shapes import call_of_operator
from perfmodel.recordings.operator_calls import OperatorCall, whole_number
from perfmodel.recordings.operator_work import gradient_of_weights, work_of_call
from perfmodel.recordings.peer_groups import PeerCall
from traces.execution_trace import ExecutedOperator, ExecutionTrace

_COMMUNICATION = "record_param_comms"
_SCALAR = "_local_scalar_dense"
_AUTOGRAD = "autograd::engine::evaluate_function: "
_THREAD = re.compile(r"\[pytorch\|profiler\|")
_NO_SPANS = ("ProfilerStep", "nccl:", "[pytorch|")
# Views, allocations and questions: nothing runs on the device for them.
_NO_KERNEL = frozenset((
    "as_strided", "as_strided_", "view", "view_as", "reshape", "_reshape_alias", "transpose",
    "transpose_", "t", "t_", "permute", "expand", "expand_as", "slice", "select", "narrow",
    "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "detach", "detach_", "alias", "empty",
    "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "new_zeros", "resize_", "resize_as_", "set_", "lift_fresh", "result_type", "record_stream",
    "is_pinned", "pin_memory", "_pin_memory", "split", "split_with_sizes", "chunk", "unbind",
    "unflatten", "flatten", "numpy_T", "mT", "movedim", "swapaxes", "diagonal", "unfold",
    "_unsafe_view", "contiguous", "to", "item", "is_nonzero", "resolve_conj", "resolve_neg",
    "requires_grad_", "size", "stride", "broadcast_tensors", "broadcast_to", "ones", "zeros",
    "full", "zeros_like", "ones_like", "full_like", "rand", "randn", "arange", "can_cast", "dim",
    "numel", "is_same_size", "wait_tensor",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launched:
    """One thing on the device: some work, a part in a collective, or a wait for one."""

    operator: str
    works: tuple[Work, ...] = ()
    peer: PeerCall | None = None
    awaited_key: int | None = None
    is_blocking: bool = False
    storages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Issued:
    """An operator that no other is around, and what it launched."""

    operator: str
    thread: int
    span: str
    launches: tuple[Launched, ...]


def read_issued(trace: ExecutionTrace) -> list[Issued]:
    """What a rank issued, in the order of its operators."""
    tree = _Tree(trace)
    launches: dict[int, list[Launched]] = {}
    for number in sorted(tree.launching):
        found = tree.launched(number)
        if found is not None:
            launches.setdefault(tree.outermost[number], []).append(found)
    issued = []
    for number, operator in tree.operators.items():
        if tree.outermost[number] == number and tree.is_operator(operator):
            issued.append(
                Issued(
                    operator=operator.name.removeprefix(_AUTOGRAD),
                    thread=operator.thread,
                    span=tree.span[number],
                    launches=tuple(launches.get(number, ())),
                )
            )
    return issued


class _Tree:
    """Operators and their parents: who launches, and what is around whom."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self.operators = {operator.number: operator for operator in trace.operators}
        self.is_named = any(found.name == _COMMUNICATION for found in trace.operators)
        # A trace that was taken without a GPU tells the same: its tensors stand for the device's.
        self.has_device = any(
            not argument.is_on_host and argument.storages
            for found in trace.operators
            for argument in (*found.inputs, *found.outputs)
        )
        self.calls: dict[int, OperatorCall] = {}
        self.outermost: dict[int, int] = {}
        self.span: dict[int, str] = {}
        self.launching: set[int] = set()
        self._look_down()
        self._look_up()

    def is_operator(self, operator: ExecutedOperator) -> bool:
        """Whether *operator* is one, and no thread or range that somebody named."""
        if _THREAD.match(operator.name) or operator.name.startswith(("##", "ProfilerStep")):
            return False
        scope = operator.attributes.get("scope")
        return scope in (0, 1) if scope is not None else "::" in operator.name

    def _parent(self, operator: ExecutedOperator) -> ExecutedOperator | None:
        # Parents come first; a file that says otherwise is not followed in circles.
        return self.operators.get(operator.parent) if operator.parent < operator.number else None

    def _look_down(self) -> None:
        for number, operator in self.operators.items():
            parent = self._parent(operator)
            if parent is None:
                self.outermost[number], self.span[number] = number, ""
                continue
            is_inside = self.is_operator(parent)
            self.outermost[number] = self.outermost[parent.number] if is_inside else number
            is_range = not is_inside and not parent.name.startswith(_NO_SPANS)
            self.span[number] = parent.name if is_range else self.span[parent.number]

    def _look_up(self) -> None:
        busy: set[int] = set()
        for number in sorted(self.operators, reverse=True):
            operator = self.operators[number]
            is_own = number not in busy and self._launches(operator)
            if operator.name == _COMMUNICATION:
                is_own = True
            if is_own:
                self.launching.add(number)
            parent = self._parent(operator)
            if parent is not None and (is_own or number in busy):
                busy.add(parent.number)

    def _launches(self, operator: ExecutedOperator) -> bool:
        if operator.name.startswith("nccl:"):
            return not self.is_named
        if not self.is_operator(operator) or operator.name.startswith(_AUTOGRAD):
            return False
        word = operator.name.rsplit("::", 1)[-1]
        if word in _NO_KERNEL:
            return False
        if not operator.attributes.get("op_schema") and "::" not in operator.name:
            # Views in the backward pass; what an extension computes it also allocates.
            return not operator.name.endswith("Backward0") and self._allocates(operator)
        if "AccumulateGrad" in operator.name or word.startswith("c10d"):
            return False
        return operator.name.split("::", 1)[0] != "c10d" and self._is_on_device(operator)

    def _allocates(self, operator: ExecutedOperator) -> bool:
        return self._is_on_device(operator) and any(
            other.parent == operator.number and "empty" in other.name
            for other in self._following(operator)
        )

    def _following(self, operator: ExecutedOperator) -> list[ExecutedOperator]:
        return [
            self.operators[number]
            for number in range(operator.number + 1, operator.number + 64)
            if number in self.operators
        ]

    def _is_on_device(self, operator: ExecutedOperator) -> bool:
        arguments = [one for one in (*operator.inputs, *operator.outputs) if one.storages]
        if not self.has_device:
            return bool(arguments)
        return any(not argument.is_on_host for argument in arguments)

    def launched(self, number: int) -> Launched | None:
        """What the operator *number* launches."""
        operator = self.operators[number]
        if operator.name == _COMMUNICATION or operator.name.startswith("nccl:"):
            return _communication(operator)
        call = call_of_operator(operator)
        storages = tuple(block for argument in operator.inputs for block in argument.storages)
        if operator.name.endswith(_SCALAR):
            size_bytes = sum(tensor.size_bytes for tensor in call.tensors[:1]) or 4
            copy = Copy(CopyRoute.DEVICE_TO_HOST, size_bytes, is_pinned=False)
            return Launched(operator.name, (copy,), is_blocking=True, storages=storages)
        if operator.name.endswith("::copy_"):
            copied = _copy(operator, call)
            if copied is not None:
                return Launched(
                    operator.name, (copied,), is_blocking=not copied.is_pinned, storages=storages
                )
        works = _works(call)
        return Launched(operator.name, works, storages=storages) if works else None


def _works(call: OperatorCall) -> tuple[Work, ...]:
    work = work_of_call(call)
    if work is None:
        return ()
    if isinstance(work, Convolution) and work.direction is Pass.BACKWARD:
        return (work, gradient_of_weights(work))
    return (work,)


def _copy(operator: ExecutedOperator, call: OperatorCall) -> Copy | None:
    """A copy between host and device; None for one inside the device."""
    tensors = call.tensors
    if len(tensors) < 2 or tensors[0].is_on_host == tensors[1].is_on_host:
        return None
    route = CopyRoute.DEVICE_TO_HOST if tensors[0].is_on_host else CopyRoute.HOST_TO_DEVICE
    does_not_block = len(operator.inputs) > 2 and operator.inputs[2].value is True
    return Copy(route, tensors[1].size_bytes, is_pinned=does_not_block)


def _communication(operator: ExecutedOperator) -> Launched | None:
    """A collective, or the wait for one: `record_param_comms` is both."""
    words = [argument.value for argument in operator.inputs if argument.kind == "String"]
    stated = operator.attributes
    name = str(stated.get("collective_name") or next((w for w in words if w), operator.name))
    numbers = [one.value for one in operator.inputs if one.kind == "Int"]
    key = numbers[0] if numbers and isinstance(numbers[0], int) else operator.number
    if name == "wait":
        return Launched(operator.name, awaited_key=key)
    kind = kind_of_name(name)
    call = call_of_operator(operator)
    if kind is None or (not call.tensors and kind is not CollectiveKind.BARRIER):
        return None
    peer = PeerCall(
        group=_group_of(operator),
        group_size=whole_number(stated.get("pg_size")),
        stride=whole_number(stated.get("global_rank_stride")) or 1,
        kind=kind,
        size_bytes=_size_bytes(operator, call),
        dtype=call.tensors[0].dtype if call.tensors else size_of_dtype(stated.get("dtype")),
        sent_bytes=_sent_bytes(operator, call),
        key=key,
    )
    storages = tuple(block for one in operator.outputs for block in one.storages)
    storages += tuple(block for one in operator.inputs for block in one.storages)
    return Launched(operator.name, peer=peer, storages=storages)


def _group_of(operator: ExecutedOperator) -> str:
    stated = operator.attributes.get("pg_name")
    if stated not in (None, ""):
        return str(stated)
    pairs = [one.value for one in operator.inputs if one.kind.startswith("Tuple[String")]
    named = [pair[0] for pair in pairs if isinstance(pair, list | tuple) and pair and pair[0]]
    return str(named[0]) if named else WORLD


def _size_bytes(operator: ExecutedOperator, call: OperatorCall) -> int:
    """The larger of what goes in and what comes out, as sizes of collectives are counted."""
    into = sum(tensor.size_bytes for tensor in call.tensors)
    out_of = sum(tensor.size_bytes for tensor in call.results or ())
    dtype = size_of_dtype(operator.attributes.get("dtype"))
    stated = max(
        whole_number(operator.attributes.get(key)) for key in ("in_msg_nelems", "out_msg_nelems")
    )
    return stated * dtype.size_bytes if stated else max(into, out_of)


def _sent_bytes(operator: ExecutedOperator, call: OperatorCall) -> tuple[int, ...]:
    """What an uneven all-to-all sends to each; empty where it does not say."""
    lists = [
        one.value
        for one in operator.inputs
        if isinstance(one.value, list)
        and one.value
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in one.value)
    ]
    if not lists or not call.tensors:
        return ()
    first = call.tensors[0]
    total = sum(lists[0])
    if not total or first.count % total:
        return ()
    # Splits count rows; a row is as wide as the tensor has values for each.
    width_bytes = first.size_bytes // total
    return tuple(rows * width_bytes for rows in lists[0])
