"""Operators: the ops that a cost model prices for a call of a torch operator.

`operators.yaml` is the table: names, shapes and number formats -> op. Calls come from a recording,
which often knows no outputs, or from an emulated script, which knows all. GEMMs, attention,
convolutions and lookups have ops of their own; everything else is priced by its memory traffic,
under its own name where the table has none, so that no operator is free.

Attention over packed sequences in a recording is modelled as sequences of their mean length, and
the tables of one fused lookup as equal tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from embeddings.distribution import UNIFORM, IndexDistribution, ObservedRows
from embeddings.table import MOST_LOOKUPS, MOST_ROWS, MOST_WIDTH, EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.extensions.recordings.operators.calls import (
    CallSource,
    OperatorCall,
    emulated_call,
    gemm_dtype,
    operator_table,
)
from perfmodel.extensions.recordings.operators.convolutions import convolution, convolution_backward
from perfmodel.extensions.recordings.operators.traffic import (
    bytes_of,
    compiled_kernel,
    device_copy,
    guessed_traffic,
    host_copy,
    norm_backward,
    traffic,
)
from perfmodel.graph.ops import (
    Attention,
    EmbeddingOp,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Pass,
    Work,
    Works,
)

_MOST_TABLES = 256


def works_of_call(call: OperatorCall) -> Works:
    """The kernels that *call* launches, in order; none if its shapes do not determine them."""
    form = _form_of(call.name, call.source)
    works = _FORMS[form](call) if form else ()
    is_guessed = call.source is CallSource.RECORDED
    if works or (form and is_guessed):
        return works
    return guessed_traffic(call) if is_guessed else traffic(call)


def emulated_works(words: Mapping[str, Any]) -> Works:
    """The kernels of a call that a virtual device described in *words*."""
    return works_of_call(emulated_call(words))


@cache
def _form_of(name: str, source: CallSource) -> str:
    """How a call of *name* is read; empty for those priced by their traffic."""
    for form, columns in operator_table()["forms"].items():
        known = columns.get(source.value, ())
        if re.search(known, name) if isinstance(known, str) else name in known:
            return str(form)
    return ""


def _gemm(call: OperatorCall) -> Works:
    """Two matrices, batches of them, or a matrix and a vector; the kernel includes the bias."""
    operands = operator_table()["operands"]
    place, *ranks = operands.get(call.word, operands["default"])
    pair = call.operands(place, place + 1)
    if [len(one.shape) for one in pair] != ranks or not all(one.count for one in pair):
        return ()
    left, right = (one.shape for one in pair)
    depth, columns = right[-2:] if len(right) > 1 else (right[0], 1)
    if left[-1] != depth:
        return ()
    rows = left[-2] if len(left) > 1 else 1
    batch = left[0] if len(left) == 3 else 1
    dtype = gemm_dtype(call, pair[0])
    return (Gemm(rows, columns, depth, dtype, batch, loads_singly=call.loads_singly),)


def _user_product(call: OperatorCall) -> Works:
    """A kernel of the script's own that multiplies matrices of known sizes."""
    if "k" not in call.values:
        return ()
    rows, columns, depth, batch = (int(call.values[name]) for name in ("m", "n", "k", "batch"))
    return (Gemm(rows, columns, depth, gemm_dtype(call, call.tensors[0]), batch),)


def _grouped(call: OperatorCall) -> Works:
    """Products of as many groups as there are ends of them, in one launch; groups of equal size."""
    pair = [tensor for tensor in call.tensors if len(tensor.shape) in (2, 3)][:2]
    ends = next((tensor.count for tensor in call.tensors if tensor.name == "offs"), 0)
    left, right = (one.shape for one in pair)
    groups = ends or left[0]
    rows, columns, depth = left[-2], right[-1], left[-1]
    if len(left) == len(right) == 2:
        depth = -(-depth // groups)
    elif len(left) == 2:
        rows = -(-rows // groups)
    elif len(right) == 2:
        columns = -(-columns // groups)
    return (GroupedGemm(groups, rows, columns, depth, gemm_dtype(call, pair[0])),)


def _recurrent(call: OperatorCall) -> Works:
    """Layers of cuDNN: weights of the input meet all steps at once, those of the state one by one.

    Each step of a state ends in a pass over its gates. Backward, gradients of weights follow.
    """
    data, is_backward = call.tensors[0], call.name.endswith("backward")
    batch = next((one.shape[1] for one in call.tensors if one.name == "hx"), 1)
    rows, dtype = data.count // data.shape[-1], gemm_dtype(call, data)
    weights = [one for one in call.tensors if one.name == "weight" and len(one.shape) == 2]
    works: list[Work] = []
    for place, weight in enumerate(weights):
        gates, width = weight.shape
        if place % 2:
            step = Gemm(batch, *((width, gates) if is_backward else (gates, width)), dtype)
            moved = batch * gates * data.dtype.size_bytes
            works += [step, MemoryBound("add", moved, moved // 2, data.dtype)] * (rows // batch)
        else:
            works.append(Gemm(rows, gates, width, dtype))
        if is_backward:
            works.append(Gemm(gates, width, rows, dtype))
    return tuple(works)


def _attention(call: OperatorCall) -> Works:
    is_backward = "backward" in call.name or call.name.endswith("bwd")
    first = 1 if is_backward else 0
    pair = call.operands(first, first + 1)
    if not pair or [len(one.shape) for one in pair] not in ([3, 3], [4, 4]):
        return ()
    query, key = pair
    if not query.count or not key.count:
        return ()
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
        is_split = starts and operator_table()["ways"][call.source.value]["splits_sequences"]
        head, batch = 1, min(starts) - 1 if is_split else 1
        lengths = (max(query.shape[0] // batch, 1), max(key.shape[0] // batch, 1))
    pairs = (call.observed or {}).get("pairs")
    if pairs is not None:
        # Packed sequences, windows and masks by blocks: as many keys as a query sees on average.
        lengths = (lengths[0], max(round(pairs / (batch * lengths[0])), 1))
    return (
        Attention(
            batch=batch,
            query_length=lengths[0],
            key_length=lengths[1],
            heads=query.shape[head],
            kv_heads=key.shape[head],
            head_dim=query.shape[-1],
            dtype=gemm_dtype(call, query),
            is_causal=pairs is None and _is_causal(call),
            direction=Pass.BACKWARD if is_backward else Pass.FORWARD,
            kernel=_attention_kernel(call),
        ),
    )


def _is_causal(call: OperatorCall) -> bool:
    if call.source is CallSource.EMULATED:
        return any(call.values.get(name) for name in operator_table()["causal"])
    # Training is causal as a rule; only a stated False on every flag denies it.
    flags = {str(value) for value in call.values.values()} & {"True", "False"}
    return flags != {"False"}


def _attention_kernel(call: OperatorCall) -> str:
    if call.source is CallSource.RECORDED:
        return "auto"
    stated = (call.observed or {}).get("kernel") or call.values.get("kernel")
    kernels = operator_table()["attention_kernels"]
    return str(stated or next(kernels[part] for part in kernels if part in call.name))


def is_fused_lookup(name: str) -> bool:
    """Whether *name* is the fused lookup of embedding tables."""
    return "embedding" in name and ("lookup" in name or "codegen_forward" in name)


def lookup_of_call(call: OperatorCall, total_width: int | None = None) -> Lookup | None:
    """The tables of a fused lookup; *total_width* of all of them if the call does not say."""
    listed = operator_table()["fused_lookups"]
    *places, place_of_width = next(listed[part] for part in listed if part in call.name)
    tensors = call.operands(*places)
    if not tensors:
        return None
    weights, starts, indices, offsets = tensors
    width = call.values.get(place_of_width)
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


def _fused_lookup(call: OperatorCall) -> Works:
    lookup = lookup_of_call(call)
    return () if lookup is None else (EmbeddingOp(lookup),)


def _vocabulary_rows(call: OperatorCall) -> Works:
    """Rows of one table, as in the embedding of a vocabulary."""
    pair = call.operands(0, 1)
    if not pair or len(pair[0].shape) != 2:
        return ()
    table, indices = pair
    moved_bytes = indices.count * table.shape[1] * table.dtype.size_bytes
    read_bytes = moved_bytes + indices.size_bytes
    return (MemoryBound("embedding", read_bytes, moved_bytes, table.dtype),)


def _lookup(call: OperatorCall) -> Works:
    """A lookup with real indices, or its backward pass.

    Backward, a gradient as large as the table is zeroed, then rows are summed up and written.
    """
    first, indices = (tensor for tensor in call.tensors[:2])
    is_backward, is_pooled = call.name.endswith("backward"), "bag" in call.name
    rows = int(call.values["num_weights"]) if is_backward else first.shape[0]
    bag_rows = first.shape[0] if is_backward else (call.results or ())[0].shape[0]
    bags, width = bag_rows if is_pooled else indices.count, first.shape[-1]
    distribution: IndexDistribution = UNIFORM
    if call.observed is not None:
        distribution = ObservedRows(
            tuple(call.observed["times"]), tuple(call.observed["rows_seen"])
        )
    works: list[Work] = []
    if is_backward:
        works.append(MemoryBound("zero", 0, bytes_of((call.results or ())[:1]), first.dtype))
    if min(rows, width, indices.count, bags):
        table = EmbeddingTable(
            name=f"{rows} x {width}",
            rows=rows,
            width=width,
            pooling_factor=indices.count / bags,
            dtype=first.dtype,
            distribution=distribution,
            is_pooled=is_pooled,
        )
        direction = Pass.BACKWARD if is_backward else Pass.FORWARD
        works.append(EmbeddingOp(Lookup((table,), bags), direction))
    return tuple(works)


_FORMS: dict[str, Callable[[OperatorCall], Works]] = {
    "gemm": _gemm,
    "grouped": _grouped,
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "attention": _attention,
    "fused_lookup": _fused_lookup,
    "vocabulary_rows": _vocabulary_rows,
    "lookup": _lookup,
    "compiled": compiled_kernel,
    "host_copy": host_copy,
    "device_copy": device_copy,
    "norm_backward": norm_backward,
    "recurrent": _recurrent,
    "user_product": _user_product,
}
"""How the forms of the table are read."""
