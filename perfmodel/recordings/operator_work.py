"""Operator work: the work of a PyTorch operator, from its name and the shapes of its tensors.

Attention over packed sequences is taken as sequences of their mean length, and the tables of one
lookup as equal tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from embeddings.table import MOST_LOOKUPS, MOST_ROWS, MOST_WIDTH, EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import (
    Attention,
    Convolution,
    EmbeddingOp,
    Gemm,
    MemoryBound,
    Pass,
    Work,
)
from perfmodel.recordings.operator_calls import OperatorCall, Tensor

_MOST_TABLES = 256
# Names that the measured curves know, and other spellings in operators.
_CURVES = {
    "layer_norm": "layer_norm",
    "layernorm": "layer_norm",
    "rms_norm": "rms_norm",
    "rmsnorm": "rms_norm",
    **{
        name: name
        for name in ("batch_norm", "log_softmax", "softmax", "dropout", "gelu", "silu", "adam")
    },
}
_ROW_WISE = ("layer_norm", "rms_norm", "log_softmax", "softmax")


def work_of_call(call: OperatorCall) -> Work | None:
    """The work of *call* on the device; None if its shapes do not tell."""
    readers = (reader for pattern, reader in _READERS if pattern.search(call.name))
    return next(readers, _memory_bound)(call)


def _word_of(call: OperatorCall) -> str:
    return call.name.rsplit("::", 1)[-1]


def _gemm(call: OperatorCall) -> Gemm | None:
    word = _word_of(call)
    is_vector = word.endswith("mv")
    first = 1 if word in ("addmm", "baddbmm", "addmv", "addmm_", "_addmm_activation") else 0
    rank = 3 if word in ("bmm", "baddbmm", "bmm_") else 2
    left = call.tensor(first, rank=rank)
    right = call.tensor(first + 1, rank=1 if is_vector else rank)
    if left is None or right is None or not left.count or not right.count:
        return None
    columns = 1 if is_vector else right.shape[-1]
    depth = right.shape[0] if is_vector else right.shape[-2]
    if left.shape[-1] != depth:
        return None
    batch = left.shape[0] if rank == 3 else 1
    return Gemm(m=left.shape[-2], n=columns, k=depth, dtype=left.dtype, batch=batch)


def _groups(source: Tensor | None, weight: Tensor | None) -> int:
    """The groups of a convolution; 0 if its tensors do not fit together."""
    if source is None or weight is None or not source.count or not weight.count:
        return 0
    if not len(source.shape) == len(weight.shape) >= 3 or source.shape[1] % weight.shape[1]:
        return 0
    groups = source.shape[1] // weight.shape[1]
    return 0 if weight.shape[0] % groups else groups


def _convolution(call: OperatorCall) -> Convolution | None:
    source, weight = call.tensor(0), call.tensor(1)
    groups = _groups(source, weight)
    if source is None or weight is None or not groups:
        return None
    positions = source.shape[0] * _positions_out(call, source, weight)
    return Convolution(
        m=positions,
        n=weight.shape[0] // groups,
        k=math.prod(weight.shape[1:]),
        dtype=source.dtype,
        groups=groups,
        read_bytes=source.size_bytes + weight.size_bytes,
        write_bytes=positions * weight.shape[0] * source.dtype.size_bytes,
    )


def _positions_out(call: OperatorCall, source: Tensor, weight: Tensor) -> int:
    """Positions of the output; as many as the input has if strides are unknown."""
    if call.results and len(call.results[0].shape) == len(source.shape):
        return math.prod(call.results[0].shape[2:])
    word = _word_of(call)
    first = 2 if word == "cudnn_convolution" else 3
    lists = [_whole_list(call.value(place), len(source.shape) - 2) for place in (first, first + 1)]
    padding, strides = lists if word.startswith(("cudnn", "miopen")) else lists[::-1]
    if strides is None or padding is None or 0 in strides:
        return math.prod(source.shape[2:])
    return math.prod(
        max((extent + 2 * pad - window) // stride + 1, 1)
        for extent, window, pad, stride in zip(
            source.shape[2:], weight.shape[2:], padding, strides, strict=True
        )
    )


def _whole_list(value: Any, length: int) -> list[int] | None:
    numbers = value if isinstance(value, list) else re.findall(r"-?\d+", str(value))
    try:
        found = [int(number) for number in numbers]
    except (TypeError, ValueError):
        return None
    return found if len(found) == length and min(found) >= 0 else None


def _convolution_backward(call: OperatorCall) -> Convolution | None:
    """The gradient of the input; the gradient of the weights has as many multiplications."""
    gradient, source, weight = (call.tensor(place) for place in range(3))
    groups = _groups(source, weight)
    if gradient is None or source is None or weight is None or not groups:
        return None
    if len(gradient.shape) != len(source.shape):
        return None
    return Convolution(
        m=gradient.shape[0] * math.prod(gradient.shape[2:]),
        n=weight.shape[1],
        k=weight.shape[0] // groups * math.prod(weight.shape[2:]),
        dtype=source.dtype,
        groups=groups,
        read_bytes=gradient.size_bytes + weight.size_bytes,
        write_bytes=source.size_bytes,
        direction=Pass.BACKWARD,
    )


def gradient_of_weights(work: Convolution) -> Convolution:
    """The other GEMM of a convolution's backward pass: *work* with its axes exchanged."""
    return replace(work, m=work.k, k=work.m)


def _attention(call: OperatorCall) -> Attention | None:
    is_backward = "backward" in call.name or call.name.endswith("bwd")
    first = 1 if is_backward else 0
    query, key = call.tensor(first), call.tensor(first + 1)
    if query is None or key is None or not query.count or not key.count:
        return None
    if len(query.shape) != len(key.shape) or len(query.shape) not in (3, 4):
        return None
    if len(query.shape) == 4:
        head, length = (1, 2) if "scaled_dot_product" in call.name else (2, 1)
        batch = query.shape[0]
        lengths = (query.shape[length], key.shape[length])
    else:
        # Sequences packed end to end; a list of their starts gives their number.
        starts = [
            tensor.shape[0]
            for tensor in call.tensors
            if tensor.dtype is DType.INT32 and len(tensor.shape) == 1 and tensor.shape[0] > 1
        ]
        head, batch = 1, max(min(starts, default=2) - 1, 1)
        lengths = (max(query.shape[0] // batch, 1), max(key.shape[0] // batch, 1))
    # Training is causal as a rule; only a stated False on every flag denies it.
    flags = [str(value) for value in call.values if str(value) in ("True", "False")]
    return Attention(
        batch=batch,
        query_length=lengths[0],
        key_length=lengths[1],
        heads=query.shape[head],
        kv_heads=key.shape[head],
        head_dim=query.shape[-1],
        dtype=query.dtype,
        is_causal=not flags or "True" in flags,
        direction=Pass.BACKWARD if is_backward else Pass.FORWARD,
    )


def is_lookup(name: str) -> bool:
    """Whether *name* is the fused lookup of embedding tables."""
    return "embedding" in name and ("lookup" in name or "codegen_forward" in name)


def lookup_of_call(call: OperatorCall, total_width: int | None = None) -> Lookup | None:
    """The tables of a fused lookup; *total_width* of all of them if the call does not say."""
    places = (0, 1, 7, 8, 3) if "dense_embedding" in call.name else (1, 5, 11, 12, 7)
    weights, starts, indices, offsets = (call.tensor(place) for place in places[:4])
    if weights is None or starts is None or indices is None or offsets is None:
        return None
    width = call.value(places[4])
    if not isinstance(width, int):
        match = re.fullmatch(r"\s*(\d{1,12})\s*", str(width))
        width = (int(match[1]) if match else 0) or total_width
    tables = starts.count
    if not width or not 0 < tables <= width or offsets.count < 2 or not weights.count:
        return None
    # Numbers beyond all tables are damage.
    if width // tables > MOST_WIDTH or weights.count > MOST_ROWS or indices.count > MOST_LOOKUPS:
        return None
    batch = max((offsets.count - 1) // tables, 1)
    each = EmbeddingTable(
        name="table",
        rows=max(weights.count // width, 1),
        width=max(width // tables, 1),
        pooling_factor=indices.count / (batch * tables),
        dtype=weights.dtype,
    )
    kinds = ("rowwise_adagrad", "adagrad", "adam")
    optimizer = next((kind for kind in kinds if kind in call.name), "sgd")
    return Lookup((each,) * min(tables, _MOST_TABLES), batch, optimizer=optimizer)


def _lookup(call: OperatorCall) -> Work | None:
    lookup = lookup_of_call(call)
    return None if lookup is None else EmbeddingOp(lookup)


def _vocabulary_rows(call: OperatorCall) -> MemoryBound | None:
    """Rows of one table, as in the embedding of a vocabulary."""
    table, indices = call.tensor(0, rank=2), call.tensor(1)
    if table is None or indices is None:
        return None
    moved_bytes = indices.count * table.shape[1] * table.dtype.size_bytes
    return MemoryBound("embedding", moved_bytes + indices.size_bytes, moved_bytes, table.dtype)


def _memory_bound(call: OperatorCall) -> MemoryBound | None:
    """Everything else: inputs are read once, outputs are written once.

    Unknown outputs are as large as the largest input.
    """
    word = _word_of(call)
    inside = [tensor for tensor in call.tensors if not tensor.is_on_host]
    if not inside and not call.results:
        return None
    read_bytes = sum(tensor.size_bytes for tensor in inside)
    if call.results is not None:
        write_bytes = sum(tensor.size_bytes for tensor in call.results if not tensor.is_on_host)
    elif word.startswith("_foreach") or word.endswith("_"):
        write_bytes = sum(t.size_bytes for argument in call.arguments[:1] for t in argument)
    elif word in ("sum", "mean", "max", "min", "norm", "argmax"):
        write_bytes = 0
    else:
        write_bytes = max(tensor.size_bytes for tensor in inside)
    widest = max([*inside, *(call.results or ())], key=lambda tensor: tensor.size_bytes)
    if word.rstrip("_") in ("fill", "zero"):
        read_bytes = 0
    elif word == "copy_" and len(inside) > 1:
        read_bytes -= inside[0].size_bytes
    elif word.startswith("triton_"):
        # Arguments of a generated kernel include its outputs.
        read_bytes -= write_bytes
    name = next((curve for piece, curve in _CURVES.items() if piece in word), "")
    row_length = widest.shape[-1] if name in _ROW_WISE and widest.shape else 0
    if name and "backward" in word:
        name = f"{name}_backward"
    return MemoryBound(
        name or word.rstrip("_"), read_bytes, write_bytes, widest.dtype, row_length=row_length
    )


_READERS: tuple[tuple[re.Pattern[str], Callable[[OperatorCall], Work | None]], ...] = (
    (re.compile(r"::(add|badd|_scaled_|b|s|addb)?m[mv]_?$|_addmm_activation$"), _gemm),
    (re.compile(r"::convolution_backward|conv\w*_backward"), _convolution_backward),
    (re.compile(r"conv(olution|\d|_transpose|_depthwise)|::_slow_conv|thnn_conv"), _convolution),
    (
        re.compile(
            r"scaled_dot_product_(flash|efficient|cudnn|fused)\w*attention"
            r"|(flash|efficient|cudnn)_attention_(forward|backward)"
            r"|flash_attn\w*::(fwd|bwd|_flash_attn\w*_(forward|backward))"
        ),
        _attention,
    ),
    (re.compile(r"embedding\w*(lookup|codegen_forward)"), _lookup),
    (re.compile(r"^aten::embedding$"), _vocabulary_rows),
)
