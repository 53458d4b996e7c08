"""Tables of measured layers of experts: forward on one GPU, by tokens, shape and routing.

Columns: collector, device, kernel_source, dtype, tokens, hidden, ffn (of one
expert), top_k, experts, tp, ep (the GPU's share of each), distribution
(`balanced` or `power_law_` with its exponent), latency_ms. The GPU measured is
the most loaded one. A kernel called nongated has one product before the activation, and so
have the other kernels of the table for the same model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.costs.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    device_called,
    measured_ns,
    read_columns,
    read_rows,
    whole,
)
from perfmodel.graph.routing import hottest_loads

_COLUMNS = (
    "device", "kernel_source", "dtype", "tokens", "hidden", "ffn", "top_k", "experts", "tp", "ep",
    "distribution", "latency_ms",
)  # fmt: skip
_POWER_LAW = "power_law_"
_PLAIN = "nongated"
_MODEL = ("hidden", "ffn", "top_k", "experts")
_MOST_EXPERTS = 65_536
_MOST_EXPONENT = 10.0


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The experts of one layer on the most loaded rank, as a benchmark runs them."""

    kernel: str
    tokens: int
    rows: float
    active: float
    hidden: int
    ffn: int
    is_gated: bool
    dtype: DType


def load_expert_table(path: Path) -> KernelTable:
    """The layers of experts measured in the file at *path*."""
    frame = read_columns(path, _COLUMNS)
    rows = frame.to_dict("records")
    plain = {_model(row) for row in rows if str(row["kernel_source"]).endswith(_PLAIN)}

    def read(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
        layer, device = _layer(row, is_gated=_model(row) not in plain), str(row["device"])
        yield MeasuredKernel(
            row=name,
            group=(str(row.get("collector", "")), device, f"{layer.dtype.value} experts"),
            columns=dict(zip(_MODEL, _model(row), strict=True)),
            op=layer,
            device=device_called(device),
            measured_ns=measured_ns(row["latency_ms"]),
        )

    return read_rows(frame, read)


def _model(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in _MODEL)


def _layer(row: Mapping[Any, Any], *, is_gated: bool) -> ExpertLayer:
    """The layer of *row*."""
    word, kernel = str(row["distribution"]), str(row["kernel_source"])
    dtype = parse_dtype(str(row["dtype"]))
    exponent = None if word == "balanced" else _exponent(word)
    sizes = {key: whole(key, row[key]) for key in ("tokens", "top_k", "experts", "ep", "tp", "ffn")}
    if sizes["experts"] % sizes["ep"] or sizes["ffn"] % sizes["tp"]:
        raise InputError(f"experts must divide by ep and ffn by tp, got {sizes}")
    if not sizes["top_k"] <= sizes["experts"] <= _MOST_EXPERTS:
        raise InputError(f"experts must be from top_k to {_MOST_EXPERTS}, got {sizes['experts']}")
    loads = hottest_loads(
        tokens=sizes["tokens"], top_k=sizes["top_k"], experts=sizes["experts"],
        ranks=sizes["ep"], exponent=exponent,
    )  # fmt: skip
    return ExpertLayer(
        kernel=kernel,
        tokens=sizes["tokens"],
        rows=loads.rows,
        active=loads.active,
        hidden=whole("hidden", row["hidden"]),
        ffn=sizes["ffn"] // sizes["tp"],
        is_gated=is_gated,
        dtype=dtype,
    )


def _exponent(word: str) -> float:
    try:
        exponent = float(word.removeprefix(_POWER_LAW))
    except ValueError:
        exponent = -1.0
    if not (word.startswith(_POWER_LAW) and 0 <= exponent <= _MOST_EXPONENT):
        raise InputError(
            f"distribution must be balanced or {_POWER_LAW}EXPONENT, got {word[:40]!r}"
        )
    return exponent
