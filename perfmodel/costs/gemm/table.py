"""Tables of measured matrix products: bf16 and narrower products, and fp32 linear and bmm.

bf16: collector, device, m, n, k, latency_ms; dtype, batch and residency where
they differ. Rows of a quantised dtype are of a linear layer: the activation is
cast first, then multiplied. fp32: op, device, latency_ms, B, M, N, K, where N is what is summed
over and K how wide the product is; a linear layer is one product of B x M rows,
a bmm is B products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.dtypes import parse_dtype
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
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.stack import Residency

if TYPE_CHECKING:
    import pandas as pd


def load_gemm_table(path: Path) -> KernelTable:
    """The matrix products measured in the file at *path*."""
    frame = read_columns(path, ("device", "latency_ms"))
    if {"m", "n", "k"} <= set(frame.columns):
        find: FindProduct = _narrow_product
    elif {"op", "B", "M", "N", "K"} <= set(frame.columns):
        find = _fp32_product
    else:
        raise MeasurementError(
            f"{path}: a table of products has columns m, n, k or op, B, M, N, K; "
            f"got {', '.join(frame.columns)}."
        )
    _check_residency(frame)

    def read(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
        (source, op), device = find(row), str(row["device"])
        yield MeasuredKernel(
            row=name,
            group=(source, device, _kind(op)),
            columns={"batch": op.batch, "m": op.m, "n": op.n, "k": op.k},
            op=op,
            device=device_called(device),
            measured_ns=measured_ns(row["latency_ms"]),
            residency=Residency(row["residency"]) if "residency" in row else None,
        )

    return read_rows(frame, read)


FindProduct = Callable[[Mapping[Any, Any]], tuple[str, Gemm]]
"""From a row to its source and its product."""


def _narrow_product(row: Mapping[Any, Any]) -> tuple[str, Gemm]:
    sizes = {"batch": row.get("batch", 1), **{key: row[key] for key in ("m", "n", "k")}}
    return str(row.get("collector", "gemm")), _product(sizes, row.get("dtype", "bf16"))


def _fp32_product(row: Mapping[Any, Any]) -> tuple[str, Gemm]:
    if row["op"] not in ("linear", "bmm"):
        raise InputError(f"operator {row['op']!r} is not a matrix product")
    sizes = {"batch": row["B"], "m": row["M"], "n": row["K"], "k": row["N"]}
    op = _product(sizes, "fp32")
    return row["op"], op if row["op"] == "bmm" else replace(op, m=op.batch * op.m, batch=1)


def _product(sizes: Mapping[str, Any], dtype: Any) -> Gemm:
    try:
        kind = parse_dtype(str(dtype))
        return Gemm(dtype=kind, **{key: whole(key, value) for key, value in sizes.items()})
    except InputError as fault:
        raise InputError(f"shape or dtype not readable ({fault})") from None


def _check_residency(frame: pd.DataFrame) -> None:
    """Raise unless the table says where operands were in words that we know, or not at all."""
    if "residency" not in frame.columns:
        return
    words = {residency.value for residency in Residency}
    strange = sorted({str(word) for word in frame["residency"]} - words)
    if strange:
        raise MeasurementError(
            f"column residency: must be one of {', '.join(sorted(words))}, got {strange[0]!r}."
        )


def _kind(op: Gemm) -> str:
    """What reports call *op*; quantised layers are scored apart by format."""
    return f"{op.dtype.value} layer" if op.dtype.is_quantised else "gemm"
