"""Tables of measured memory-bound kernels: fp32 operators, norms, training kernels.

An operator named by one implementation is `kernel/provider/pass`. Its size is
the tensor it works on; how often it is passed over is for the curve to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.costs.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    device_called,
    measured_ns,
    read_columns,
    read_rows,
    whole,
)
from perfmodel.graph.ops import MemoryBound

_FP32_WORDS = {"ln": "layer_norm"}
_BINARY = frozenset({"add", "mul", "div", "sub", "pow"})
_TOKEN_KEYS = ("B", "T", "BT", "M", "S", "seq_len", "bsz", "batch_size")
_WIDTH_KEYS = ("V", "intermediate_size", "intermediate_dim", "ffn_local", "H", "hidden_size", "N",
               "D")  # fmt: skip


def load_memory_table(path: Path) -> KernelTable:
    """The memory-bound kernels measured in the file at *path*."""
    frame = read_columns(path, ())
    columns = set(frame.columns)
    if {"op", "device", "latency_ms", "B", "H"} <= columns:
        return read_rows(frame, _fp32)
    if {"norm_type", "backend", "N", "C", "fwd_time_ms", "bwd_time_ms"} <= columns:
        return read_rows(frame, _norm)
    if {"kernel_name", "kernel_provider", "x_name", "y_value_50"} <= columns:
        return read_rows(frame, _training)
    raise MeasurementError(
        f"{path}: a table of memory-bound kernels has columns op, B, H (fp32), norm_type, N, C "
        f"(norms) or kernel_name, x_name, y_value_50; got {', '.join(frame.columns)}."
    )


def _kernel(
    name: str, gpu: str, op: MemoryBound, measured_ms: Any, columns: dict[str, object]
) -> MeasuredKernel:
    return MeasuredKernel(
        row=name,
        group=(op.dtype.value, gpu, op.operator),
        columns=columns,
        op=op,
        device=device_called(gpu),
        measured_ns=measured_ns(measured_ms),
    )


def _fp32(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
    word = str(row["op"])
    rows, length = whole("B", row["B"]), whole("H", row["H"])
    tensor_bytes = rows * length * DType.FP32.size_bytes
    is_scalar = word.endswith("u") and word.removesuffix("u") in _BINARY
    operator = _FP32_WORDS.get(word, word)
    operator = f"{word.removesuffix('u')}_scalar" if is_scalar else operator
    op = MemoryBound(
        operator=operator,
        read_bytes=tensor_bytes * (2 if word in _BINARY else 1),
        write_bytes=tensor_bytes,
        dtype=DType.FP32,
        row_length=length if operator in ("layer_norm", "softmax") else 0,
    )
    columns: dict[str, object] = {"B": rows, "H": length}
    yield _kernel(name, str(row["device"]), op, row["latency_ms"], columns)


def _norm(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
    dtype = parse_dtype(str(row["data_type"]))
    rows, length = whole("N", row["N"]), whole("C", row["C"])
    tensor_bytes = rows * length * dtype.size_bytes
    for direction, reads in (("forward", 1), ("backward", 2)):
        op = MemoryBound(
            operator=f"{row['norm_type']}/{row['backend']}/{direction}",
            read_bytes=reads * tensor_bytes,
            write_bytes=tensor_bytes,
            dtype=dtype,
            row_length=length,
        )
        measured_ms = row["fwd_time_ms" if direction == "forward" else "bwd_time_ms"]
        columns: dict[str, object] = {"N": rows, "C": length}
        yield _kernel(f"{name} {direction}", str(row["gpu_name"]), op, measured_ms, columns)


def _training(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
    sizes = {**_configuration(row), str(row["x_name"]): row["x_value"]}
    dtype = parse_dtype(str(sizes.get("dtype", "float32")))
    tokens = 1
    for key in _TOKEN_KEYS:
        tokens *= whole(key, sizes.get(key, 1))
    width = next((whole(key, sizes[key]) for key in _WIDTH_KEYS if key in sizes), 0)
    if not width:
        raise InputError(f"its configuration must state one of {', '.join(_WIDTH_KEYS)}")
    elements = tokens * width
    word = str(row["kernel_name"])
    if word == "embedding":
        # Rows gathered, and the table that they come from and whose gradient is dense.
        elements = tokens * whole("D", sizes["D"]) + whole("V", sizes["V"]) * whole("D", sizes["D"])
    op = MemoryBound(
        operator=f"{word}{_setting(word, sizes)}/{row['kernel_provider']}/"
        f"{row['kernel_operation_mode']}",
        read_bytes=elements * dtype.size_bytes,
        write_bytes=elements * dtype.size_bytes,
        dtype=dtype,
        row_length=0,
    )
    columns: dict[str, object] = {"x_value": row["x_value"], "x_name": row["x_name"]}
    yield _kernel(name, str(row["gpu_name"]), op, row["y_value_50"], columns)


def _configuration(row: Mapping[Any, Any]) -> dict[str, Any]:
    try:
        content = json.loads(row["extra_benchmark_config_str"])
    except (TypeError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError("extra_benchmark_config_str must be a mapping in JSON")
    return content


def _setting(word: str, sizes: dict[str, Any]) -> str:
    """What of the settings makes another operator of it rather than another size."""
    if word == "fused_neighborhood_attention":
        return (
            f".k{sizes['kernel_size']}.d{sizes['dilation']}.h{sizes['num_heads']}"
            f".w{sizes['hidden_size']}.b{sizes['batch_size']}"
        )
    if word == "fused_moe":
        return ".experts" if sizes.get("sweep_dim") == "E" else ".tokens"
    if word == "embedding":
        return f".d{sizes['D']}"
    return ""
