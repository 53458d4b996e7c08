"""Attention: which kernel a GPU would run, and how many query-key pairs it computes.

torch chooses, in the order of the release that is emulated. Packages go to an operator of ours,
whose shapes are its only answer. Where sequences are packed, windows are narrow or blocks are left
out, the pairs that are computed are counted from known values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from perfmodel.extensions.emulation.driver.descriptions import Args, Kwargs, argument
from perfmodel.extensions.emulation.driver.gpu import Gpu, keep_for_ever

OPERATORS = frozenset(
    {
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
        "_efficient_attention_backward", "attention", "attention_backward",
    }
)  # fmt: skip
"""Operators that are recorded with their kernel and pairs."""
NAMESPACE = "perfmodel"
_STARTS = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"), ("starts_q", "starts_k"))
_CAUSAL = ("is_causal", "custom_mask_type")
_FLASH2_SINCE = (2, 2)
_CUDNN_FIRST = (((2, 5, 0), (2, 5, 1)), ((2, 9, 0), (2, 10, 0)), ((2, 11, 0), (99,)))
"""Releases of torch that take cuDNN's kernel first on Hopper and Blackwell, each to before another:
opt-in from 2.5.1 on (pytorch 138522), first again in 2.9 (162073), with a newer cuDNN from 2.11."""


def declare_attention(launch: Callable[..., None]) -> None:
    """Define our operator, a kernel that *launch* records."""
    own = torch.library.Library(NAMESPACE, "DEF")
    settings = "Tensor? starts_q, Tensor? starts_k, bool is_causal, int left, int pairs, str kernel"
    own.define(f"attention(Tensor query, Tensor key, Tensor value, {settings}) -> (Tensor, Tensor)")
    own.define(
        "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
        f"{settings}) -> (Tensor, Tensor, Tensor)"
    )
    for name, shapes in (("attention", _shapes), ("attention_backward", _gradient_shapes)):
        torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=own)
        op = getattr(torch.ops.perfmodel, name).default
        own.impl(name, partial(_run, op, shapes, launch), "CUDA")
    name = f"{NAMESPACE}::attention"
    torch.library.register_autograd(name, _backward, setup_context=_keep, lib=own)
    keep_for_ever(own)


def _run(op: Any, shapes: Callable[..., Any], launch: Callable[..., None], *args: Any) -> Any:
    result = shapes(*args)
    launch(op, args, {}, result)
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
