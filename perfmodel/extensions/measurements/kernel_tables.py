"""Tables of measured kernels: the formats that are read, and the model that prices each kind.

A time is `latency_ms`, or is recognised by its unit (`time_us`, `duration_ns`); a table of one GPU
may leave the column `device` out where the command names it (`--device`).

gemm: m, n, k (with dtype, batch and residency where they differ from bf16, 1 and the usual), or
fp32 operators with B, M, N, K, where N is the reduced dimension and K the output width. A linear
layer is one GEMM of B x M rows, a bmm is B of them. Rows of a quantised dtype are linear layers:
they include the cast of the activation.

attention: forward by kernel (`isl` is the length of queries and keys), or forward and backward of
one kernel. Tables without kv heads have as many as query heads and no causal mask.

experts: forward of a whole layer on the most loaded GPU, by tokens, shape and routing; `tp` and
`ep` are the GPU's share. A kernel called nongated has one GEMM before the activation, and so have
the other kernels of the table for the same model.

memory: fp32 operators, norms, or training kernels. An operator named by one implementation is
`kernel/provider/pass`. Its size is the tensor it works on; the curve covers repeated passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.reading import quote
from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.attention_kernels import variant_of as attention_variant
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.estimates import KernelModel
from perfmodel.costs.expert_physics import ExpertLayer
from perfmodel.costs.experts import ExpertLayerModel
from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.gemm import variant_of as gemm_variant
from perfmodel.costs.memory import MemoryModel
from perfmodel.extensions.measurements.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    build_measured,
    load_frame,
    parse_rate,
    parse_size,
    read_rows,
    require_columns,
)
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.graph.routing import hottest_loads
from perfmodel.stacks.capabilities import Residency

Row = Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A kind of measured kernel: the reader of its tables, its cost model, and its variants."""

    load: Callable[[Path, str | None], KernelTable]
    model: Callable[[Sequence[Entry] | None], KernelModel]
    variant: Callable[[Any], str]


def load_gemm_table(path: Path, device: str | None = None) -> KernelTable:
    """The GEMMs measured in the file at *path*."""
    frame = load_frame(path, device)
    require_columns(frame, path, ("device", "latency_ms"))
    columns = set(frame.columns)
    if not ({"m", "n", "k"} <= columns or {"op", "B", "M", "N", "K"} <= columns):
        raise MeasurementError(
            f"{path}: a table of GEMMs has columns m, n, k or op, B, M, N, K; "
            f"got {', '.join(frame.columns)}."
        )
    known = {residency.value for residency in Residency}
    strange = sorted({str(word) for word in frame.get("residency", ())} - known)
    if strange:
        raise MeasurementError(
            f"column residency: must be one of {', '.join(sorted(known))}, got {strange[0]!r}."
        )
    return read_rows(frame, _read_gemm)


def _read_gemm(name: str, row: Row) -> Iterator[MeasuredKernel]:
    if {"m", "n", "k"} <= row.keys():
        source, dtype = str(row.get("collector", "gemm")), row.get("dtype", "bf16")
        sizes = {"batch": row.get("batch", 1), **{key: row[key] for key in ("m", "n", "k")}}
    else:
        source, dtype = row["op"], "fp32"
        sizes = {"batch": row["B"], "m": row["M"], "n": row["K"], "k": row["N"]}
        if source not in ("linear", "bmm"):
            raise InputError(f"operator {source!r} is not a GEMM")
    try:
        counts = {key: parse_size(key, value) for key, value in sizes.items()}
        op = Gemm(counts["m"], counts["n"], counts["k"], parse_dtype(str(dtype)), counts["batch"])
    except InputError as fault:
        raise InputError(f"shape or dtype not readable ({fault})") from None
    if source == "linear":
        op = replace(op, m=op.batch * op.m, batch=1)
    # Quantised layers include a cast, so reports show them separately.
    kind = f"{op.dtype.value} layer" if op.dtype.is_quantised else "gemm"
    yield build_measured(
        name,
        (source, str(row["device"]), kind),
        op,
        row["latency_ms"],
        {"batch": op.batch, "m": op.m, "n": op.n, "k": op.k},
        residency=Residency(row["residency"]) if "residency" in row else None,
        rate=parse_rate(row.get("tflops")),
    )


SHORT_LENGTH = 512
"""Shorter sequences are reported separately: they are mostly launch, and rare in training."""
_MASKS = {"top_left": True, "bottom_right": True, "no_mask": False}
_FORWARD_COLUMNS = (
    "device", "kernel_source", "batch_size", "isl", "num_heads", "head_dim", "latency_ms",
)  # fmt: skip
_BOTH_COLUMNS = (
    "bwd_time_ms", "data_type", "attn_mask", "gpu_name", "q_seqlen", "kv_seqlen", "num_q_heads",
    "num_kv_heads", "head_dim_qk",
)  # fmt: skip


def load_attention_table(path: Path, device: str | None = None) -> KernelTable:
    """The attention calls measured in the file at *path*."""
    frame = load_frame(path, device)
    has_both = "fwd_time_ms" in frame.columns
    require_columns(frame, path, _BOTH_COLUMNS if has_both else _FORWARD_COLUMNS)
    return read_rows(frame, _read_both_passes if has_both else _read_forward)


def _read_forward(name: str, row: Row) -> Iterator[MeasuredKernel]:
    is_causal = "num_key_value_heads" in row
    op = Attention(
        **_attention_sizes(
            row,
            query_length="isl",
            key_length="isl",
            heads="num_heads",
            kv_heads="num_key_value_heads" if is_causal else "num_heads",
            head_dim="head_dim",
        ),
        dtype=DType.BF16,
        is_causal=is_causal,
        kernel=str(row["kernel_source"]),
    )
    source, gpu = str(row.get("collector", "")), str(row["device"])
    yield _measured_attention(name, source, gpu, op, row["latency_ms"])


def _read_both_passes(name: str, row: Row) -> Iterator[MeasuredKernel]:
    window = row.get("sliding_window_size")
    if window == window and window:  # noqa: PLR0124  an empty cell is NaN, unequal to itself
        raise InputError(f"sliding window of {quote(window)} keys: windows are not modelled")
    if row["attn_mask"] not in _MASKS:
        raise InputError(f"mask {row['attn_mask']!r}: must be one of {', '.join(_MASKS)}")
    forward = Attention(
        **_attention_sizes(
            row,
            query_length="q_seqlen",
            key_length="kv_seqlen",
            heads="num_q_heads",
            kv_heads="num_kv_heads",
            head_dim="head_dim_qk",
        ),
        dtype=parse_dtype(str(row["data_type"])),
        is_causal=_MASKS[row["attn_mask"]],
        kernel=str(row.get("backend", "cudnn")),
    )
    source, gpu = forward.dtype.value, str(row["gpu_name"])
    for direction, column in ((Pass.FORWARD, "fwd_time_ms"), (Pass.BACKWARD, "bwd_time_ms")):
        op = replace(forward, direction=direction)
        yield _measured_attention(f"{name} {direction.value}", source, gpu, op, row[column])


def _attention_sizes(row: Row, **column_of: str) -> dict[str, Any]:
    sizes = {"batch": "batch_size", **column_of}
    return {size: parse_size(column, row[column]) for size, column in sizes.items()}


def _measured_attention(
    name: str, source: str, gpu: str, op: Attention, time_ms: Any
) -> MeasuredKernel:
    if op.query_length == 1:
        raise InputError("a single query is decoding, which training does not do")
    mask = "causal" if op.is_causal else "full"
    short = f" under {SHORT_LENGTH}" if op.query_length < SHORT_LENGTH else ""
    columns: dict[str, object] = {
        "batch_size": op.batch,
        "isl": op.query_length,
        "num_heads": op.heads,
        "num_key_value_heads": op.kv_heads,
        "head_dim": op.head_dim,
    }
    kind = f"{op.kernel}/{op.direction.value}/{mask}{short}"
    return build_measured(name, (source, gpu, kind), op, time_ms, columns)


_FP32_WORDS = {"ln": "layer_norm"}
_BINARY = frozenset({"add", "mul", "div", "sub", "pow"})
_TOKEN_KEYS = ("B", "T", "BT", "M", "S", "seq_len", "bsz", "batch_size")
_WIDTH_KEYS = ("V", "intermediate_size", "intermediate_dim", "ffn_local", "H", "hidden_size", "N",
               "D")  # fmt: skip


_MOST_BYTES = 1 << 40


def load_memory_table(path: Path, device: str | None = None) -> KernelTable:
    """The memory-bound kernels measured in the file at *path*."""
    frame = load_frame(path, device)
    columns = set(frame.columns)
    if {"op", "device", "latency_ms", "B", "H"} <= columns:
        return read_rows(frame, _read_fp32_operator)
    if {"norm_type", "backend", "N", "C", "fwd_time_ms", "bwd_time_ms"} <= columns:
        return read_rows(frame, _read_norm)
    if {"kernel_name", "kernel_provider", "x_name", "y_value_50"} <= columns:
        return read_rows(frame, _read_training_kernel)
    if {"fused_kind", "device", "size_bytes", "latency_ms"} <= columns:
        return read_rows(frame, _read_fused)
    raise MeasurementError(
        f"{path}: a table of memory-bound kernels has columns op, B, H (fp32), norm_type, N, C "
        f"(norms), kernel_name, x_name, y_value_50 or fused_kind, size_bytes; got "
        f"{', '.join(frame.columns)}."
    )


def _read_fused(name: str, row: Row) -> Iterator[MeasuredKernel]:
    """A kernel that a compiler made, as recorded in training: all bytes that it touches."""
    size_bytes = parse_size("size_bytes", row["size_bytes"], most=_MOST_BYTES)
    op = MemoryBound(f"fused_{row['fused_kind']}", size_bytes, 0, DType.BF16)
    columns: dict[str, object] = {"size_bytes": size_bytes}
    yield _measured_memory(name, row["device"], op, row["latency_ms"], columns)


def _measured_memory(
    name: str, gpu: Any, op: MemoryBound, time_ms: Any, columns: dict[str, object]
) -> MeasuredKernel:
    return build_measured(name, (op.dtype.value, str(gpu), op.operator), op, time_ms, columns)


def _read_fp32_operator(name: str, row: Row) -> Iterator[MeasuredKernel]:
    word = str(row["op"])
    rows, length = parse_size("B", row["B"]), parse_size("H", row["H"])
    tensor_bytes = rows * length * DType.FP32.size_bytes
    operator = _FP32_WORDS.get(word, word)
    if word.endswith("u") and word.removesuffix("u") in _BINARY:
        operator = f"{word.removesuffix('u')}_scalar"
    op = MemoryBound(
        operator=operator,
        read_bytes=tensor_bytes * (2 if word in _BINARY else 1),
        write_bytes=tensor_bytes,
        dtype=DType.FP32,
        row_length=length if operator in ("layer_norm", "softmax") else 0,
    )
    yield _measured_memory(name, row["device"], op, row["latency_ms"], {"B": rows, "H": length})


def _read_norm(name: str, row: Row) -> Iterator[MeasuredKernel]:
    dtype = parse_dtype(str(row["data_type"]))
    rows, length = parse_size("N", row["N"]), parse_size("C", row["C"])
    tensor_bytes = rows * length * dtype.size_bytes
    for direction, reads, column in (("forward", 1, "fwd_time_ms"), ("backward", 2, "bwd_time_ms")):
        op = MemoryBound(
            operator=f"{row['norm_type']}/{row['backend']}/{direction}",
            read_bytes=reads * tensor_bytes,
            write_bytes=tensor_bytes,
            dtype=dtype,
            row_length=length,
        )
        columns: dict[str, object] = {"N": rows, "C": length}
        yield _measured_memory(f"{name} {direction}", row["gpu_name"], op, row[column], columns)


def _read_training_kernel(name: str, row: Row) -> Iterator[MeasuredKernel]:
    sizes = {**_configuration(row), str(row["x_name"]): row["x_value"]}
    dtype = parse_dtype(str(sizes.get("dtype", "float32")))
    tokens = 1
    for key in _TOKEN_KEYS:
        tokens *= parse_size(key, sizes.get(key, 1))
    width = next((parse_size(key, sizes[key]) for key in _WIDTH_KEYS if key in sizes), 0)
    if not width:
        raise InputError(f"its configuration must state one of {', '.join(_WIDTH_KEYS)}")
    elements = tokens * width
    word, setting = str(row["kernel_name"]), ""
    if word == "embedding":
        # Rows gathered, and the table that they come from and whose gradient is dense.
        width, setting = parse_size("D", sizes["D"]), f".d{sizes['D']}"
        elements = tokens * width + parse_size("V", sizes["V"]) * width
    elif word == "fused_moe":
        setting = ".experts" if sizes.get("sweep_dim") == "E" else ".tokens"
    elif word == "fused_neighborhood_attention":
        setting = (
            f".k{sizes['kernel_size']}.d{sizes['dilation']}.h{sizes['num_heads']}"
            f".w{sizes['hidden_size']}.b{sizes['batch_size']}"
        )
    op = MemoryBound(
        operator=f"{word}{setting}/{row['kernel_provider']}/{row['kernel_operation_mode']}",
        read_bytes=elements * dtype.size_bytes,
        write_bytes=elements * dtype.size_bytes,
        dtype=dtype,
        row_length=0,
    )
    columns: dict[str, object] = {"x_value": row["x_value"], "x_name": row["x_name"]}
    yield _measured_memory(name, row["gpu_name"], op, row["y_value_50"], columns)


def _configuration(row: Row) -> dict[str, Any]:
    try:
        content = json.loads(row["extra_benchmark_config_str"])
    except (TypeError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError("extra_benchmark_config_str must be a mapping in JSON")
    return content


_POWER_LAW = "power_law_"
_MODEL = ("hidden", "ffn", "top_k", "experts")
_MOST_EXPERTS = 65_536
_MOST_EXPONENT = 10.0


def load_expert_table(path: Path, device: str | None = None) -> KernelTable:
    """The layers of experts measured in the file at *path*."""
    frame = load_frame(path, device)
    needed = ("device", "kernel_source", "dtype", "tokens", *_MODEL, "tp", "ep", "distribution")
    require_columns(frame, path, (*needed, "latency_ms"))

    def model(row: Row) -> tuple[Any, ...]:
        return tuple(row[key] for key in _MODEL)

    plain = {
        model(row)
        for row in frame.to_dict("records")
        if str(row["kernel_source"]).endswith("nongated")
    }

    def read(name: str, row: Row) -> Iterator[MeasuredKernel]:
        layer = _read_layer(row, is_gated=model(row) not in plain)
        yield build_measured(
            name,
            (str(row.get("collector", "")), str(row["device"]), f"{layer.dtype.value} experts"),
            layer,
            row["latency_ms"],
            dict(zip(_MODEL, model(row), strict=True)),
        )

    return read_rows(frame, read)


def _read_layer(row: Row, *, is_gated: bool) -> ExpertLayer:
    dtype, exponent = parse_dtype(str(row["dtype"])), _read_exponent(str(row["distribution"]))
    names = ("tokens", "top_k", "experts", "ep", "tp", "ffn")
    sizes = {name: parse_size(name, row[name]) for name in names}
    if sizes["experts"] % sizes["ep"] or sizes["ffn"] % sizes["tp"]:
        raise InputError(f"experts must be divisible by ep and ffn by tp, got {sizes}")
    if not sizes["top_k"] <= sizes["experts"] <= _MOST_EXPERTS:
        raise InputError(f"experts must be from top_k to {_MOST_EXPERTS}, got {sizes['experts']}")
    loads = hottest_loads(
        tokens=sizes["tokens"], top_k=sizes["top_k"], experts=sizes["experts"],
        ranks=sizes["ep"], exponent=exponent,
    )  # fmt: skip
    return ExpertLayer(
        kernel=str(row["kernel_source"]),
        tokens=sizes["tokens"],
        rows=loads.rows,
        active=loads.active,
        hidden=parse_size("hidden", row["hidden"]),
        ffn=sizes["ffn"] // sizes["tp"],
        is_gated=is_gated,
        dtype=dtype,
    )


def _read_exponent(word: str) -> float | None:
    """The exponent of a power law over experts; None where they are balanced."""
    if word == "balanced":
        return None
    try:
        exponent = float(word.removeprefix(_POWER_LAW))
    except ValueError:
        exponent = -1.0
    if not (word.startswith(_POWER_LAW) and 0 <= exponent <= _MOST_EXPONENT):
        raise InputError(
            f"distribution must be balanced or {_POWER_LAW}EXPONENT, got {word[:40]!r}"
        )
    return exponent


KERNEL_KINDS: Mapping[str, KernelKind] = {
    "gemm": KernelKind(load_gemm_table, GemmModel, lambda op: gemm_variant(op.dtype)),
    "attention": KernelKind(load_attention_table, AttentionModel, attention_variant),
    "experts": KernelKind(load_expert_table, ExpertLayerModel, lambda layer: layer.variant),
    "memory": KernelKind(load_memory_table, MemoryModel, lambda op: str(op.operator)),
}
