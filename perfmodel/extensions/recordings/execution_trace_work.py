"""Execution-trace work: which operators of an execution trace launched something, and what it was.

An operator launches a kernel if none of its children does, it works on device tensors and does
more than change a view.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.extensions.recordings.collective_calls import WORLD, dtype_of_word, kind_of_name
from perfmodel.extensions.recordings.operator_calls import call_of_operator, whole_number
from perfmodel.extensions.recordings.operators.calls import OperatorCall, launches_nothing
from perfmodel.extensions.recordings.operators.works import works_of_call
from perfmodel.graph.ops import Copy, CopyRoute, Work
from perfmodel.graph.rendezvous import PeerCall
from traces.execution_trace import ExecutedOperator, ExecutionTrace

_COMMUNICATION = "record_param_comms"
_SCALAR = "_local_scalar_dense"
_AUTOGRAD = "autograd::engine::evaluate_function: "
_NO_SPANS = ("ProfilerStep", "nccl:", "[pytorch|")


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch on the device: some work, a part in a collective, or a wait for one."""

    operator: str
    works: tuple[Work, ...] = ()
    peer: PeerCall | None = None
    awaited_key: int | None = None
    is_blocking: bool = False
    storages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Issued:
    """An outermost operator, and what it launched."""

    operator: str
    thread: int
    span: str
    launches: tuple[Launched, ...]


def read_issued(trace: ExecutionTrace) -> list[Issued]:
    """What a rank issued, in the order of its operators."""
    tree = _OperatorTree(trace)
    launches: dict[int, list[Launched]] = {}
    for number in sorted(tree.launching):
        found = _launched(tree.operators[number])
        if found is not None:
            launches.setdefault(tree.outermost[number], []).append(found)
    return [
        Issued(
            operator=operator.name.removeprefix(_AUTOGRAD),
            thread=operator.thread,
            span=tree.span[number],
            launches=tuple(launches.get(number, ())),
        )
        for number, operator in tree.operators.items()
        if tree.outermost[number] == number and _is_operator(operator)
    ]


def _is_operator(operator: ExecutedOperator) -> bool:
    """Whether *operator* is one, and no thread or named range."""
    if operator.name.startswith(("[pytorch|profiler|", "##", "ProfilerStep")):
        return False
    scope = operator.attributes.get("scope")
    return scope in (0, 1) if scope is not None else "::" in operator.name


class _OperatorTree:
    """Operators and their parents: which of them launch, and what encloses each."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self.operators = {operator.number: operator for operator in trace.operators}
        self.is_named = any(found.name == _COMMUNICATION for found in trace.operators)
        # If a trace was taken without a GPU, its host tensors take the place of device tensors.
        self.has_device = any(
            not argument.is_on_host and argument.storages
            for found in trace.operators
            for argument in (*found.inputs, *found.outputs)
        )
        self.outermost: dict[int, int] = {}
        self.span: dict[int, str] = {}
        self.launching: set[int] = set()
        for number, operator in self.operators.items():
            parent = self._parent(operator)
            if parent is None:
                self.outermost[number], self.span[number] = number, ""
                continue
            is_inside = _is_operator(parent)
            self.outermost[number] = self.outermost[parent.number] if is_inside else number
            is_range = not is_inside and not parent.name.startswith(_NO_SPANS)
            self.span[number] = parent.name if is_range else self.span[parent.number]
        busy: set[int] = set()
        for number in sorted(self.operators, reverse=True):
            operator = self.operators[number]
            is_own = number not in busy and self._launches(operator)
            if is_own or operator.name == _COMMUNICATION:
                self.launching.add(number)
                busy.add(number)
            parent = self._parent(operator)
            if parent is not None and number in busy:
                busy.add(parent.number)

    def _parent(self, operator: ExecutedOperator) -> ExecutedOperator | None:
        # Parents come first; a file that violates this is not followed in circles.
        return self.operators.get(operator.parent) if operator.parent < operator.number else None

    def _launches(self, operator: ExecutedOperator) -> bool:
        name, word = operator.name, operator.name.rsplit("::", 1)[-1]
        if name.startswith("nccl:"):
            return not self.is_named
        if not _is_operator(operator) or name.startswith(_AUTOGRAD) or launches_nothing(word):
            return False
        if not operator.attributes.get("op_schema") and "::" not in name:
            # Views in the backward pass; an extension that computes something also allocates.
            return not name.endswith("Backward0") and self._allocates(operator)
        if "AccumulateGrad" in name or word.startswith("c10d"):
            return False
        return name.split("::", 1)[0] != "c10d" and self._is_on_device(operator)

    def _allocates(self, operator: ExecutedOperator) -> bool:
        following = range(operator.number + 1, operator.number + 64)
        others = [self.operators[number] for number in following if number in self.operators]
        return self._is_on_device(operator) and any(
            other.parent == operator.number and "empty" in other.name for other in others
        )

    def _is_on_device(self, operator: ExecutedOperator) -> bool:
        arguments = [one for one in (*operator.inputs, *operator.outputs) if one.storages]
        return any(not (self.has_device and argument.is_on_host) for argument in arguments)


def _launched(operator: ExecutedOperator) -> Launched | None:
    """What *operator* launches."""
    if operator.name == _COMMUNICATION or operator.name.startswith("nccl:"):
        return communication_of(operator)
    call = call_of_operator(operator)
    storages = tuple(block for argument in operator.inputs for block in argument.storages)
    if operator.name.endswith(_SCALAR):
        size_bytes = sum(tensor.size_bytes for tensor in call.tensors[:1]) or 4
        copy = Copy(CopyRoute.DEVICE_TO_HOST, size_bytes, is_pinned=False)
        return Launched(operator.name, (copy,), is_blocking=True, storages=storages)
    ends = [tensor.is_on_host for tensor in call.tensors[:2]]
    if operator.name.endswith("::copy_") and len(set(ends)) == 2:
        route = CopyRoute.DEVICE_TO_HOST if ends[0] else CopyRoute.HOST_TO_DEVICE
        is_pinned = len(operator.inputs) > 2 and operator.inputs[2].value is True
        copy = Copy(route, call.tensors[1].size_bytes, is_pinned=is_pinned)
        return Launched(operator.name, (copy,), is_blocking=not is_pinned, storages=storages)
    works = works_of_call(call)
    return Launched(operator.name, works, storages=storages) if works else None


def communication_of(operator: ExecutedOperator) -> Launched | None:
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
    dtype = dtype_of_word(stated.get("dtype")) or DType.FP32
    # The larger of input and output, as sizes of collectives are counted.
    values = max(whole_number(stated.get(f"{way}_msg_nelems")) for way in ("in", "out"))
    size_bytes = values * dtype.size_bytes or max(
        sum(tensor.size_bytes for tensor in tensors)
        for tensors in (call.tensors, call.results or ())
    )
    if kind is None or not (size_bytes or kind is CollectiveKind.BARRIER):
        return None
    peer = PeerCall(
        group=_group_of(operator),
        group_size=whole_number(stated.get("pg_size")),
        stride=whole_number(stated.get("global_rank_stride")) or 1,
        kind=kind,
        size_bytes=size_bytes,
        dtype=call.tensors[0].dtype if call.tensors else dtype,
        sent_bytes=_sent_bytes(operator, call),
        key=key,
    )
    arguments = (*operator.outputs, *operator.inputs)
    storages = tuple(block for argument in arguments for block in argument.storages)
    return Launched(operator.name, peer=peer, storages=storages)


def _group_of(operator: ExecutedOperator) -> str:
    stated = operator.attributes.get("pg_name")
    if stated not in (None, ""):
        return str(stated)
    pairs = [one.value for one in operator.inputs if one.kind.startswith("Tuple[String")]
    named = [pair[0] for pair in pairs if isinstance(pair, list | tuple) and pair and pair[0]]
    return str(named[0]) if named else WORLD


def _sent_bytes(operator: ExecutedOperator, call: OperatorCall) -> tuple[int, ...]:
    """What an uneven all-to-all sends to each rank; empty if unknown."""
    lists = [
        one.value
        for one in operator.inputs
        if isinstance(one.value, list)
        and one.value
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in one.value)
    ]
    if not lists or not call.tensors:
        return ()
    first, total = call.tensors[0], sum(lists[0])
    if not total or first.count % total:
        return ()
    # Splits count rows; a row is as wide as the tensor has values for each.
    return tuple(rows * (first.size_bytes // total) for rows in lists[0])
