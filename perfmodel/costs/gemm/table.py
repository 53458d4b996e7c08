"""Tables of measured matrix products: bf16 and narrower products, and fp32 linear and bmm.

bf16: collector, device, m, n, k, latency_ms; dtype, batch and residency where
they differ. Rows of a quantised dtype are of a linear layer: the activation is
cast first, then multiplied. fp32: op, device, latency_ms, B, M, N, K, where N is what is summed
over and K how wide the product is; a linear layer is one product of B x M rows,
a bmm is B products.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.costs.measured_kernels import (
    DEVICE_OF_MARKETING_NAME,
    KernelTable,
    MeasuredKernel,
    UnsupportedRow,
    measured_ns,
    read_columns,
    row_names,
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
        return _read(frame, _bf16_rows(frame))
    if {"op", "B", "M", "N", "K"} <= set(frame.columns):
        return _read(frame, _fp32_rows(frame))
    raise MeasurementError(
        f"{path}: a table of products has columns m, n, k or op, B, M, N, K; "
        f"got {', '.join(frame.columns)}."
    )


def _bf16_rows(frame: pd.DataFrame) -> list[tuple[str, Gemm | str]]:
    collectors = frame["collector"] if "collector" in frame.columns else ["gemm"] * len(frame)
    dtypes = frame["dtype"] if "dtype" in frame.columns else ["bf16"] * len(frame)
    batches = frame["batch"] if "batch" in frame.columns else [1] * len(frame)
    rows: list[tuple[str, Gemm | str]] = []
    for collector, dtype, batch, m, n, k in zip(
        collectors, dtypes, batches, frame["m"], frame["n"], frame["k"], strict=True
    ):
        rows.append((str(collector), _product(batch, m, n, k, dtype)))
    return rows


def _fp32_rows(frame: pd.DataFrame) -> list[tuple[str, Gemm | str]]:
    rows: list[tuple[str, Gemm | str]] = []
    for word, batch, m, k, n in zip(
        frame["op"], frame["B"], frame["M"], frame["N"], frame["K"], strict=True
    ):
        if word == "linear":
            rows.append(("linear", _linear(batch, m, n, k)))
        elif word == "bmm":
            rows.append(("bmm", _product(batch, m, n, k, "fp32")))
        else:
            rows.append((str(word), f"operator {word!r} is not a matrix product"))
    return rows


def _linear(batch: Any, m: Any, n: Any, k: Any) -> Gemm | str:
    try:
        return _product(1, whole("B", batch) * whole("M", m), n, k, "fp32")
    except InputError as fault:
        return f"shape or dtype not readable ({fault})"


def _product(batch: Any, m: Any, n: Any, k: Any, dtype: str) -> Gemm | str:
    try:
        kind: DType = parse_dtype(str(dtype))
        return Gemm(
            m=whole("m", m),
            n=whole("n", n),
            k=whole("k", k),
            dtype=kind,
            batch=whole("batch", batch),
        )
    except InputError as fault:
        return f"shape or dtype not readable ({fault})"


def _residency(frame: pd.DataFrame) -> list[Residency | None]:
    """Where operands were, by row; None where the table does not say."""
    if "residency" not in frame.columns:
        return [None] * len(frame)
    words = {residency.value for residency in Residency}
    strange = sorted({str(word) for word in frame["residency"]} - words)
    if strange:
        raise MeasurementError(
            f"column residency: must be one of {', '.join(sorted(words))}, got {strange[0]!r}."
        )
    return [Residency(word) for word in frame["residency"]]


def _read(frame: pd.DataFrame, rows: list[tuple[str, Gemm | str]]) -> KernelTable:
    kernels: list[MeasuredKernel] = []
    unsupported: list[UnsupportedRow] = []
    for name, device, latency_ms, residency, (source, op) in zip(
        row_names(frame),
        frame["device"],
        frame["latency_ms"],
        _residency(frame),
        rows,
        strict=True,
    ):
        if isinstance(op, str):
            unsupported.append(UnsupportedRow(name, op))
            continue
        try:
            kernels.append(
                MeasuredKernel(
                    row=name,
                    group=(source, str(device), _kind(op)),
                    columns={"batch": op.batch, "m": op.m, "n": op.n, "k": op.k},
                    op=op,
                    device=DEVICE_OF_MARKETING_NAME.get(str(device), str(device)),
                    measured_ns=measured_ns(latency_ms),
                    residency=residency,
                )
            )
        except InputError as fault:
            unsupported.append(UnsupportedRow(name, str(fault)))
    return KernelTable(tuple(kernels), tuple(unsupported))


def _kind(op: Gemm) -> str:
    """What reports call *op*; quantised layers are scored apart by format."""
    return f"{op.dtype.value} layer" if op.dtype.is_quantised else "gemm"
