"""Attention: which kernel a GPU would run, and how many query-key pairs it computes.

`scaled_dot_product_attention` goes to the first kernel that is enabled and fits, in the order of
the torch release that is emulated. Packages and flex_attention go to an operator of ours, whose
shapes are its only answer. Where sequences are packed, windows are narrow or blocks are left out,
the pairs that are computed are counted from known values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from perfmodel.extensions.emulation.device.base import Gpu, keep_for_ever
from perfmodel.extensions.emulation.device.descriptions import Args, Kwargs, argument

OPERATORS = frozenset(
    {
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
        "_efficient_attention_backward", "attention", "attention_backward",
    }
)  # fmt: skip
"""Operators that are recorded with their kernel and pairs."""
NAMESPACE = "perfmodel"
_HALF = (torch.float16, torch.bfloat16)
_MOST_HEAD_DIM = 256
_STARTS = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"), ("starts_q", "starts_k"))
_CAUSAL = ("is_causal", "custom_mask_type")
_FLASH2_SINCE = (2, 2)
_CUDNN_FIRST = (((2, 5, 0), (2, 5, 1)), ((2, 9, 0), (2, 10, 0)), ((2, 11, 0), (99,)))
"""Releases of torch that take cuDNN's kernel first on Hopper and Blackwell, each to before another:
opt-in from 2.5.1 on (pytorch 138522), first again in 2.9 (162073), with a newer cuDNN from 2.11."""
_aten = torch.ops.aten


def declare_attention(launch: Callable[..., None] | None = None) -> None:
    """Define our operator; where it is a kernel of the device, *launch* records it."""
    own = torch.library.Library(NAMESPACE, "DEF")
    settings = "Tensor? starts_q, Tensor? starts_k, bool is_causal, int left, int pairs, str kernel"
    own.define(f"attention(Tensor query, Tensor key, Tensor value, {settings}) -> (Tensor, Tensor)")
    own.define(
        "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
        f"{settings}) -> (Tensor, Tensor, Tensor)"
    )
    for name, shapes in (("attention", _shapes), ("attention_backward", _gradient_shapes)):
        torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=own)
        if launch is not None:
            op = getattr(torch.ops.perfmodel, name).default
            own.impl(name, partial(_run, op, shapes, launch), "CUDA")
    name = f"{NAMESPACE}::attention"
    torch.library.register_autograd(name, _backward, setup_context=_keep, lib=own)
    keep_for_ever(own)


def _run(op: Any, shapes: Callable[..., Any], launch: Callable[..., None], *args: Any) -> Any:
    result = shapes(*args)
    launch(op, args, {}, result)
    return result


def install_attention(gpu: Gpu, library: torch.library.Library) -> None:
    """Define our operator, and let torch's own choices end in kernels of a GPU."""
    declare_attention()
    torch._C._set_sdp_use_cudnn(True)
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", partial(attend, gpu), key)


def attend(
    gpu: Gpu,
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
    """`scaled_dot_product_attention` by the kernel that the emulated release would choose."""
    tensors, needs_sums = (query, key, value), any(t.requires_grad for t in (query, key, value))
    backend = _choose(gpu, query, attn_mask, is_grouped=enable_gqa)
    if attn_mask is not None and backend in (SDPBackend.EFFICIENT_ATTENTION, _CUDNN):
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    attention: Callable[..., Any]
    more: tuple[Any, ...] = (attn_mask, needs_sums, dropout_p, is_causal)
    if backend == _CUDNN:
        attention, more = _aten._scaled_dot_product_cudnn_attention, (*more, False)
    elif backend == SDPBackend.FLASH_ATTENTION:
        attention, more = _aten._scaled_dot_product_flash_attention, (dropout_p, is_causal, False)
    elif backend == SDPBackend.EFFICIENT_ATTENTION:
        attention = _aten._scaled_dot_product_efficient_attention
    else:
        attention = partial(_aten._scaled_dot_product_attention_math, enable_gqa=enable_gqa)
        more = (attn_mask, dropout_p, is_causal, None)
    result: Tensor = attention(*tensors, *more, scale=scale)[0]
    return result


_CUDNN = SDPBackend.CUDNN_ATTENTION


def choose_as(gpu: Gpu) -> None:
    """Let a release of torch that prefers cuDNN's kernel choose as the one that is emulated."""
    if takes_cudnn_first(gpu.release, gpu.model.capability[0]):
        return
    with gpu.recorder.paused(), torch.no_grad():
        # torch settles its order at the first choice.
        some = torch.empty(1, 1, 8, 64, dtype=torch.float16, device="cuda")
        torch._fused_sdp_choice(some, some, some)
    others = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    torch._C._set_sdp_priority_order([one.value for one in (*others, _CUDNN)])


def _choose(gpu: Gpu, query: Tensor, mask: Tensor | None, *, is_grouped: bool) -> SDPBackend:
    """The first kernel in torch's order that is enabled and can run.

    Only the memory-efficient kernel has heads of any width, and the gradient of a mask.
    """
    major, width, is_split = gpu.model.capability[0], query.shape[-1], query.dim() == 4
    is_half = query.dtype in _HALF and major >= 8
    is_fusable = is_half and is_split and width <= _MOST_HEAD_DIM
    is_aligned = width * query.itemsize % 16 == 0
    fits = {
        SDPBackend.FLASH_ATTENTION: is_fusable and mask is None,
        SDPBackend.EFFICIENT_ATTENTION: is_split and is_aligned and not is_grouped,
        _CUDNN: is_fusable and is_aligned and not (mask is not None and mask.requires_grad),
        SDPBackend.MATH: True,
    }
    is_enabled = {
        SDPBackend.FLASH_ATTENTION: torch._C._get_flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch._C._get_mem_efficient_sdp_enabled(),
        _CUDNN: torch._C._get_cudnn_sdp_enabled(),
        SDPBackend.MATH: torch._C._get_math_sdp_enabled(),
    }
    order = [SDPBackend(number) for number in torch._C._get_sdp_priority_order()]
    if order[0] == SDPBackend.FLASH_ATTENTION and takes_cudnn_first(gpu.release, major):
        order = [_CUDNN, *order]
    for backend in order:
        if fits.get(backend) and is_enabled[backend]:
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def takes_cudnn_first(release: tuple[int, ...], major: int) -> bool:
    """Whether *release* of torch prefers cuDNN's kernel on a GPU of this generation."""
    return major in (9, 10) and any(first <= release < end for first, end in _CUDNN_FIRST)


class AttentionCalls:
    """What calls of the operator *op* compute: the generation of their kernel, and their pairs.

    A generation is stated if the name of the operator does not show it.
    """

    def __init__(self, gpu: Gpu, op: Any) -> None:
        self._gpu, self._name = gpu, str(op)
        self._places = {one.name: place for place, one in enumerate(op._schema.arguments)}

    def observe(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """What a call computes, as far as its description does not show it."""
        seen: dict[str, Any] = {}
        if "flash" in self._name and self._gpu.release < _FLASH2_SINCE:
            seen["kernel"] = "flash1"
        pairs = self._pairs(args, kwargs)
        if pairs is not None:
            seen["pairs"] = pairs
        return {"observed": seen} if seen else {}

    def _value(self, name: str, args: Args, kwargs: Kwargs, default: Any = None) -> Any:
        if name not in self._places:
            return default
        return argument(args, kwargs, self._places[name], name, default)

    def _pairs(self, args: Args, kwargs: Kwargs) -> int | None:
        """Query-key pairs of one head; None if every query sees every key, or those before it."""
        stated = self._value("pairs", args, kwargs, 0)
        if stated:
            return int(stated)
        is_causal = any(self._value(name, args, kwargs) for name in _CAUSAL)
        left = self._value("left", args, kwargs, -1)
        if left == -1:
            window = self._value("window_size_left", args, kwargs, -1)
            left = -1 if window is None else window
        starts = [
            self._value(name, args, kwargs)
            for names in _STARTS
            if names[0] in self._places
            for name in names
        ]
        query, key = (self._value(name, args, kwargs) for name in ("query", "key"))
        if starts and starts[0] is not None:
            given = [one for one in starts if one is not None]
            known = [self._gpu.values.known(one) for one in given]
            if any(one is None for one in known):
                self._gpu.recorder.count_placeholder("lengths of packed sequences")
                lengths = [equal_lengths(one.shape, len(given[0]) - 1) for one in (query, key)]
            else:
                lengths = [one.diff() for one in known if one is not None]
            return count_pairs(lengths[0], lengths[-1], is_causal=is_causal, left=left)
        if left < 0 or query.dim() != 4:
            return None
        return int(query.shape[0]) * count_pairs(
            [query.shape[1]], [key.shape[1]], is_causal=is_causal, left=left
        )


def equal_lengths(shape: Sequence[int], count: int) -> Tensor:
    """Lengths of *count* sequences that are packed into a tensor of *shape*, as equal as can be."""
    return (torch.arange(count + 1) * math.prod(shape[:-2]) // count).diff()


def count_pairs(
    queries: Sequence[int] | Tensor, keys: Sequence[int] | Tensor, *, is_causal: bool, left: int
) -> int:
    """Query-key pairs of sequences of given lengths; a query sees *left* keys before it, or all."""
    rows, columns = (torch.as_tensor(one, dtype=torch.int64) for one in (queries, keys))
    if not is_causal:
        seen = columns if left < 0 else columns.clamp(max=2 * left + 1)
        return int((rows * seen).sum())
    # The last query sees the last key; earlier ones see one key less each.
    hidden = torch.minimum(rows, columns)
    pairs = rows * columns - hidden * (hidden - 1) // 2
    if left >= 0:
        beyond = (columns - left - 1).clamp(min=0)
        pairs -= beyond * (beyond + 1) // 2
    return int(pairs.clamp(min=0).sum())


def _shapes(
    query: Tensor, key: Tensor, value: Tensor, *settings: Any, **_: Any
) -> tuple[Tensor, Tensor]:
    del key, settings
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _gradient_shapes(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *settings: Any, **_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    del grad, settings
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: Args, output: Any) -> None:
    query, key, value, starts_q, starts_k, *ctx.settings = inputs
    out, sums = output
    ctx.save_for_backward(query, key, value, out, starts_q, starts_k)
    ctx.mark_non_differentiable(sums)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, out, *starts = ctx.saved_tensors
    grads = torch.ops.perfmodel.attention_backward(
        grad, query, key, value, out, *starts, *ctx.settings
    )
    return (*grads, *[None] * 6)
