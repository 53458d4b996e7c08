"""Sparse tensors: their calls are described by the dense tensors that they consist of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from perfmodel.extensions.emulation.driver.descriptions import describe_kernel, schema_name
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.values import same_bytes

_COLUMNS = ("crow_indices", "col_indices")
_ROWS = ("ccol_indices", "row_indices")
_INDICES = {
    torch.sparse_csr: _COLUMNS, torch.sparse_bsr: _COLUMNS, torch.sparse_csc: _ROWS,
    torch.sparse_bsc: _ROWS,
}  # fmt: skip


def describe_sparse(op: Any, inputs: list[Tensor], outputs: list[Tensor]) -> dict[str, Any]:
    """The call of *op*, some of whose tensors are sparse."""
    if op._schema.arguments[0].alias_info is None:
        read, made = ([part for one in some for part in _parts(one)] for some in (inputs, outputs))
        return describe_kernel(f"sparse_{schema_name(op)}", inputs=read, outputs=made)
    # Rows that are written are as many as the sparse operand has.
    touched = [_parts(one)[0] for one in inputs if one.layout is not torch.strided]
    return describe_kernel(str(op), inputs=[*touched, *touched], outputs=touched)


def coalesce(gpu: Gpu, _: Any, tensor: Tensor) -> Tensor:
    """One entry for each place: how many there are is found on the host."""
    values = tensor._values()
    some = torch.zeros(len(values), device="cpu")
    host = torch.sparse_coo_tensor(
        same_bytes(tensor._indices()), some, tensor.shape[: tensor.sparse_dim()]
    ).coalesce()
    indices = host.indices().to(tensor.device)
    made = values.new_zeros((indices.shape[1], *values.shape[1:]))
    gpu.launch("aten._coalesce", inputs=[values], outputs=[made])
    result: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(
        indices, made, tensor.shape, is_coalesced=True
    )
    return result


def _parts(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that *tensor* consists of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    if tensor.layout in _INDICES:
        indices = (getattr(tensor, name)() for name in _INDICES[tensor.layout])
        return [tensor.values(), *indices]
    return [tensor]
