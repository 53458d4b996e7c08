"""Operator work: what an operator of PyTorch does, from its name and the shapes of its tensors.

Attention over packed sequences is taken as sequences of their mean length, and
the tables of one lookup as equal ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
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


def work_of_call(call: OperatorCall) -> Work | None:
    """What *call* does on the device; None where its shapes do not tell."""
    word = call.name.rsplit("::", 1)[-1]
    for pattern, reader in _READERS:
        if pattern.search(call.name):
            return reader(call)
    return _memory_bound(call, word)


def _product(call: OperatorCall) -> Gemm | None:
    word = call.name.rsplit("::", 1)[-1]
    first = 1 if word in ("addmm", "baddbmm", "addmv", "addmm_", "_addmm_activation") else 0
    rank = 3 if word in ("bmm", "baddbmm", "bmm_") else 2
    left = call.tensor(first, rank=rank)
    right = call.tensor(first + 1, rank=1 if word.endswith("mv") else rank)
    if left is None or right is None or not left.count or not right.count:
        return None
    columns = 1 if word.endswith("mv") else right.shape[-1]
    depth = right.shape[0] if word.endswith("mv") else right.shape[-2]
    if left.shape[-1] != depth:
        return None
    batch = left.shape[0] if rank == 3 else 1
    return Gemm(m=left.shape[-2], n=columns, k=depth, dtype=left.dtype, batch=batch)


def _convolution(call: OperatorCall) -> Convolution | None:
    source, weight = call.tensor(0), call.tensor(1)
    if source is None or weight is None or not _fit(source, weight):
        return None
    groups = source.shape[1] // weight.shape[1]
    out = _positions_out(call, source, weight)
    columns = weight.shape[0] // groups
    return Convolution(
        m=source.shape[0] * out,
        n=columns,
        k=math.prod(weight.shape[1:]),
        dtype=source.dtype,
        groups=groups,
        read_bytes=source.size_bytes + weight.size_bytes,
        write_bytes=source.shape[0] * out * weight.shape[0] * source.dtype.size_bytes,
    )


def _fit(source: Tensor, weight: Tensor) -> bool:
    return (
        len(source.shape) == len(weight.shape) >= 3
        and source.count > 0
        and weight.count > 0
        and source.shape[1] % weight.shape[1] == 0
        and weight.shape[0] % (source.shape[1] // weight.shape[1]) == 0
    )


def _positions_out(call: OperatorCall, source: Tensor, weight: Tensor) -> int:
    """Positions of the output; as many as the input has where strides are not said."""
    if call.results and len(call.results[0].shape) == len(source.shape):
        return math.prod(call.results[0].shape[2:])
    word = call.name.rsplit("::", 1)[-1]
    first = 2 if word == "cudnn_convolution" else 3
    lists = [_whole_list(call.value(place), len(source.shape) - 2) for place in range(first, 6)]
    is_padding_first = word.startswith(("cudnn", "miopen"))
    strides, padding = (lists[1], lists[0]) if is_padding_first else (lists[0], lists[1])
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
    """The gradient of the input; that of the weights has the same products to add up."""
    gradient, source, weight = (call.tensor(place) for place in range(3))
    if gradient is None or source is None or weight is None or not _fit(source, weight):
        return None
    if len(gradient.shape) != len(source.shape):
        return None
    groups = source.shape[1] // weight.shape[1]
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
    """The other product of a convolution's backward pass: *work* with its axes exchanged."""
    return replace(work, m=work.k, k=work.m)


def _attention(call: OperatorCall) -> Attention | None:
    is_backward = "backward" in call.name or call.name.endswith("bwd")
    first = 1 if is_backward else 0
    query, key = call.tensor(first), call.tensor(first + 1)
    if query is None or key is None or not query.count or not key.count:
        return None
    if len(query.shape) != len(key.shape) or len(query.shape) not in (3, 4):
        return None
    if len(query.shape) == 3:
        return _packed_attention(call, query, key, is_backward=is_backward)
    heads_first = "scaled_dot_product" in call.name
    head, length = (1, 2) if heads_first else (2, 1)
    return Attention(
        batch=query.shape[0],
        query_length=query.shape[length],
        key_length=key.shape[length],
        heads=query.shape[head],
        kv_heads=key.shape[head],
        head_dim=query.shape[3],
        dtype=query.dtype,
        is_causal=_is_causal(call),
        direction=Pass.BACKWARD if is_backward else Pass.FORWARD,
    )


def _packed_attention(
    call: OperatorCall, query: Tensor, key: Tensor, *, is_backward: bool
) -> Attention:
    """Sequences laid end to end; a list of their starts says how many."""
    starts = [
        tensor.shape[0]
        for tensor in call.tensors
        if tensor.dtype is DType.INT32 and len(tensor.shape) == 1 and tensor.shape[0] > 1
    ]
    count = max(min(starts, default=2) - 1, 1)
    return Attention(
        batch=count,
        query_length=max(query.shape[0] // count, 1),
        key_length=max(key.shape[0] // count, 1),
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=query.shape[2],
        dtype=query.dtype,
        is_causal=_is_causal(call),
        direction=Pass.BACKWARD if is_backward else Pass.FORWARD,
    )


def _is_causal(call: OperatorCall) -> bool:
    """Training attends backwards as a rule; only a stated False on every flag denies it."""
    flags = [value for value in call.values if str(value) in ("True", "False")]
    return not flags or any(str(value) == "True" for value in flags)


def is_lookup(name: str) -> bool:
    """Whether *name* is the fused lookup of embedding tables."""
    return "embedding" in name and ("lookup" in name or "codegen_forward" in name)


def lookup_of_call(call: OperatorCall, total_width: int | None = None) -> Lookup | None:
    """The tables of a fused lookup; *total_width* of all of them where the call does not say."""
    is_dense = "dense_embedding" in call.name
    places = (0, 1, 3, 7, 8) if is_dense else (1, 5, 7, 11, 12)
    weights, starts = call.tensor(places[0]), call.tensor(places[1])
    indices, offsets = call.tensor(places[3]), call.tensor(places[4])
    if weights is None or starts is None or indices is None or offsets is None:
        return None
    width = call.value(places[2])
    width = width if isinstance(width, int) else _first_whole(width) or total_width
    tables = starts.count
    if not width or not 0 < tables <= width or offsets.count < 2 or not weights.count:
        return None
    batch = max((offsets.count - 1) // tables, 1)
    # Numbers beyond all tables are damage, and say nothing.
    if width // tables > MOST_WIDTH or weights.count > MOST_ROWS or indices.count > MOST_LOOKUPS:
        return None
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


def _first_whole(value: Any) -> int | None:
    match = re.fullmatch(r"\s*(\d{1,12})\s*", str(value))
    return int(match[1]) if match else None


def _lookup(call: OperatorCall) -> Work | None:
    lookup = lookup_of_call(call)
    return None if lookup is None else EmbeddingOp(lookup)


def _rows(call: OperatorCall) -> MemoryBound | None:
    """Rows of one table, as the embedding of a vocabulary is."""
    table, indices = call.tensor(0, rank=2), call.tensor(1)
    if table is None or indices is None:
        return None
    moved_bytes = indices.count * table.shape[1] * table.dtype.size_bytes
    return MemoryBound("embedding", moved_bytes + indices.size_bytes, moved_bytes, table.dtype)


# Operators whose word the measured curves know by another name.
_CURVES = (
    ("layer_norm", ("layer_norm", "layernorm")),
    ("rms_norm", ("rms_norm", "rmsnorm")),
    ("batch_norm", ("batch_norm",)),
    ("log_softmax", ("log_softmax",)),
    ("softmax", ("softmax",)),
    ("dropout", ("dropout",)),
    ("gelu", ("gelu",)),
    ("silu", ("silu",)),
    ("adam", ("adam",)),
)
_ROW_WISE = ("layer_norm", "rms_norm", "log_softmax", "softmax")


def _memory_bound(call: OperatorCall, word: str) -> MemoryBound | None:
    """Everything else: what goes in is read once, what comes out is written once.

    Where nobody said what came out it is as large as the largest thing that went in.
    """
    inside = [tensor for tensor in call.tensors if not tensor.is_on_host]
    if not inside and not call.results:
        return None
    read_bytes = sum(tensor.size_bytes for tensor in inside)
    if call.results is not None:
        write_bytes = sum(tensor.size_bytes for tensor in call.results if not tensor.is_on_host)
    else:
        write_bytes = _written_bytes(call, inside, word)
    widest = max([*inside, *(call.results or ())], key=lambda tensor: tensor.size_bytes)
    if word.rstrip("_") in ("fill", "zero"):
        read_bytes = 0
    elif word == "copy_" and len(inside) > 1:
        read_bytes -= inside[0].size_bytes
    elif word.startswith("triton_"):
        # Arguments of a generated kernel are what it reads and what it writes.
        read_bytes -= write_bytes
    curve = next((known for known, words in _CURVES if any(w in word for w in words)), None)
    name = word.rstrip("_") if curve is None else curve
    if curve is not None and "backward" in word:
        name = f"{curve}_backward"
    row_length = widest.shape[-1] if curve in _ROW_WISE and widest.shape else 0
    return MemoryBound(name, read_bytes, write_bytes, widest.dtype, row_length=row_length)


def _written_bytes(call: OperatorCall, inside: Sequence[Tensor], word: str) -> int:
    if word.startswith("_foreach") or word.endswith("_"):
        first = call.arguments[0] if call.arguments else ()
        return sum(tensor.size_bytes for tensor in first)
    if word in ("sum", "mean", "max", "min", "norm", "argmax"):
        return 0
    return max(tensor.size_bytes for tensor in inside)


_READERS: tuple[tuple[re.Pattern[str], Callable[[OperatorCall], Work | None]], ...] = (
    (re.compile(r"::(add|badd|_scaled_|b|s|addb)?m[mv]_?$|_addmm_activation$"), _product),
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
    (re.compile(r"^aten::embedding$"), _rows),
)
