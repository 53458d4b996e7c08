"""Operators: the kernel at the CUDA key for every operator of torch.

Shapes of outputs come from torch's own meta kernels, once per operator and kind of arguments;
later calls look them up. A view is carried out by the C++ kernel of the CPU, which only touches
metadata and keeps storage and keys. Where torch has no meta kernel, the CPU kernel determines the
shapes, once, from placeholder values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._pytree import tree_map, tree_map_only

from perfmodel.extensions.emulation.device.descriptions import (
    Args,
    Kwargs,
    argument,
    channels_last,
    describe_call,
    describe_settings,
    is_inexact,
    schema_name,
    tensors_in,
)
from perfmodel.extensions.emulation.device.gpu import VirtualGpu
from perfmodel.extensions.emulation.device.values import COMPARISONS, MOST_COMPUTED, with_tensors

Kernel = Callable[..., Any]
CPU_KEYS = DispatchKeySet(DispatchKey.CPU)
META = torch.device("meta")
_CPU = torch.device("cpu")
_FLOATS_MATTER = ("arange", "linspace", "logspace", "range", "upsample", "histc", "interp")
"""Operators whose shapes depend on the value of a float."""
_MOST_ON_HOST = 1 << 26
"""Elements up to which the CPU kernel determines shapes."""
_WITHOUT_KERNEL = ("aten.empty", "aten.new_empty")
_TRUE, _FALSE, _NAMED_DEVICE, _HOST = object(), object(), object(), object()

Place = tuple[int, str]
"""Where an argument is in a call, and its name."""
_NO_META_KERNEL = "no fake impl registered"
"""Part of torch's message about a custom operator without a meta kernel."""


class TensorPlan(NamedTuple):
    """An output to be made."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The effect of a call that has been seen before: the kind of its kernel, and its outputs.

    *outputs* has tensor plans inside the lists and tuples that the operator returns, *resized*
    the arguments that the operator resizes (`out=`).
    """

    kind: int | None
    outputs: Any
    resized: tuple[tuple[Place, TensorPlan], ...]
    has_integers_only: bool


class OperatorKernel:
    """The generic kernel of one operator."""

    def __init__(self, gpu: VirtualGpu, op: Any) -> None:
        self._gpu = gpu
        self._op = op
        self._name = str(op)
        self._memo: dict[Any, CallPlan] = {}
        schema = op._schema
        self._written = _written_arguments(schema)
        self._returned = _returned_arguments(schema, self._written)
        self._floats_matter = any(word in self._name for word in _FLOATS_MATTER)
        self._is_comparison = schema_name(op) in COMPARISONS

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record the call and give back tensors of the right shapes."""
        gpu = self._gpu
        recorder = gpu.recorder
        if recorder.is_over or recorder.is_forked:
            recorder.check_running()
        key = None if self._floats_matter else _key(args, kwargs)
        plan = self._memo.get(key) if key is not None else None
        if plan is None:
            plan = self._plan(args, kwargs)
            if key is not None:
                self._memo[key] = plan
        device = gpu.device_of(args, kwargs)
        for written, wanted in plan.resized:
            argument(args, kwargs, *written).data = self._build(wanted, device)
        if plan.kind is not None:
            recorder.launch(self.kind_of_call(plan.kind, args, kwargs), device, 1)
            if gpu.moved and recorder.is_on:
                gpu.note_pieces(args)
        result = self._build(plan.outputs, device)
        if self._returned is not None:
            result = [argument(args, kwargs, *returned) for returned in self._returned]
        is_known = plan.has_integers_only and gpu.values.compute(
            self._op, args, kwargs, tensors_in(result)
        )
        if self._written and gpu.values and not (is_known and self._returned is not None):
            self._forget(args, kwargs)
        if self._returned is None:
            return result
        return result[0] if len(result) == 1 else tuple(result) or None

    def kind_of_call(self, kind: int, args: Args, kwargs: Kwargs) -> int:
        """The kind of a call planned as *kind*; for most operators the same."""
        del args, kwargs
        return kind

    def _forget(self, args: Args, kwargs: Kwargs) -> None:
        for written in self._written:
            for tensor in tensors_in(argument(args, kwargs, *written)):
                if tensor.is_cuda:
                    self._gpu.values.forget(tensor)

    def _build(self, outputs: Any, device: int) -> Any:
        if type(outputs) is TensorPlan:
            return self._gpu.memory.empty(*outputs, device)
        if type(outputs) is list:
            return [self._build(part, device) for part in outputs]
        if type(outputs) is tuple:
            return tuple(self._build(part, device) for part in outputs)
        return outputs

    def _plan(self, args: Args, kwargs: Kwargs) -> CallPlan:
        """Ask torch's meta kernel for shapes."""
        args = with_tensors(self._op, args)
        meta_args, meta_kwargs = _convert((args, kwargs), META)
        if meta_kwargs.get("pin_memory"):
            meta_kwargs["pin_memory"] = False
        try:
            result = self._op(*meta_args, **meta_kwargs)
        except RuntimeError as fault:
            # Anything else is a mistake of the script, such as shapes that do not fit.
            if not isinstance(fault, NotImplementedError) and _NO_META_KERNEL not in str(fault):
                raise
            result = meta_kwargs.get("out")
            if result is None or not result.numel():
                meta_args, meta_kwargs = _convert((args, kwargs), _CPU)
                result = self._ask_host(meta_args, meta_kwargs, fault)
            # Else it is compiled code, which allocates results itself, at their size.
        # Arguments to which the meta kernel gave another shape.
        resized = []
        for written in self._written:
            tensor = argument(args, kwargs, *written)
            meta = argument(meta_args, meta_kwargs, *written)
            if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.shape != meta.shape:
                resized.append((written, _tensor_plan(meta)))
        result = _keep_channels_last(self._name, meta_args, result)
        outputs = None
        if self._returned is None:
            outputs = tree_map_only(Tensor, _tensor_plan, result)
        made = tensors_in(result) if self._returned is None else []
        kind = None
        if not self._name.startswith(_WITHOUT_KERNEL):
            words = describe_call(self._op, args, kwargs, made)
            settings = describe_settings(
                self._name, args, self._gpu.release, self._gpu.model.capability
            )
            kind = self._gpu.recorder.add_kind(words | settings)
        tensors = tensors_in([*args, *kwargs.values()])
        is_computed = self._has_integers_only(tensors, tensors_in(result))
        return CallPlan(kind, outputs, tuple(resized), is_computed)

    def _ask_host(self, args: Args, kwargs: Kwargs, fault: Exception) -> Any:
        """Ask the CPU kernel for shapes, on placeholder values."""
        tensors = tensors_in([*args, *kwargs.values()])
        if self._op.namespace != "aten" or sum(map(Tensor.numel, tensors)) > _MOST_ON_HOST:
            raise self._gpu.refuse_operator(self._name, fault) from None
        try:
            return self._op(*args, **kwargs)
        except RuntimeError as other:
            raise self._gpu.refuse_operator(self._name, other) from None

    def _has_integers_only(self, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
        """Whether the result is worth computing, once all inputs are known."""
        if not outputs or not all(map(_is_computed, outputs)):
            return False
        if self._is_comparison and outputs[0].numel() == 1:
            return True
        is_settled = self._name in ("aten.all.default", "aten.any.default")
        return is_settled or all(map(_is_computed, inputs))


def _is_computed(tensor: Tensor) -> bool:
    return not is_inexact(tensor) and tensor.numel() <= MOST_COMPUTED


def view_kernel(gpu: VirtualGpu, op: Any) -> Kernel:
    """The kernel of an operator that only refers to a storage in another way."""
    kind = gpu.recorder.add_kind({"operator": str(op)})
    note, redispatch = gpu.recorder.note, op.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        note(kind, 1)
        return redispatch(CPU_KEYS, *args, **kwargs)

    return kernel


def is_view(op: Any) -> bool:
    """Whether *op* returns a view of one of its arguments."""
    returns = op._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


def _written_arguments(schema: Any) -> dict[Place, tuple[str, ...]]:
    """The arguments that an operator writes to, with their aliases."""
    return {
        (place, argument.name): tuple(sorted(argument.alias_info.before_set))
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }


def _returned_arguments(schema: Any, written: dict[Place, tuple[str, ...]]) -> list[Place] | None:
    """The returned arguments of an operator that writes in place or to `out`."""
    if not schema.returns:
        return [] if written else None
    if schema.returns[0].alias_info is None:
        return None
    of_aliases = {aliases: place for place, aliases in reversed(written.items())}
    return [of_aliases[tuple(sorted(one.alias_info.before_set))] for one in schema.returns]


def _key(args: Args, kwargs: Kwargs) -> Any:
    try:
        key = (
            tuple([_key_of(arg) for arg in args]),
            tuple([(name, _key_of(arg)) for name, arg in kwargs.items()]) if kwargs else (),
        )
        hash(key)
    except TypeError:
        return None
    return key


def _key_of(value: Any) -> Any:  # noqa: PLR0911  the hottest function: the usual kinds first
    if isinstance(value, Tensor):
        if value.is_cuda:
            return (value.shape, value.stride(), value.dtype)
        return (_HOST, value.shape, value.dtype)
    kind = type(value)
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is float:
        return float
    if kind is list or kind is tuple:
        return tuple([_key_of(item) for item in value])
    if kind is torch.Generator:
        return None
    if kind is torch.device:
        return _NAMED_DEVICE
    return value


def _convert(value: Any, device: torch.device) -> Any:
    """*value* with all tensors on *device*, without generators."""
    make = _meta_tensor if device is META else _host_tensor

    def convert(item: Any) -> Any:
        if isinstance(item, Tensor):
            return make(item)
        if isinstance(item, torch.device):
            return device if item.type == "cuda" else item
        return None if isinstance(item, torch.Generator) else item

    return tree_map(convert, value)


def _meta_tensor(tensor: Tensor) -> Tensor:
    if tensor.is_cuda:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    return tensor if tensor.device.type == "meta" else tensor.to(META)


def _host_tensor(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    # Zero is always a valid index; matrices of floats should have full rank.
    made = torch.zeros(tensor.shape, dtype=tensor.dtype)
    # The script's own random numbers stay as they are.
    return made.normal_(generator=torch.Generator()) if is_inexact(tensor) else made


def _tensor_plan(tensor: Tensor) -> TensorPlan:
    return TensorPlan(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _keep_channels_last(name: str, args: tuple[Any, ...], result: Any) -> Any:
    """Answer channels_last with channels_last as cuDNN does; meta kernels answer contiguous."""
    wanted = channels_last(name, args)
    if wanted is None:
        return result

    def in_format(tensor: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.dim() in (4, 5):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=META, memory_format=wanted)
        return tensor

    return in_format(result) if isinstance(result, Tensor) else tuple(map(in_format, result))
