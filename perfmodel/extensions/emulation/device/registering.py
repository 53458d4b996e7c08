"""Registering: a kernel at the CUDA key for every operator that a GPU has.

A fallback alone is not enough: operators that are made of others would be split into them
(`_foreach_add` into hundreds). So every operator with a CUDA kernel in torch's own list is
registered by name. An operator made of others must not be registered, or its backward pass would
vanish.

A CPU build lacks the functions by which torch chooses attention and recurrent kernels. Recurrent
layers go to cuDNN; `attention.py` chooses the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchgen
import yaml
from torch import Tensor

from embeddings.distribution import observe
from perfmodel.extensions.emulation.device.attention import (
    NAMESPACE,
    OPERATORS,
    AttentionCalls,
    install_attention,
)
from perfmodel.extensions.emulation.device.base import keep_for_ever
from perfmodel.extensions.emulation.device.descriptions import Args, Kwargs, argument, schema_name
from perfmodel.extensions.emulation.device.flex import install_flex
from perfmodel.extensions.emulation.device.gpu import VirtualGpu
from perfmodel.extensions.emulation.device.operators import (
    Kernel,
    OperatorKernel,
    is_view,
    view_kernel,
)
from perfmodel.extensions.emulation.device.sparse import sparse_kernel
from perfmodel.extensions.emulation.device.special import (
    META_KERNELS,
    SPECIAL,
    install_grouped_gemms,
    special_kernel,
)

_LIST = "packaged/ATen/native/native_functions.yaml"
_MADE_OF_OTHERS_ON_CPU = (
    "copy_", "convolution", "convolution_backward", "embedding", "embedding_dense_backward",
)  # fmt: skip
"""Operators without CUDA in the list that are kernels on a GPU."""
_LOOKUPS = frozenset(
    {
        "embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_dense_backward",
        "_embedding_bag_dense_backward",
    }
)  # fmt: skip
"""Operators of aten that read, or add up gradients for, rows of a table."""
_RNN_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
"""Recurrent layers in the order of cuDNN's modes, and how many gates they have."""
_aten = torch.ops.aten


def register_kernels(gpu: VirtualGpu) -> None:
    """Register all kernels."""
    functions = _read_functions()
    aten, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    # Kernels live as long as their libraries.
    keep_for_ever(aten, others)
    for key, make, more in (
        ("CUDA", partial(_dense_kernel, gpu), _MADE_OF_OTHERS_ON_CPU),
        ("SparseCUDA", partial(sparse_kernel, gpu), ()),
        ("SparseCsrCUDA", partial(sparse_kernel, gpu), ()),
    ):
        others.fallback(_fall_back(make), key)
        for name in dict.fromkeys((*_names_with(key, functions), *more)):
            op = _find(name)
            if op is not None and not _has_kernel(op, key):
                aten.impl(_full_name(op), make(op), key)
    for name, kernel in META_KERNELS.items():
        aten.impl(name, kernel, "Meta")
    install_grouped_gemms()
    # These are above autograd and at the device.
    chosen: dict[str, Kernel] = {}
    for mode, (name, gates) in enumerate(_RNN_GATES.items()):
        chosen[f"{name}.input"], chosen[f"{name}.data"] = _recurrent(mode, gates)
    for name, kernel in chosen.items():
        for key in ("AutogradCUDA", "CUDA"):
            aten.impl(name, kernel, key)
    install_attention(gpu, aten)
    install_flex(gpu)


class AttentionOperator(OperatorKernel):
    """The kernel of an attention operator, recorded with what it computes."""

    def __init__(self, gpu: VirtualGpu, op: Any) -> None:
        super().__init__(gpu, op)
        self._calls = AttentionCalls(gpu, op)

    def kind_of_call(self, kind: int, args: Args, kwargs: Kwargs) -> int:
        """The planned kind with what this call computes."""
        recorder = self._gpu.recorder
        seen = self._calls.observe(args, kwargs) if recorder.is_on else {}
        return recorder.intern_kind(recorder.kinds[kind] | seen) if seen else kind


def _dense_kernel(gpu: VirtualGpu, op: Any) -> Kernel:
    handler = SPECIAL.get(_full_name(op)) if op.namespace == "aten" else None
    if handler is not None:
        return special_kernel(gpu, op, handler)
    if is_view(op):
        return view_kernel(gpu, op)
    name = schema_name(op)
    if name in OPERATORS and op.namespace in ("aten", NAMESPACE):
        return AttentionOperator(gpu, op)
    return (LookupKernel if name in _LOOKUPS else OperatorKernel)(gpu, op)


def _fall_back(make: Callable[[Any], Kernel]) -> Kernel:
    """The kernel of all operators that have none, each made by *make* at its first call."""
    kernels: dict[Any, Kernel] = {}

    def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
        known = kernels.get(op)
        if known is None:
            known = kernels[op] = make(op)
        return known(*args, **kwargs)

    return kernel


def _read_functions() -> dict[str, dict[str, Any]]:
    path = Path(torchgen.__file__).parent / _LIST
    # The list belongs to torch and the C reader is ten times faster; it builds plain values only.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    functions = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506  safe
    return {function["func"].partition("(")[0]: function for function in functions}


def _names_with(key: str, functions: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Operators whose list of kernels names *key*, their delegates' included."""
    for name, function in functions.items():
        delegate = functions.get(function.get("structured_delegate") or "", {})
        kernels = {**(delegate.get("dispatch") or {}), **(function.get("dispatch") or {})}
        keys = {word.strip() for words in kernels for word in words.split(",")}
        if function.get("ufunc_inner_loop") or delegate.get("ufunc_inner_loop"):
            keys.add("CUDA")
        if key in keys:
            yield name


def _find(name: str) -> Any:
    base, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch.ops.aten, base), overload or "default")
    except AttributeError:
        return None


def _full_name(op: Any) -> str:
    return str(op.name()).partition("::")[2]


def _has_kernel(op: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


class LookupKernel(OperatorKernel):
    """The kernel of a lookup or of its backward pass, recorded with the script's real indices."""

    def __init__(self, gpu: VirtualGpu, op: Any) -> None:
        super().__init__(gpu, op)
        names = [one.name for one in op._schema.arguments]
        self._place = names.index("indices")

    def kind_of_call(self, kind: int, args: Args, kwargs: Kwargs) -> int:
        """The planned kind with the rows that are looked up and how often."""
        recorder = self._gpu.recorder
        if not recorder.is_on:
            return kind
        indices: Tensor = argument(args, kwargs, self._place, "indices")
        known = self._gpu.values.known(indices)
        if known is None or known.numel() == 0:
            recorder.count_placeholder("indices of a lookup")
            return kind
        seen = observe(known.numpy())
        rows = {"times": list(seen.times), "rows_seen": list(seen.rows_seen)}
        return recorder.intern_kind(recorder.kinds[kind] | {"observed": rows})


def _recurrent(mode: int, gates: int) -> tuple[Kernel, Kernel]:
    """The padded and the packed form of a recurrent layer, by cuDNN's operator."""
    has_cell = gates == _RNN_GATES["lstm"]

    def run(
        x: Tensor, state: Any, params: list[Tensor], settings: Args, batch_sizes: list[int]
    ) -> Any:
        has_biases, layers, dropout, train, bidirectional, batch_first = settings
        x, *params = _autocast([x, *params])
        hidden, *cells = _autocast(state if has_cell else [state])
        recurrent_size = params[1].shape[1]
        projection = hidden.shape[-1] if hidden.shape[-1] != recurrent_size else 0
        result = _aten._cudnn_rnn(
            x.contiguous(), params, 4 if has_biases else 2, x.detach().new_empty(0),
            hidden.contiguous(), cells[0] if cells else None, mode, params[1].shape[0] // gates,
            projection, layers, batch_first, dropout, train, bidirectional, batch_sizes, None,
        )  # fmt: skip
        return result[:3] if has_cell else result[:2]

    def padded(x: Tensor, state: Any, params: list[Tensor], *settings: Any) -> Any:
        return run(x, state, params, settings, [])

    def packed(
        x: Tensor, batch_sizes: Tensor, state: Any, params: list[Tensor], *settings: Any
    ) -> Any:
        return run(x, state, params, (*settings, False), batch_sizes.tolist())

    return padded, packed


def _autocast(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a recurrent layer after autocast; only a CUDA build does this itself."""
    if not torch.is_autocast_enabled("cuda"):
        return list(tensors)
    dtype = torch.get_autocast_dtype("cuda")
    return [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]
