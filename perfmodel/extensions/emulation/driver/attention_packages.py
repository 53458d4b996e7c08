"""Attention packages: `flash_attn`, `flash_attn_interface` and kernels of a hub.

They are built for a GPU and cannot be imported here, so that their functions are answered: each
call is one fused kernel of its generation. Tensors are (batch, length, heads, size), or packed end
to end with the starts of their sequences.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import Distribution
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.user_kernels import record_kernel

_VERSION = "2.8.3"
"""What scripts see; no answer depends on it."""
_KERNELS = {"flash3": ("flash-attn3", "flash-attention-3", "fa3"), "flash2": ("flash",)}
"""Generations by parts of the names that a hub knows their kernels by."""
MODULES = (
    "flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding",
    "flash_attn.layers", "flash_attn.layers.rotary", "flash_attn.modules", "flash_attn.modules.mha",
    "flash_attn.ops", "flash_attn.ops.rms_norm", "flash_attn.ops.triton",
    "flash_attn.ops.triton.layer_norm", "flash_attn_interface", "kernels",
)  # fmt: skip
DISTRIBUTIONS = {"flash_attn": "flash_attn", "flash_attn_3": "flash_attn_interface"}
"""The distributions that scripts look for, and the package in each."""


class InstalledPackage(Distribution):
    """What `importlib.metadata` tells about the distribution *name*."""

    def __init__(self, name: str) -> None:
        files = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {_VERSION}\n"}
        self._texts = files | {"top_level.txt": DISTRIBUTIONS[name]}

    def read_text(self, filename: str) -> str | None:
        """The text of one of its files."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        """It has no other files."""
        return path


def make_module(gpu: Gpu, name: str) -> ModuleType:
    """The module *name* of MODULES on *gpu*."""
    module = ModuleType(name, "Fused attention on a virtual device.")
    if name == "kernels":
        module.__dict__.update(get_kernel=get_kernel, has_kernel=lambda *_, **__: True)
    elif name.endswith("padding"):
        functions = (index_first_axis, pad_input, unpad_input)
        module.__dict__.update({one.__name__: one for one in functions})
    elif name.endswith("rotary"):
        module.__dict__.update(
            apply_rotary_emb=partial(apply_rotary_emb, gpu), RotaryEmbedding=RotaryEmbedding
        )
    elif name.endswith("norm"):
        module.__dict__.update(layer_norm_fn=layer_norm_fn, rms_norm_fn=rms_norm_fn)
        module.__dict__["rms_norm"] = rms_norm_fn
    elif "." not in name or name.endswith(("interface", "mha")):
        generation = "flash3" if name == "flash_attn_interface" else "flash2"
        module.__dict__.update(vars(_functions(generation)), __version__=_VERSION)
    return module


def index_first_axis(rows: Tensor, places: Tensor) -> Tensor:
    """The *rows* at *places*."""
    return rows[places]


def unpad_input(hidden: Tensor, mask: Tensor) -> tuple[Any, ...]:
    """Rows that *mask* keeps, their places, the starts of sequences, the longest, and lengths."""
    lengths, places = mask.sum(-1, dtype=torch.int32), mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[places], places, starts, int(lengths.max()), lengths


def pad_input(hidden: Tensor, places: Tensor, batch: int, length: int) -> Tensor:
    """The rows *hidden* at their *places* of a padded batch."""
    padded = hidden.new_zeros(batch * length, *hidden.shape[1:])
    padded[places] = hidden
    return padded.unflatten(0, (batch, length))


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *_: Any,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    prenorm: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    **__: Any,
) -> Any:
    """A norm by torch's own kernel; a residual is added by one more, which the package fuses."""
    if dropout_p or return_dropout_mask:
        raise RuntimeError(
            "flash_attn.ops.triton.layer_norm: a virtual device has no dropout inside a norm. Use "
            "torch.nn.functional.dropout before it."
        )
    whole = x if residual is None else x + residual
    if is_rms_norm:
        out = torch.nn.functional.rms_norm(whole, weight.shape, weight, eps)
    else:
        out = torch.nn.functional.layer_norm(whole, weight.shape, weight, bias, eps)
    return (out, whole) if prenorm else out


def rms_norm_fn(x: Tensor, weight: Tensor, *more: Any, **words: Any) -> Any:
    """A norm without a mean."""
    return layer_norm_fn(x, weight, *more, **{**words, "is_rms_norm": True})


class _Rotation(torch.autograd.Function):
    """One kernel that turns pairs of numbers, and one that turns their gradients back."""

    @staticmethod
    def forward(ctx: Any, gpu: Gpu, x: Tensor, *angles: Tensor) -> Tensor:
        ctx.gpu, ctx.angles = gpu, angles
        out = torch.empty_like(x)
        record_kernel(gpu, "rotary", inputs=[x, *angles], outputs=[out])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        made = torch.empty_like(gradient)
        record_kernel(ctx.gpu, "rotary", inputs=[gradient, *ctx.angles], outputs=[made])
        return None, made, *(None for _ in ctx.angles)


def apply_rotary_emb(gpu: Gpu, x: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Any:
    """Rotary embedding of *x*, in place or not."""
    return _Rotation.apply(gpu, x, cos, sin)


class RotaryEmbedding(torch.nn.Module):
    """Present, so that it can be imported and inherited from."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(
            "flash_attn.layers.rotary.RotaryEmbedding: a virtual device answers apply_rotary_emb "
            "only. Compute the angles with torch and call that."
        )


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise RuntimeError(
        f"flash_attn: {name} is an internal function that a virtual device does not answer. Call "
        "the public function without the underscore."
    )


def get_kernel(name: str, *_: Any, **__: Any) -> Any:
    """Known attention kernels of a hub; others are refused by name."""
    for generation, parts in _KERNELS.items():
        if any(part in name.lower() for part in parts):
            functions = _functions(generation)
            functions.flash_attn_interface = _functions(generation)
            return functions
    raise RuntimeError(
        f"kernels.get_kernel({name!r}): a virtual device knows attention kernels only, such as "
        "kernels-community/flash-attn3. Replace that kernel by operators of torch."
    )


def _functions(generation: str) -> SimpleNamespace:
    """What a package with kernels of *generation* exports."""

    def attend(tensors: tuple[Tensor, ...], starts: Any, settings: dict[str, Any]) -> Any:
        window = settings.get("window_size", (-1, -1))
        out, sums = torch.ops.perfmodel.attention(
            *tensors, *starts, bool(settings.get("causal")), window[0], 0, generation
        )
        if settings.get("return_attn_probs"):
            return out, sums, None
        return (out, sums) if settings.get("return_softmax_lse") else out

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *more: Any, **settings: Any) -> Any:
        return attend((q, k, v), (None, None), _named(generation, more, settings))

    def flash_attn_qkvpacked_func(qkv: Tensor, *more: Any, **settings: Any) -> Any:
        return flash_attn_func(*qkv.unbind(2), *more, **settings)

    def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *more: Any, **settings: Any) -> Any:
        return flash_attn_func(q, *kv.unbind(2), *more, **settings)

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: Any = None,
        max_seqlen_k: Any = None,
        *more: Any,
        **settings: Any,
    ) -> Any:
        del max_seqlen_q, max_seqlen_k
        starts = (cu_seqlens_q, cu_seqlens_k)
        return attend((q, k, v), starts, _named(generation, more, settings))

    def flash_attn_varlen_qkvpacked_func(
        qkv: Tensor, cu_seqlens: Tensor, max_seqlen: Any, *more: Any, **settings: Any
    ) -> Any:
        del max_seqlen
        starts = (cu_seqlens, cu_seqlens)
        return attend(qkv.unbind(1), starts, _named(generation, more, settings))

    def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any, **settings: Any
    ) -> Any:
        return flash_attn_func(q, k_cache, v_cache, **settings)

    def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *more: Any, **settings: Any) -> Any:
        return flash_attn_varlen_func(q, *kv.unbind(1), *more, **settings)

    ways = ("forward", "backward", "varlen_forward", "varlen_backward")
    hidden = {f"_flash_attn_{way}": partial(_refuse, f"_flash_attn_{way}") for way in ways}
    return SimpleNamespace(
        **hidden,
        flash_attn_varlen_kvpacked_func=flash_attn_varlen_kvpacked_func,
        flash_attn_func=flash_attn_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
        flash_attn_qkvpacked_func=flash_attn_qkvpacked_func,
        flash_attn_kvpacked_func=flash_attn_kvpacked_func,
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_varlen_qkvpacked_func=flash_attn_varlen_qkvpacked_func,
    )


def _named(generation: str, more: tuple[Any, ...], settings: dict[str, Any]) -> dict[str, Any]:
    """*settings* with those that were given by place, as far as they matter."""
    order = ("softmax_scale", "causal")
    names = order if generation == "flash3" else ("dropout_p", *order, "window_size")
    return {**dict(zip(names, more, strict=False)), **settings}
