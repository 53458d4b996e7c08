"""Special operators: those that move values, or whose shapes a meta kernel cannot know.

Every handler records what a GPU would run. Where a shape depends on unknown values, it is the
largest one possible, and the recorder counts it as a placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor, _meta_registrations
from torch.utils._pytree import tree_map_only

from perfmodel.extensions.emulation.device.descriptions import (
    Args,
    Kwargs,
    checksum_of,
    is_inexact,
    schema_name,
)
from perfmodel.extensions.emulation.device.gpu import VirtualGpu, address_of
from perfmodel.extensions.emulation.device.memory import contiguous_stride
from perfmodel.extensions.emulation.device.operators import CPU_KEYS, Kernel, OperatorKernel
from perfmodel.extensions.emulation.device.values import MOST_COMPUTED, storage_address

Handler = Callable[..., Any]
"""Called with the device, the operator, and the arguments of the call."""
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
"""Where a compressed matrix stores the counts of its rows or columns, and the indices in them."""
_WIDE = (torch.float16, torch.bfloat16)


def special_kernel(gpu: VirtualGpu, op: Any, handler: Handler) -> Kernel:
    """The kernel that lets *handler* answer calls of *op*."""
    recorder = gpu.recorder

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if recorder.is_over or recorder.is_forked:
            recorder.check_running()
        return handler(gpu, op, *args, **kwargs)

    return kernel


def item(gpu: VirtualGpu, _: Any, tensor: Tensor) -> Any:
    """`.item()`: a copy to the host that waits for the stream."""
    value = gpu.values.read(tensor).reshape(-1)[0].item()
    _copy_to_host(gpu, tensor)
    return value


def copy_(
    gpu: VirtualGpu, _: Any, target: Tensor, source: Tensor, non_blocking: bool = False
) -> Tensor:
    """A copy: inside the device, or to and from the host."""
    if not target.is_cuda:
        value = gpu.values.read(source)
        with torch.no_grad():
            target.detach().copy_(value)
        # Copies to pageable memory wait whatever the script says.
        is_pinned = address_of(target) in gpu.pinned
        _copy_to_host(gpu, source, is_awaited=not (non_blocking and is_pinned))
        return target
    known: Tensor | None
    if source.is_cuda:
        known = gpu.values.known(source) if gpu.values else None
        gpu.launch("copy", inputs=[source], outputs=[target])
    else:
        known, is_pinned = source.detach(), address_of(source) in gpu.pinned
        checksum = checksum_of(known) if gpu.recorder.is_on else 0
        if checksum:
            gpu.moved[storage_address(target)] = (checksum, target.numel())
        gpu.launch(
            "host_to_device",
            inputs=[source],
            outputs=[target],
            is_awaited=not (non_blocking and is_pinned),
            pinned=is_pinned,
            checksum=checksum,
        )
    if known is None:
        gpu.values.forget(target)
    else:
        gpu.values.set(target, known)
    return target


def _copy_to_host(gpu: VirtualGpu, source: Tensor, *, is_awaited: bool = True) -> None:
    gpu.launch(
        "device_to_host", inputs=[source], outputs=[], is_awaited=is_awaited, pinned=not is_awaited
    )


def fill_(gpu: VirtualGpu, op: Any, tensor: Tensor, number: Any = 0) -> Tensor:
    """Write one number everywhere; small tensors remember it."""
    gpu.launch(str(op), inputs=[], outputs=[tensor])
    if isinstance(number, Tensor):
        number = gpu.values.known(number)
    if number is None or tensor.numel() > MOST_COMPUTED or _is_wide_float(tensor):
        gpu.values.forget(tensor)
    else:
        value = torch.empty(tensor.shape, dtype=tensor.dtype)
        gpu.values.set(tensor, value.fill_(number))
    return tensor


def set_(gpu: VirtualGpu, op: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Refer to another storage; without one, to an empty one."""
    if args:
        return on_host_keys(gpu, op, tensor, *args, **kwargs)
    tensor.data = gpu.empty((0,), (1,), tensor.dtype, tensor.get_device())
    return tensor


def resize_(gpu: VirtualGpu, _: Any, tensor: Tensor, size: Sequence[int], **__: Any) -> Tensor:
    """Another shape, in the same storage as long as it has room."""
    if list(tensor.shape) == list(size):
        return tensor
    count, stride = prod(size), contiguous_stride(size)
    if count * tensor.itemsize <= tensor.untyped_storage().nbytes():
        return tensor.as_strided_(size, stride, tensor.storage_offset())
    known = gpu.values.known(tensor)
    larger = gpu.empty(size, stride, tensor.dtype, tensor.get_device())
    if known is not None:
        padded = torch.zeros(count, dtype=tensor.dtype)
        padded[: known.numel()] = known.reshape(-1)
        gpu.values.set(larger, padded.view(size))
    tensor.data = larger
    return tensor


def unscale(gpu: VirtualGpu, op: Any, gradients: list[Tensor], found: Tensor, *_: Any) -> None:
    """Divide gradients by the loss scale; an overflow is never found."""
    gpu.launch(str(op), inputs=list(gradients), outputs=list(gradients))
    gpu.values.set(found, torch.zeros(found.shape))


def update_scale(gpu: VirtualGpu, op: Any, scale: Tensor, *args: Any) -> Tensor:
    """Adapt the loss scale, which stays as it is because nothing overflows."""
    gpu.launch(str(op), inputs=[scale, *args[:2]], outputs=[scale])
    return scale


def select_unknown(gpu: VirtualGpu, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Operators that select by value: exact where values are known, else everything."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    known = [gpu.values.known(tensor) for tensor in tensors]
    device = gpu.device_of(args, kwargs)
    gpu.launch(str(op), inputs=tensors, outputs=[], is_awaited=True)
    if all(value is not None for value in known) and not _is_wide_float(tensors[0]):
        values = iter(known)
        result = op(*[next(values) if isinstance(a, Tensor) else a for a in args], **kwargs)
        return to_device(gpu, result, device)
    if schema_name(op) == "masked_select" and known[1] is not None:
        # The mask alone decides how many are selected.
        mask, _ = torch.broadcast_tensors(known[1], torch.empty(tensors[0].shape, device="meta"))
        return gpu.empty((int(mask.sum()),), (1,), tensors[0].dtype, device)
    gpu.recorder.count_placeholder("shape that depends on values")
    return _largest(gpu, op, tensors[0], device, args, kwargs)


def _largest(
    gpu: VirtualGpu, op: Any, first: Tensor, device: int, args: Args, kwargs: Kwargs
) -> Any:
    """The largest result that is possible."""
    name, count = schema_name(op), first.numel()
    if name == "nonzero":
        return gpu.empty((count, first.dim()), (1, max(count, 1)), torch.int64, device)
    if name == "masked_select":
        return gpu.empty((count,), (1,), first.dtype, device)
    if name.startswith("_to_sparse"):
        ones = torch.ones(first.shape, dtype=first.dtype)
        return to_device(gpu, op(ones, *args[1:], **kwargs), device)
    if name == "bincount":
        least = args[2] if len(args) > 2 else 0
        return gpu.empty((max(least, 1),), (1,), torch.int64, device)
    shape = first.shape if name == "unique_dim" else (count,)
    others = len(op._schema.returns) - 1
    return (
        gpu.empty(shape, contiguous_stride(shape), first.dtype, device),
        *(gpu.empty((count,), (1,), torch.int64, device) for _ in range(others)),
    )


def repeat_interleave(
    gpu: VirtualGpu, op: Any, repeats: Tensor, output_size: int | None = None, **_: Any
) -> Tensor:
    """Places by how often each is repeated; once, if that is unknown and so is their number."""
    known = gpu.values.known(repeats)
    gpu.launch(str(op), inputs=[repeats], outputs=[], is_awaited=output_size is None)
    if known is not None:
        found: Tensor = to_device(gpu, op(known), repeats.get_device())
        return found
    if output_size is None:
        gpu.recorder.count_placeholder("shape that depends on values")
        output_size = repeats.numel()
    return gpu.empty((output_size,), (1,), repeats.dtype, repeats.get_device())


def index(gpu: VirtualGpu, op: Any, tensor: Tensor, indices: Sequence[Any], **kwargs: Any) -> Any:
    """Indexing; masks are turned into positions first, which waits, as on a GPU."""
    places: list[Any] = []
    for one in indices:
        is_mask = one is not None and one.dtype in (torch.bool, torch.uint8)
        places += one.nonzero().unbind(1) if is_mask else [one]
    return _generic_kernel(gpu, op)(tensor, places, **kwargs)


_generic_kernel = cache(OperatorKernel)


def to_device(gpu: VirtualGpu, result: Any, device: int) -> Any:
    """*result* of a CPU operator on the device, with the values that are kept there."""
    return tree_map_only(Tensor, partial(_to_device, gpu, device), result)


def _to_device(gpu: VirtualGpu, device: int, result: Tensor) -> Tensor:
    if result.layout is torch.sparse_coo:
        parts = to_device(gpu, (result._indices(), result._values()), device)
        return torch.ops.aten._sparse_coo_tensor_unsafe(
            *parts, result.shape, is_coalesced=result.is_coalesced()
        )
    if result.layout in COMPRESSED:
        names = (*COMPRESSED[result.layout], "values")
        starts, inside, entries = to_device(gpu, [getattr(result, n)() for n in names], device)
        return torch.sparse_compressed_tensor(
            starts, inside, entries, result.shape, layout=result.layout, check_invariants=False
        )
    made = gpu.empty(result.shape, result.stride(), result.dtype, device)
    gpu.values.set(made, result)
    return made


def equal(gpu: VirtualGpu, op: Any, first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal: as far as is known, else yes if their shapes are."""
    known = [gpu.values.known(tensor) for tensor in (first, second)]
    gpu.launch(str(op), inputs=[first, second], outputs=[], is_awaited=True)
    if known[0] is not None and known[1] is not None:
        return bool(torch.equal(known[0], known[1]))
    gpu.recorder.count_placeholder("comparison of device tensors")
    return bool(first.shape == second.shape)


def on_host_keys(_: VirtualGpu, op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator whose CPU kernel is made of others, which come back to the device."""
    return op.redispatch(CPU_KEYS, *args, **kwargs)


def _is_wide_float(tensor: Tensor) -> bool:
    return is_inexact(tensor) and tensor.numel() > 1


_HANDLERS: dict[Handler, tuple[str, ...]] = {
    item: ("_local_scalar_dense",),
    copy_: ("copy_", "_copy_from", "_copy_from_and_resize"),
    fill_: ("fill_.Scalar", "fill_.Tensor", "zero_"),
    set_: (
        "set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor",
        "set_.source_Tensor_storage_offset",
    ),
    resize_: ("resize_",),
    (lambda *_, **__: None): ("record_stream",),
    unscale: ("_amp_foreach_non_finite_check_and_unscale_",),
    update_scale: ("_amp_update_scale_",),
    select_unknown: (
        "nonzero", "masked_select", "_unique", "_unique2", "unique_consecutive", "unique_dim",
        "bincount", "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc",
        "_to_sparse_bsr", "_to_sparse_bsc",
    ),
    repeat_interleave: ("repeat_interleave.Tensor",),
    index: ("index.Tensor",),
    equal: ("equal",),
    (lambda *_, **__: False): (
        "is_pinned", "_use_cudnn_ctc_loss", "_use_cudnn_ctc_loss.Tensor", "_use_miopen_ctc_loss",
        "_use_miopen_ctc_loss.Tensor",
    ),
    on_host_keys: ("_embedding_bag_backward",),
}  # fmt: skip
SPECIAL = {name: handler for handler, names in _HANDLERS.items() for name in names}
"""The handler of each special operator of aten."""


def _sums(image: Tensor, count: int) -> tuple[Tensor, ...]:
    """Sums per channel."""
    dtype = torch.float32 if image.dtype in _WIDE else image.dtype
    return tuple(image.new_empty(image.shape[1], dtype=dtype) for _ in range(count))


def _rnn_gradients(data: Tensor, weights: list[Tensor], *args: Any) -> tuple[Any, ...]:
    hidden, cell = args[2:4]
    of_cell = data.new_empty(0) if cell is None else torch.empty_like(cell)
    of_weights = [torch.empty_like(weight) for weight in weights]
    return torch.empty_like(data), torch.empty_like(hidden), of_cell, of_weights


def _gates(like: Tensor, *counts: int) -> tuple[Tensor, ...]:
    return tuple(like.new_empty(like.shape[0], count * like.shape[1]) for count in counts)


def install_grouped_gemms() -> None:
    """Let groups of GEMMs have any format, as on a GPU; torch's meta kernel knows bfloat16."""
    common = _meta_registrations._meta_grouped_mm_common

    def in_any_format(left: Tensor, right: Tensor, **words: Any) -> Tensor:
        if words["scale_a"] is not None:
            return common(left, right, **words)
        halves = left.to(torch.bfloat16), right.to(torch.bfloat16)
        return common(*halves, **words).to(words["out_dtype"] or left.dtype)

    _meta_registrations._meta_grouped_mm_common = in_any_format


META_KERNELS: dict[str, Kernel] = {
    # SyncBatchNorm.
    "batch_norm_stats": lambda image, *_: _sums(image, 2),
    "batch_norm_gather_stats": lambda image, *_: _sums(image, 2),
    "batch_norm_gather_stats_with_counts": lambda image, *_: _sums(image, 2),
    "batch_norm_elemt": lambda image, *_: torch.empty_like(image),
    "batch_norm_backward_elemt": lambda image, *_: torch.empty_like(image),
    "batch_norm_backward_reduce": lambda image, *_: _sums(image, 4),
    # Recurrent layers of cuDNN, and cells without their GEMMs: the state and five gates; gradients
    # of the gates of input and state, of the state, and of both biases.
    "_cudnn_rnn_backward": _rnn_gradients,
    "_thnn_fused_gru_cell": lambda _, __, hidden, *___: _gates(hidden, 1, 5),
    "_thnn_fused_gru_cell_backward": lambda gradient, *_: (
        *_gates(gradient, 3, 3, 1),
        *(gradient.new_empty(3 * gradient.shape[1]) for _ in range(2)),
    ),
}
"""The shapes of operators that torch has no meta kernels for."""
