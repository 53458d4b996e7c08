"""Operator traffic: operators that are priced by the bytes they read and write.

A recording often does not give the outputs of a call; they are guessed from the name of the
operator and the largest input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress

from perfmodel.base.dtypes import DType
from perfmodel.extensions.recordings.operators.calls import (
    SPARSE,
    OperatorCall,
    Tensor,
    listed,
    names_in,
    operator_table,
)
from perfmodel.graph.ops import Copy, CopyRoute, MemoryBound, Works

_FLOPS_PER_INSTRUCTION = 2
"""What a lane could do instead: a multiplication and an addition."""
_INDEX_DTYPES = (DType.INT64, DType.INT32)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all *tensors*."""
    return sum(tensor.size_bytes for tensor in tensors)


def host_copy(call: OperatorCall) -> Works:
    """A copy between host and device."""
    tensor = (call.results or call.tensors)[0]
    is_pinned = bool(call.values.get("pinned"))
    return (Copy(CopyRoute(call.name), tensor.size_bytes, is_pinned),)


def device_copy(call: OperatorCall) -> Works:
    """A copy inside the device, or a cast."""
    sources, targets = call.tensors, call.results or ()
    if not targets:
        # Lists of tensors, copied by one kernel.
        sources, targets = (
            tuple(tensor for tensor in call.tensors if tensor.name == name)
            for name in ("src", "self")
        )
    name = "copy" if sources[0].dtype is targets[0].dtype else "cast"
    return (MemoryBound(name, bytes_of(sources), bytes_of(targets), targets[0].dtype),)


def compiled_kernel(call: OperatorCall) -> Works:
    """A kernel that a compiler made of several operators: the bytes that it touches."""
    results = call.results or ()
    widest = max((*call.tensors, *results), key=lambda one: one.size_bytes, default=None)
    return (
        MemoryBound(
            f"fused_{call.values['kind']}",
            bytes_of(call.tensors),
            bytes_of(results),
            DType.FP32 if widest is None else widest.dtype,
            flops=_FLOPS_PER_INSTRUCTION * int(call.values["instructions"]),
            row_length=int(call.values["row_length"]),
        ),
    )


def norm_backward(call: OperatorCall) -> Works:
    """One kernel for the gradient of the input, one that sums up those of the parameters."""
    source, moved_bytes = call.tensors[1], bytes_of(call.tensors[:2])
    of_input = MemoryBound(
        _kernel_name(call.name), moved_bytes, source.size_bytes, source.dtype,
        row_length=_row_length(call),
    )  # fmt: skip
    if any(call.values.get("output_mask", ())[1:]):
        return (of_input, replace(of_input, operator="reduction", write_bytes=0))
    return (of_input,)


def traffic(call: OperatorCall) -> Works:
    """A kernel that reads its inputs and writes its outputs once."""
    name, tensors, outputs = call.name, call.tensors, call.results or ()
    written = [
        tensor
        for tensor in tensors
        if tensor.is_written and not (tensor.name == "grads" and name.startswith("_fused_"))
    ]
    read_bytes = bytes_of(tensor for tensor in tensors if tensor.name != "out")
    write_bytes = bytes_of((*outputs, *written))
    if name in names_in("writing", call.source.value):
        read_bytes = 0
    elif name in names_in("gathering"):
        read_bytes = write_bytes + bytes_of(tensors[1:])
    elif name in names_in("scattering"):
        given_bytes = bytes_of(tensors[1:])
        read_bytes, write_bytes = 2 * given_bytes, given_bytes + bytes_of(outputs)
    elif name in names_in("reading_twice"):
        # A norm that computes its statistics, as every group norm does, reads twice.
        read_bytes *= 1 + bool(call.values.get("training", call.values.get("train", True)))
    elif name.startswith(SPARSE) and name.endswith("mm"):
        read_bytes = _sparse_gemm_bytes(tensors, outputs[0])
    first = next(iter((*outputs, *written, *tensors)), None)
    dtype = DType.FP32 if first is None else first.dtype
    length = _row_length(call)
    return (MemoryBound(_kernel_name(name), read_bytes, write_bytes, dtype, row_length=length),)


def _sparse_gemm_bytes(tensors: Sequence[Tensor], output: Tensor) -> int:
    """Entries, their indices, and a row of the dense matrix for every entry."""
    is_index = [tensor.dtype in _INDEX_DTYPES for tensor in tensors]
    entries = tensors[is_index.index(True) - 1]
    row_bytes = output.size_bytes // max(output.shape[0], 1)
    return entries.size_bytes + bytes_of(compress(tensors, is_index)) + entries.count * row_bytes


def _kernel_name(name: str) -> str:
    """The kernel of an emulated operator; its own name where none is known."""
    return "gather" if name.startswith(SPARSE) else listed("kernels").get(name, name)


def _row_length(call: OperatorCall) -> int:
    """The length of a reduction, 0 where there is none."""
    if "normalized_shape" in call.values:
        return math.prod(call.values["normalized_shape"])
    if call.name in names_in("softmaxes") and call.tensors:
        shape = call.tensors[0].shape
        return shape[int(call.values.get("dim", -1))] if shape else 0
    if listed("kernels").get(call.name) == "reduction" and call.tensors and call.results:
        return call.tensors[0].count // max(call.results[0].count, 1)
    return 0


def guessed_traffic(call: OperatorCall) -> Works:
    """Everything else in a recording: inputs are read once, outputs are written once.

    Unknown outputs are as large as the largest input.
    """
    word = call.word
    inside = [tensor for tensor in call.tensors if not tensor.is_on_host]
    if not inside and not call.results:
        return ()
    read_bytes = bytes_of(inside)
    if call.results is not None:
        write_bytes = bytes_of(tensor for tensor in call.results if not tensor.is_on_host)
    elif word.startswith("_foreach") or word.endswith("_"):
        write_bytes = sum(bytes_of(argument) for argument in call.arguments[:1])
    elif word in names_in("reducing"):
        write_bytes = 0
    else:
        write_bytes = max(tensor.size_bytes for tensor in inside)
    widest = max([*inside, *(call.results or ())], key=lambda tensor: tensor.size_bytes)
    if word.rstrip("_") in names_in("writing", call.source.value):
        read_bytes = 0
    elif word == "copy_" and len(inside) > 1:
        read_bytes -= inside[0].size_bytes
    elif word.startswith("triton_"):
        # Arguments of a generated kernel include its outputs.
        read_bytes -= write_bytes
    curves = operator_table()["curves"].items()
    name = next((curve for piece, curve in curves if piece in word), "")
    row_length = widest.shape[-1] if name in names_in("row_wise") and widest.shape else 0
    if name and "backward" in word:
        name = f"{name}_backward"
    name = name or word.rstrip("_")
    return (MemoryBound(name, read_bytes, write_bytes, widest.dtype, row_length=row_length),)
