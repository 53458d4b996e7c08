"""Sparse tensors: what embedding bags and sparse optimizers need of them.

Operators on metadata are those of the CPU; writing ones are recorded by the values they touch. A
coalesced tensor keeps its number of rows. Others run on the CPU, with as many entries, to
determine their result.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._pytree import tree_map_only

from perfmodel.extensions.emulation.device.descriptions import schema_name, tensors_in
from perfmodel.extensions.emulation.device.gpu import VirtualGpu
from perfmodel.extensions.emulation.device.operators import Kernel
from perfmodel.extensions.emulation.device.special import COMPRESSED, to_device
from perfmodel.extensions.recordings.operators.calls import SPARSE

_MOST_ON_HOST = 1 << 27
_SPARSE_CPU = DispatchKeySet(DispatchKey.SparseCPU)
_COMPRESSED_CPU = DispatchKeySet(DispatchKey.SparseCsrCPU)
_METADATA = frozenset(
    {
        "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "_values",
        "_indices", "values", "indices", "sparse_dim", "dense_dim", "_dimI", "_dimV", "_nnz",
        "is_coalesced", "_coalesced_", "copy_sparse_to_sparse_", "sparse_resize_",
        "sparse_resize_and_clear_", "crow_indices", "col_indices", "ccol_indices", "row_indices",
    }
)  # fmt: skip


def sparse_kernel(gpu: VirtualGpu, op: Any) -> Kernel:
    """The kernel of *op* for sparse tensors."""
    name = schema_name(op)
    if name in _METADATA:

        def keep(*args: Any, **kwargs: Any) -> Any:
            is_compressed = isinstance(args[0], Tensor) and args[0].layout in COMPRESSED
            keys = _COMPRESSED_CPU if is_compressed else _SPARSE_CPU
            return op.redispatch(keys, *args, **kwargs)

        return keep
    if name == "_coalesce":

        def coalesce(tensor: Tensor) -> Tensor:
            values = tensor._values()
            gpu.launch("aten._coalesce", inputs=[values], outputs=[values])
            gpu.recorder.count_placeholder("rows of a coalesced sparse tensor")
            result: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(
                tensor._indices(), values, tensor.shape, is_coalesced=True
            )
            return result

        return coalesce
    arguments = op._schema.arguments
    if arguments[0].alias_info is None and all(one.name != "out" for one in arguments):
        return _host_kernel(gpu, op)

    def write(*args: Any, **kwargs: Any) -> Any:
        tensors = tensors_in([*args, *kwargs.values()])
        touched = [_parts(tensor)[0] for tensor in tensors if tensor.layout is not torch.strided]
        # Rows that are written are as many as the sparse operand has.
        gpu.launch(str(op), inputs=[*touched, *touched], outputs=touched)
        return kwargs.get("out", args[0])

    return write


def _host_kernel(gpu: VirtualGpu, op: Any) -> Kernel:
    """The kernel of an operator on sparse tensors whose result the CPU kernel determines."""
    name = schema_name(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        gpu.recorder.check_running()
        if name == "_sparse_mm_reduce_impl":
            raise gpu.refuse_operator(str(op), "torch has this operator on CPUs only")
        inputs = [
            part for tensor in tensors_in([*args, *kwargs.values()]) for part in _parts(tensor)
        ]
        device = next((part.get_device() for part in inputs if part.is_cuda), 0)
        if sum(part.numel() for part in inputs) > _MOST_ON_HOST:
            raise gpu.refuse_operator(str(op), "too many entries to run on the CPU")
        kinds, convert = (Tensor, torch.device), partial(_on_host, gpu)
        host_args, host_kwargs = tree_map_only(kinds, convert, (args, kwargs))
        try:
            result = op(*host_args, **host_kwargs)
        except NotImplementedError as fault:
            raise gpu.refuse_operator(str(op), fault) from None
        made = to_device(gpu, result, device)
        outputs = [part for tensor in tensors_in(made) for part in _parts(tensor)]
        gpu.launch(f"{SPARSE}{name}", inputs=inputs, outputs=outputs)
        return made

    return kernel


def _parts(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that *tensor* consists of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    if tensor.layout in COMPRESSED:
        return [tensor.values(), *(getattr(tensor, name)() for name in COMPRESSED[tensor.layout])]
    return [tensor]


def _on_host(gpu: VirtualGpu, value: Any) -> Any:
    """A device or tensor on the CPU, with positions where they are known, else evenly."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if value.layout is torch.strided:
        known = gpu.values.known(value)
        return torch.ones(value.shape, dtype=value.dtype) if known is None else known
    entries = _on_host(gpu, _parts(value)[0])
    if value.layout in COMPRESSED:
        places = _parts(value)[1:]
        starts, inside = map(gpu.values.known, places)
        if starts is None or inside is None:
            count, rows = len(entries), len(places[0]) - 1
            starts = torch.arange(rows + 1) * count // max(rows, 1)
            inside = torch.arange(count) - starts[:-1].repeat_interleave(starts.diff())
        return torch.sparse_compressed_tensor(
            starts, inside, entries, value.shape, layout=value.layout, check_invariants=False
        )
    places = gpu.values.known(value._indices())
    if places is None:
        shape = value.shape[: value.sparse_dim()]
        count = max(math.prod(shape), 1)
        places = torch.stack(torch.unravel_index(torch.arange(len(entries)) % count, shape))
    return torch.ops.aten._sparse_coo_tensor_unsafe(
        places, entries, value.shape, is_coalesced=value.is_coalesced()
    )
