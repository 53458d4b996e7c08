"""Tables of measured attention: forward by kernel, and forward and backward of one kernel.

A collector's `isl` is the length of queries and keys alike. Tables without kv
heads have as many as query heads and no causal mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.base.reading import quote
from perfmodel.costs.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    device_called,
    measured_ns,
    read_columns,
    read_rows,
    whole,
)
from perfmodel.graph.ops import Attention, Pass

SHORT_LENGTH = 512
"""Shorter sequences are scored apart: they are mostly launch, and training seldom has them."""

_MASKS = {"top_left": True, "bottom_right": True, "no_mask": False}


def load_attention_table(path: Path) -> KernelTable:
    """The attention calls measured in the file at *path*."""
    frame = read_columns(path, ())
    if "fwd_time_ms" in frame.columns:
        needed = ("q_seqlen", "kv_seqlen", "num_q_heads", "num_kv_heads", "head_dim_qk")
        read_columns(path, ("bwd_time_ms", "data_type", "attn_mask", "gpu_name", *needed))
        return read_rows(frame, _both_passes)
    read_columns(path, ("device", "kernel_source", "batch_size", "isl", "num_heads", "head_dim",
                        "latency_ms"))  # fmt: skip
    return read_rows(frame, _forward)


def _forward(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
    heads = whole("num_heads", row["num_heads"])
    is_causal = "num_key_value_heads" in row
    op = Attention(
        batch=whole("batch_size", row["batch_size"]),
        query_length=whole("isl", row["isl"]),
        key_length=whole("isl", row["isl"]),
        heads=heads,
        kv_heads=whole("num_key_value_heads", row["num_key_value_heads"]) if is_causal else heads,
        head_dim=whole("head_dim", row["head_dim"]),
        dtype=DType.BF16,
        is_causal=is_causal,
        kernel=str(row["kernel_source"]),
    )
    _check(op)
    yield MeasuredKernel(
        row=name,
        group=(str(row.get("collector", "")), str(row["device"]), _kind(op)),
        columns=_columns(op),
        op=op,
        device=device_called(str(row["device"])),
        measured_ns=measured_ns(row["latency_ms"]),
    )


def _both_passes(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
    window = row.get("sliding_window_size")
    if window == window and window:  # noqa: PLR0124  an empty cell is NaN, unequal to itself
        raise InputError(f"sliding window of {quote(window)} keys: windows are not modelled")
    if row["attn_mask"] not in _MASKS:
        raise InputError(f"mask {row['attn_mask']!r}: must be one of {', '.join(_MASKS)}")
    for direction, column in ((Pass.FORWARD, "fwd_time_ms"), (Pass.BACKWARD, "bwd_time_ms")):
        op = Attention(
            batch=whole("batch_size", row["batch_size"]),
            query_length=whole("q_seqlen", row["q_seqlen"]),
            key_length=whole("kv_seqlen", row["kv_seqlen"]),
            heads=whole("num_q_heads", row["num_q_heads"]),
            kv_heads=whole("num_kv_heads", row["num_kv_heads"]),
            head_dim=whole("head_dim_qk", row["head_dim_qk"]),
            dtype=parse_dtype(str(row["data_type"])),
            is_causal=_MASKS[row["attn_mask"]],
            direction=direction,
            kernel=str(row.get("backend", "cudnn")),
        )
        _check(op)
        yield MeasuredKernel(
            row=f"{name} {direction.value}",
            group=(
                op.dtype.value,
                str(row["gpu_name"]),
                _kind(op),
            ),
            columns=_columns(op),
            op=op,
            device=device_called(str(row["gpu_name"])),
            measured_ns=measured_ns(row[column]),
        )


def _kind(op: Attention) -> str:
    """What reports call *op*: kernel, direction and mask; short sequences apart."""
    mask = "causal" if op.is_causal else "full"
    short = f" under {SHORT_LENGTH}" if op.query_length < SHORT_LENGTH else ""
    return f"{op.kernel}/{op.direction.value}/{mask}{short}"


def _columns(op: Attention) -> dict[str, object]:
    return {
        "batch_size": op.batch,
        "isl": op.query_length,
        "num_heads": op.heads,
        "num_key_value_heads": op.kv_heads,
        "head_dim": op.head_dim,
    }


def _check(op: Attention) -> None:
    if op.query_length == 1:
        raise InputError("a single query is decoding, which training does not do")
