"""Sparse tensors: what embedding bags and sparse optimizers need of them.

Operators on metadata are those of the CPU; writing ones are recorded by the values
they touch. A coalesced tensor keeps as many rows as it had.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from perfmodel.emulation.device.descriptions import tensors_in
from perfmodel.emulation.device.gpu import VirtualGpu
from perfmodel.emulation.device.operators import Kernel

_SPARSE_CPU = DispatchKeySet(DispatchKey.SparseCPU)
_METADATA = frozenset(
    {
        "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "_values",
        "_indices", "values", "indices", "sparse_dim", "dense_dim", "_dimI", "_dimV", "_nnz",
        "is_coalesced", "_coalesced_", "copy_sparse_to_sparse_", "sparse_resize_",
        "sparse_resize_and_clear_",
    }
)  # fmt: skip


def sparse_kernel(gpu: VirtualGpu, op: Any) -> Kernel | None:
    """The kernel of *op* for sparse tensors, where there is one."""
    name = op._schema.name.partition("::")[2]
    if name in _METADATA:

        def keep(*args: Any, **kwargs: Any) -> Any:
            return op.redispatch(_SPARSE_CPU, *args, **kwargs)

        return keep
    if name == "_coalesce":

        def coalesce(tensor: Tensor) -> Tensor:
            values = tensor._values()
            gpu.launch("aten._coalesce", values.get_device(), inputs=[values], outputs=[values])
            gpu.recorder.stand_in("rows of a coalesced sparse tensor")
            result = torch._sparse_coo_tensor_unsafe(tensor._indices(), values, tensor.shape)
            return result._coalesced_(True)

        return coalesce
    arguments = op._schema.arguments
    if arguments[0].alias_info is None and all(one.name != "out" for one in arguments):
        return None

    def write(*args: Any, **kwargs: Any) -> Any:
        tensors = tensors_in([*args, *kwargs.values()])
        touched = [tensor._values() for tensor in tensors if tensor.is_sparse]
        # Rows that are written are as many as the sparse operand has.
        gpu.launch(str(op), touched[0].get_device(), inputs=[*touched, *touched], outputs=touched)
        return kwargs.get("out", args[0])

    return write
