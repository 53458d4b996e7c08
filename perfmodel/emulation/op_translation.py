"""Op translation: from a recorded call of an operator to the ops that a cost model can price.

GEMMs, attention, convolutions and lookups have ops of their own. Everything else is priced by its
memory traffic; an unknown operator is priced the same way and tagged assumed, so that none is
free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from embeddings.distribution import UNIFORM, IndexDistribution, ObservedRows
from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.emulation.operator_names import (
    GATHERING,
    GEMMS,
    KERNEL_NAMES,
    SCATTERING,
    SOFTMAXES,
    base_name,
    kernel_name,
)
from perfmodel.emulation.rank_record import SPARSE
from perfmodel.graph.ops import (
    Attention,
    Convolution,
    Copy,
    CopyRoute,
    EmbeddingOp,
    Gemm,
    MemoryBound,
    Op,
    Pass,
)

FLASH_KERNELS = {9: "cudnn", 10: "cudnn"}
"""The kernel that torch 2.13 prefers for attention in half precision, by major capability."""
OTHER_FLASH_KERNEL = "flash2"
EFFICIENT_KERNEL = "flash1"
"""The memory-efficient kernel is priced as this one: there are no measurements of it."""
_INDEX_DTYPES = (DType.INT64, DType.INT32)
Ops = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor of a recorded call."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    size_bytes: int

    @property
    def count(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call: operator, tensors and the other arguments."""

    operator: str
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    written: frozenset[str]
    arguments: Mapping[str, Any]
    allows_tf32: bool
    observed: Mapping[str, Any] | None

    def tensor(self, name: str) -> RecordedTensor:
        """The input called *name*."""
        return next(tensor for tensor in self.inputs if tensor.name == name)


def parse_call(kind: Mapping[str, Any]) -> RecordedCall:
    """Read what the device recorded."""
    return RecordedCall(
        operator=base_name(kind["operator"]),
        inputs=_tensors(kind.get("inputs", ())),
        outputs=_tensors(kind.get("outputs", ())),
        written=frozenset(kind.get("written", ())),
        arguments=kind.get("arguments", {}),
        allows_tf32=bool(kind.get("allows_tf32", False)),
        observed=kind.get("observed"),
    )


def ops_of_call(kind: Mapping[str, Any], *, major_capability: int) -> Ops:
    """The kernels that a recorded call launches, in order."""
    call = parse_call(kind)
    if call.operator in _ATTENTION:
        return (_attention(call, major_capability),)
    translate = _TRANSLATORS.get(call.operator)
    return (_traffic(call),) if translate is None else translate(call)


def _tensors(rows: Sequence[Sequence[Any]]) -> tuple[RecordedTensor, ...]:
    return tuple(
        RecordedTensor(name, tuple(shape), DType(dtype), size) for name, shape, dtype, size in rows
    )


def _gemm_dtype(call: RecordedCall, tensor: RecordedTensor) -> DType:
    is_single = tensor.dtype is DType.FP32
    return DType.TF32 if is_single and call.allows_tf32 else tensor.dtype


def _gemm(call: RecordedCall) -> Ops:
    """Two matrices, batches of them, or a matrix and a vector; the kernel includes the bias."""
    operands = [tensor for tensor in call.inputs if tensor.name != "out"]
    has_sum = call.operator.startswith(("add", "badd", "_addmm"))
    first, second = operands[1:3] if has_sum else operands[:2]
    left, right = first.shape, second.shape
    dtype = _gemm_dtype(call, first)
    columns = right[-1] if len(right) > 1 else 1
    rows = left[-2] if len(left) > 1 else 1
    batch = left[0] if len(left) == 3 else 1
    if min(rows, columns, batch, left[-1]) == 0:
        return (_traffic(call),)
    return (Gemm(m=rows, n=columns, k=left[-1], dtype=dtype, batch=batch),)


def _attention(call: RecordedCall, major_capability: int) -> Op:
    query, key = call.tensor("query"), call.tensor("key")
    is_by_head = call.operator.startswith("_scaled_dot_product")
    is_flash = "flash" in call.operator or "cudnn" in call.operator
    kernel = FLASH_KERNELS.get(major_capability, OTHER_FLASH_KERNEL)
    shape, keys = query.shape, key.shape
    if len(shape) == 3:
        # Concatenated sequences, without padding.
        shape, keys = (1, *shape), (1, *keys)
    head, length = (1, 2) if is_by_head else (2, 1)
    masks = ("is_causal", "causal", "custom_mask_type")
    return Attention(
        batch=shape[0],
        query_length=shape[length],
        key_length=keys[length],
        heads=shape[head],
        kv_heads=keys[head],
        head_dim=shape[3],
        dtype=_gemm_dtype(call, query),
        is_causal=any(call.arguments.get(name) for name in masks),
        direction=Pass.BACKWARD if call.operator.endswith("backward") else Pass.FORWARD,
        kernel=kernel if is_flash else EFFICIENT_KERNEL,
    )


def _implicit_gemm(call: RecordedCall, output: tuple[int, ...]) -> Gemm:
    """One group of a convolution as a GEMM: positions x columns, over a depth."""
    image, weight = call.tensor("input"), call.tensor("weight")
    groups, window = int(call.arguments["groups"]), prod(weight.shape[2:])
    dtype = _gemm_dtype(call, image)
    if call.arguments["transposed"]:
        # The weight is transposed, and every input position is spread out.
        positions = image.shape[0] * prod(image.shape[2:])
        return Gemm(positions, weight.shape[1] * window, weight.shape[0] // groups, dtype)
    positions = output[0] * prod(output[2:])
    return Gemm(positions, weight.shape[0] // groups, weight.shape[1] * window, dtype)


def _convolution(call: RecordedCall) -> Ops:
    gemm, output = _implicit_gemm(call, call.outputs[0].shape), call.outputs[0]
    read_bytes = call.tensor("input").size_bytes + call.tensor("weight").size_bytes
    return (
        Convolution(
            m=gemm.m, n=gemm.n, k=gemm.k, dtype=gemm.dtype, groups=int(call.arguments["groups"]),
            read_bytes=read_bytes, write_bytes=output.size_bytes, direction=Pass.FORWARD,
        ),
    )  # fmt: skip


def _convolution_backward(call: RecordedCall) -> Ops:
    """The gradients that the script needs: of the input, of the weight, of the bias."""
    image, weight, gradient = call.tensor("input"), call.tensor("weight"), call.inputs[0]
    gemm = _implicit_gemm(call, gradient.shape)
    for_input, for_weight, for_bias = call.arguments["output_mask"]
    shared: dict[str, Any] = {
        "dtype": gemm.dtype, "groups": int(call.arguments["groups"]), "n": gemm.k,
        "direction": Pass.BACKWARD,
    }  # fmt: skip
    ops: list[Op] = []
    if for_input:
        read_bytes = gradient.size_bytes + weight.size_bytes
        ops.append(
            Convolution(m=gemm.m, k=gemm.n, read_bytes=read_bytes, write_bytes=image.size_bytes,
                        **shared)
        )  # fmt: skip
    if for_weight:
        read_bytes = gradient.size_bytes + image.size_bytes
        ops.append(
            Convolution(m=gemm.n, k=gemm.m, read_bytes=read_bytes, write_bytes=weight.size_bytes,
                        **shared)
        )  # fmt: skip
    if for_bias:
        ops.append(MemoryBound("reduction", gradient.size_bytes, 0, gradient.dtype))
    return tuple(ops)


def _lookup(call: RecordedCall) -> Ops:
    weight, indices = call.tensor("weight"), call.tensor("indices")
    bags = call.outputs[0].shape[0] if call.operator != "embedding" else indices.count
    table = _table(call, rows=weight.shape[0], width=weight.shape[-1], dtype=weight.dtype,
                   indices=indices.count, bags=bags)  # fmt: skip
    if table is None:
        return (_traffic(call),)
    return (EmbeddingOp(Lookup((table,), bags)),)


def _lookup_backward(call: RecordedCall) -> Ops:
    """A gradient as large as the table is zeroed, then rows are summed up and written."""
    gradient, indices = call.inputs[0], call.tensor("indices")
    rows, width = int(call.arguments["num_weights"]), gradient.shape[-1]
    bags = indices.count if call.operator == "embedding_dense_backward" else gradient.shape[0]
    table = _table(call, rows=rows, width=width, dtype=gradient.dtype,
                   indices=indices.count, bags=bags)  # fmt: skip
    zero = MemoryBound("zero", 0, call.outputs[0].size_bytes, gradient.dtype)
    if table is None:
        return (zero,)
    return (zero, EmbeddingOp(Lookup((table,), bags), Pass.BACKWARD))


def _table(
    call: RecordedCall, *, rows: int, width: int, dtype: DType, indices: int, bags: int
) -> EmbeddingTable | None:
    if min(rows, width, indices, bags) == 0:
        return None
    distribution: IndexDistribution = UNIFORM
    if call.observed is not None:
        seen = call.observed
        distribution = ObservedRows(tuple(seen["times"]), tuple(seen["rows_seen"]))
    return EmbeddingTable(
        name=f"{rows} x {width}",
        rows=rows,
        width=width,
        pooling_factor=indices / bags,
        dtype=dtype,
        distribution=distribution,
        is_pooled="bag" in call.operator,
    )


def _copy(call: RecordedCall) -> Ops:
    tensor = (call.outputs or call.inputs)[0]
    is_pinned = bool(call.arguments.get("pinned", False))
    return (Copy(CopyRoute(call.operator), tensor.size_bytes, is_pinned),)


def _device_copy(call: RecordedCall) -> Ops:
    sources, targets = call.inputs, call.outputs
    if not targets:
        # Lists of tensors, copied by one kernel.
        sources = tuple(tensor for tensor in call.inputs if tensor.name == "src")
        targets = tuple(tensor for tensor in call.inputs if tensor.name == "self")
    name = "copy" if sources[0].dtype is targets[0].dtype else "cast"
    read_bytes = sum(tensor.size_bytes for tensor in sources)
    write_bytes = sum(tensor.size_bytes for tensor in targets)
    return (MemoryBound(name, read_bytes, write_bytes, targets[0].dtype),)


def _norm_backward(call: RecordedCall) -> Ops:
    """One kernel for the gradient of the input, one that sums up those of the parameters."""
    gradient, source = call.inputs[0], call.inputs[1]
    name, length = kernel_name(call.operator), _row_length(call)
    moved = gradient.size_bytes + source.size_bytes
    ops: list[Op] = [MemoryBound(name, moved, source.size_bytes, source.dtype, row_length=length)]
    if any(mask for mask in call.arguments.get("output_mask", (False,))[1:]):
        ops.append(MemoryBound("reduction", moved, 0, source.dtype, row_length=length))
    return tuple(ops)


def _recurrent(call: RecordedCall) -> Ops:
    """Layers of cuDNN: a GEMM per layer and step, for input and recurrent weights."""
    weights = [tensor for tensor in call.inputs if tensor.name in ("weight", "") and
               len(tensor.shape) == 2]  # fmt: skip
    data = call.inputs[0]
    steps = data.count // data.shape[-1]
    dtype = _gemm_dtype(call, data)
    passes = 2 if call.operator.endswith("backward") else 1
    gemms: list[Op] = [
        Gemm(m=steps, n=weight.shape[0], k=weight.shape[1], dtype=dtype)
        for weight in weights
        for _ in range(passes)
    ]
    return tuple(gemms) or (_traffic(call),)


def _traffic(call: RecordedCall) -> Op:
    """A kernel that reads its inputs and writes its outputs once."""
    written = [tensor for tensor in call.inputs if tensor.name in call.written]
    if call.operator.startswith("_fused_"):
        written = [tensor for tensor in written if tensor.name != "grads"]
    read = [tensor for tensor in call.inputs if tensor.name != "out"]
    read_bytes = sum(tensor.size_bytes for tensor in read)
    write_bytes = sum(tensor.size_bytes for tensor in (*call.outputs, *written))
    if call.operator in ("zero", "fill", "normal", "uniform", "random", "bernoulli"):
        read_bytes = 0
    elif call.operator in GATHERING:
        read_bytes = write_bytes + sum(tensor.size_bytes for tensor in call.inputs[1:])
    elif call.operator.startswith(SPARSE) and call.operator.endswith("mm"):
        read_bytes = _sparse_gemm_bytes(call)
    elif call.operator in SCATTERING:
        given = sum(tensor.size_bytes for tensor in call.inputs[1:])
        read_bytes, write_bytes = 2 * given, given + sum(out.size_bytes for out in call.outputs)
    elif call.operator.endswith("nll_loss_backward") or call.operator == "nll_loss2d_backward":
        read_bytes = 0
    tensors = (*call.outputs, *written, *call.inputs)
    dtype = tensors[0].dtype if tensors else DType.FP32
    name = kernel_name(call.operator)
    return MemoryBound(name, read_bytes, write_bytes, dtype, row_length=_row_length(call))


def _sparse_gemm_bytes(call: RecordedCall) -> int:
    """Entries, their indices, and a row of the dense matrix for every entry."""
    first = next(place for place, one in enumerate(call.inputs) if one.dtype in _INDEX_DTYPES)
    entries = call.inputs[first - 1]
    indices = [one for one in call.inputs if one.dtype in _INDEX_DTYPES]
    row_bytes = call.outputs[0].size_bytes // max(call.outputs[0].shape[0], 1)
    return entries.size_bytes + sum(one.size_bytes for one in indices) + entries.count * row_bytes


def _row_length(call: RecordedCall) -> int:
    """The length of a reduction, 0 where there is none."""
    if "normalized_shape" in call.arguments:
        return prod(call.arguments["normalized_shape"])
    if call.operator in SOFTMAXES and call.inputs:
        shape = call.inputs[0].shape
        return shape[int(call.arguments.get("dim", -1))] if shape else 0
    if KERNEL_NAMES.get(call.operator) == "reduction" and call.inputs and call.outputs:
        return call.inputs[0].count // max(call.outputs[0].count, 1)
    return 0


_ATTENTION = frozenset(
    f"{name}{way}"
    for name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                 "_scaled_dot_product_cudnn_attention", "_flash_attention",
                 "_efficient_attention")
    for way in ("", "_forward", "_backward")
)  # fmt: skip

_TRANSLATORS: dict[str, Callable[[RecordedCall], Ops]] = {
    **dict.fromkeys(GEMMS, _gemm),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _lookup,
    "_embedding_bag": _lookup,
    "_embedding_bag_forward_only": _lookup,
    "embedding_dense_backward": _lookup_backward,
    "_embedding_bag_dense_backward": _lookup_backward,
    "host_to_device": _copy,
    "device_to_host": _copy,
    "copy": _device_copy,
    "native_layer_norm_backward": _norm_backward,
    "_fused_rms_norm_backward": _norm_backward,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent,
}
"""The translator of each operator; the others are priced by their traffic."""
