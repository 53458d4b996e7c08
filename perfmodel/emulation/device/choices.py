"""Choices: what torch decides behind functions that a CPU build does not have.

Attention goes to the fused kernels as on a GPU: flash for half precision without a
mask, the memory-efficient one for masks and fp32, products where the script turned those
off. Recurrent layers go to cuDNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from perfmodel.emulation.device.operators import Kernel

_HALF = (torch.float16, torch.bfloat16)
_MOST_HEAD_DIM = 256
_aten = torch.ops.aten


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` by the kernel a GPU would take."""
    is_fusable = query.dim() == 4 and query.shape[-1] <= _MOST_HEAD_DIM
    if is_fusable and attn_mask is None and query.dtype in _HALF and _flash_allowed():
        result = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
        return result[0]
    if is_fusable and not enable_gqa and torch._C._get_mem_efficient_sdp_enabled():
        return _attend_efficiently(query, key, value, attn_mask, dropout_p, is_causal, scale)
    result = _aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
        enable_gqa=enable_gqa,
    )  # fmt: skip
    return result[0]


def _flash_allowed() -> bool:
    return bool(torch._C._get_flash_sdp_enabled())


def _attend_efficiently(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keeps_sums = any(tensor.requires_grad for tensor in (query, key, value))
    result = _aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, keeps_sums, dropout, is_causal, scale=scale
    )
    return result[0]


_RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2


def _recurrent(mode: int) -> tuple[Kernel, Kernel]:
    """The padded and the packed form of a recurrent layer, by cuDNN's operator."""

    def run(x: Tensor, state: Any, params: list[Tensor], *, words: dict[str, Any]) -> Any:
        x, *params = _autocast([x, *params])
        hidden, *cells = _autocast(state if mode == _LSTM else [state])
        cell = cells[0] if cells else None
        weights_per_layer = 4 if words["has_biases"] else 2
        recurrent_size = params[1].shape[1]
        projection = hidden.shape[-1] if hidden.shape[-1] != recurrent_size else 0
        hidden_size = params[1].shape[0] // {0: 1, 1: 1, 2: 4, 3: 3}[mode]
        result = _aten._cudnn_rnn(
            x.contiguous(), params, weights_per_layer, x.detach().new_empty(0),
            hidden.contiguous(), cell, mode, hidden_size, projection if projection else 0,
            words["layers"], words["batch_first"], words["dropout"], words["train"],
            words["bidirectional"], words["batch_sizes"], None,
        )  # fmt: skip
        return result[:3] if mode == _LSTM else result[:2]

    def padded(
        x: Tensor, state: Any, params: list[Tensor], has_biases: bool, layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        words = {
            "has_biases": has_biases, "layers": layers, "dropout": dropout, "train": train,
            "bidirectional": bidirectional, "batch_first": batch_first, "batch_sizes": [],
        }  # fmt: skip
        return run(x, state, params, words=words)

    def packed(
        x: Tensor, batch_sizes: Tensor, state: Any, params: list[Tensor], has_biases: bool,
        layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        words = {
            "has_biases": has_biases, "layers": layers, "dropout": dropout, "train": train,
            "bidirectional": bidirectional, "batch_first": False,
            "batch_sizes": batch_sizes.tolist(),
        }  # fmt: skip
        return run(x, state, params, words=words)

    return padded, packed


def _autocast(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What autocast makes of the tensors of a recurrent layer; only a CUDA build knows."""
    if not torch.is_autocast_enabled("cuda"):
        return list(tensors)
    dtype = torch.get_autocast_dtype("cuda")
    return [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]


def choice_kernels() -> dict[str, Kernel]:
    """Kernels that stand above autograd and at the device, by operator."""
    kernels: dict[str, Kernel] = {"scaled_dot_product_attention": attend}
    for name, mode in _RNN_MODES.items():
        kernels[f"{name}.input"], kernels[f"{name}.data"] = _recurrent(mode)
    return kernels
