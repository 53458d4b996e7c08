"""Convolutions: the kernels of a convolution and of its gradients.

Each is an implicit product. Tensor cores work on images with their channels last: cuDNN converts
images in another layout before a kernel and its result afterwards, each a pass over memory.
Depthwise convolutions run outside tensor cores, in any layout, and so does the gradient of grouped
weights with channels last if the library has no tensor-core kernel for these groups.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import compress
from typing import Any

from perfmodel.extensions.recordings.operators.calls import (
    CallSource,
    OperatorCall,
    Tensor,
    gemm_dtype,
    operator_table,
)
from perfmodel.extensions.recordings.operators.traffic import bytes_of
from perfmodel.graph.ops import Convolution, MemoryBound, Pass, Works


def convolution(call: OperatorCall) -> Works:
    """The implicit product of one group: positions of the output x channels, over windows."""
    tensors = call.operands(0, 1)
    groups = _groups(call, *tensors) if tensors else 0
    if not groups:
        return ()
    image, weight = tensors
    positions = image.shape[0] * _positions_out(call, image, weight)
    write_bytes = positions * weight.shape[0] * image.dtype.size_bytes
    if call.source is CallSource.EMULATED:
        write_bytes = bytes_of(call.results or ())
    columns, depth = weight.shape[0] // groups, math.prod(weight.shape[1:])
    if call.values.get("transposed"):
        positions, columns, depth = _spread_out(image, weight, groups)
    made = Convolution(
        m=positions,
        n=columns,
        k=depth,
        dtype=gemm_dtype(call, image),
        groups=groups,
        read_bytes=image.size_bytes + weight.size_bytes,
        write_bytes=write_bytes,
        is_depthwise=_is_depthwise(groups, weight),
    )
    return _in_layout(call, made)


def convolution_backward(call: OperatorCall) -> Works:
    """The gradients that are needed: of the input, of the weight, of the bias.

    A recording does not say which; the first two are taken.
    """
    tensors = call.operands(0, 1, 2)
    groups = _groups(call, *tensors[1:]) if tensors else 0
    if not groups or len(tensors[0].shape) != len(tensors[1].shape):
        return ()
    gradient, image, weight = tensors
    rows = gradient.shape[0] * math.prod(gradient.shape[2:])
    depth, columns = weight.shape[0] // groups * math.prod(weight.shape[2:]), weight.shape[1]
    if call.values.get("transposed"):
        rows, depth, columns = _spread_out(image, weight, groups)
    of_input = Convolution(
        m=rows,
        n=columns,
        k=depth,
        dtype=gemm_dtype(call, image),
        groups=groups,
        read_bytes=gradient.size_bytes + weight.size_bytes,
        write_bytes=image.size_bytes,
        direction=Pass.BACKWARD,
        is_depthwise=_is_depthwise(groups, weight),
    )
    of_weight = replace(of_input, m=depth, k=rows, is_serial=call.sums_singly)
    if operator_table()["ways"][call.source.value]["counts_weight_bytes"]:
        read_bytes = gradient.size_bytes + image.size_bytes
        of_weight = replace(of_weight, read_bytes=read_bytes, write_bytes=weight.size_bytes)
    of_bias = MemoryBound("reduction", gradient.size_bytes, 0, gradient.dtype)
    works = (_in_layout(call, of_input), _in_layout(call, of_weight), (of_bias,))
    needed = compress(works, call.values.get("output_mask", (True, True, False)))
    return tuple(work for one in needed for work in one)


def _is_depthwise(groups: int, weight: Tensor) -> bool:
    return groups > 1 and weight.shape[1] == 1


def _in_layout(call: OperatorCall, made: Convolution) -> Works:
    """*made* between conversions of what it reads and of what it writes, where they are needed."""
    if not call.converts_layout or made.is_depthwise:
        return (made,)
    before, after = (
        MemoryBound("transpose", size_bytes, size_bytes, made.dtype)
        for size_bytes in (made.read_bytes, made.write_bytes)
    )
    return before, made, after


def _groups(call: OperatorCall, image: Tensor, weight: Tensor) -> int:
    """The groups of a convolution; 0 if its tensors do not fit together."""
    if "groups" in call.values:
        return int(call.values["groups"])
    if not image.count or not weight.count:
        return 0
    if not len(image.shape) == len(weight.shape) >= 3 or image.shape[1] % weight.shape[1]:
        return 0
    groups = image.shape[1] // weight.shape[1]
    return 0 if weight.shape[0] % groups else groups


def _spread_out(image: Tensor, weight: Tensor, groups: int) -> tuple[int, int, int]:
    """Rows, columns and depth of a transposed convolution: every input position is spread out."""
    rows = image.shape[0] * math.prod(image.shape[2:])
    return rows, math.prod(weight.shape[1:]), weight.shape[0] // groups


def _positions_out(call: OperatorCall, image: Tensor, weight: Tensor) -> int:
    """Positions of the output; as many as the input has if strides are unknown."""
    extents = image.shape[2:]
    if call.results and len(call.results[0].shape) == len(image.shape):
        return math.prod(call.results[0].shape[2:])
    first = 2 if call.word == "cudnn_convolution" else 3
    lists = [_whole_list(call.values.get(first + more), len(extents)) for more in (0, 1)]
    padding, strides = lists if call.word.startswith(("cudnn", "miopen")) else lists[::-1]
    if strides is None or padding is None or 0 in strides:
        return math.prod(extents)
    sides = zip(extents, weight.shape[2:], padding, strides, strict=True)
    return math.prod(
        max((extent + 2 * pad - window) // stride + 1, 1) for extent, window, pad, stride in sides
    )


def _whole_list(value: Any, length: int) -> list[int] | None:
    numbers = value if isinstance(value, list) else re.findall(r"-?\d+", str(value))
    try:
        found = [int(number) for number in numbers]
    except (TypeError, ValueError):
        return None
    return found if len(found) == length and min(found) >= 0 else None
