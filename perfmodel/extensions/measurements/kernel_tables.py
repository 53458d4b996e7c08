"""Tables of measured kernels: the formats that are read, and the model that prices each kind.

A time is `latency_ms`, or is recognised by its unit (`time_us`, `duration_ns`); a table of one GPU
may leave the column `device` out where the command names it (`--device`). A table timed in long
loops, so that the chip was at the clock of a long run, says 1 in `under_load`.

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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.forms import Form, load_document
from perfmodel.base.reading import quote
from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.estimates import Estimates, KernelModel
from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.memory import MemoryModel
from perfmodel.extensions.measurements.expert_layers import ExpertLayer, ExpertLayerModel
from perfmodel.extensions.measurements.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    build_measured,
    load_frame,
    parse_rate,
    parse_size,
    price_measured,
    read_rows,
)
from perfmodel.graph.ops import Attention, Gemm, MemoryBound, Pass
from perfmodel.graph.routing import hottest_loads
from perfmodel.stacks.capabilities import Residency

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]
Sizes = Mapping[str, int]
FORMATS_FILE = Path(__file__).parent / "kernel_tables.yaml"
ONCE = "once"


@dataclass(frozen=True, slots=True)
class Format(Form):
    """The columns of one format; the file explains the fields."""

    sizes: Mapping[str, str]
    times: Mapping[str, str]
    needs: tuple[str, ...] = ()
    device: str = "device"

    @property
    def columns(self) -> set[str]:
        """All that a table must have."""
        return {self.device, *self.needs, *self.sizes.values(), *self.times.values()}


@dataclass(frozen=True, slots=True)
class FormatsFile(Form):
    """`kernel_tables.yaml`: formats by kind of kernel and name."""

    gemm: Mapping[str, Format]
    attention: Mapping[str, Format]
    experts: Mapping[str, Format]
    memory: Mapping[str, Format]


@lru_cache(maxsize=1)
def load_formats() -> FormatsFile:
    """The file that comes with perfmodel."""
    return load_document(FORMATS_FILE, MeasurementError).read(FormatsFile)


class Kernel(NamedTuple):
    """What a row measured: *source* and *kind* group it in reports, *columns* in folds."""

    source: str
    kind: str
    op: Any
    columns: Mapping[str, object]
    residency: Residency | None = None
    rate: float = 0.0


def kind_of(columns: Set[str]) -> str | None:
    """The kind of kernels that a table with *columns* is of."""
    formats = load_formats()
    return next((one for one in KERNEL_KINDS if _format_of(getattr(formats, one), columns)), None)


def _format_of(formats: Mapping[str, Format], columns: Set[str]) -> str | None:
    return next((name for name, one in formats.items() if one.columns <= columns), None)


def load_table(kind: str, path: Path, device: str | None = None) -> KernelTable:
    """The kernels of a *kind* that were measured in the file at *path*."""
    frame = load_frame(path, device)
    formats: Mapping[str, Format] = getattr(load_formats(), kind)
    present = set(frame.columns)
    name = _format_of(formats, present)
    if name is None:
        # What most of a table is like is what it is taken for.
        missing = min((one.columns - present for one in formats.values()), key=len)
        advice = " Name the GPU with --device." if "device" in missing else ""
        known = " or ".join(", ".join(sorted(one.columns)) for one in formats.values())
        raise MeasurementError(
            f"{path}: a table of {kind} must have the columns {known}; missing "
            f"{', '.join(sorted(missing))}.{advice}"
        )
    own, read_kernel = formats[name], READERS[kind, name]
    if kind == "experts":
        frame = _mark_gated(frame)

    def read(row_name: str, row: Row) -> Iterator[MeasuredKernel]:
        sizes = {size: parse_size(column, row[column]) for size, column in own.sizes.items()}
        for word, column in own.times.items():
            direction = Pass.FORWARD if word == ONCE else Pass(word)
            found = read_kernel(row, sizes, direction)
            yield build_measured(
                row_name if word == ONCE else f"{row_name} {word}",
                (found.source, str(row[own.device]), found.kind),
                found.op,
                row[column],
                found.columns,
                residency=found.residency,
                rate=found.rate,
                under_load=row.get("under_load", 0),
            )

    return read_rows(frame, read)


def _read_gemm(row: Row, sizes: Sizes, _: Pass) -> Kernel:
    batch = parse_size("batch", row.get("batch", 1))
    return _gemm(row, {"batch": batch, **sizes}, str(row.get("collector", "gemm")))


def _read_fp32_gemm(row: Row, sizes: Sizes, _: Pass) -> Kernel:
    source = row["op"]
    if source not in ("linear", "bmm"):
        raise InputError(f"operator {source!r} is not a GEMM")
    if source == "linear":
        sizes = {**sizes, "m": sizes["batch"] * sizes["m"], "batch": 1}
    return _gemm({**row, "dtype": "fp32"}, sizes, source)


def _gemm(row: Row, sizes: Sizes, source: str) -> Kernel:
    dtype = parse_dtype(str(row.get("dtype", "bf16")))
    op = Gemm(sizes["m"], sizes["n"], sizes["k"], dtype, sizes["batch"])
    residency = row.get("residency")
    known = [one.value for one in Residency]
    if residency is not None and residency not in known:
        raise InputError(f"residency must be one of {', '.join(known)}, got {quote(residency)}")
    # Quantised layers include a cast, so reports show them separately.
    kind = f"{op.dtype.value} layer" if op.dtype.is_quantised else "gemm"
    where = None if residency is None else Residency(residency)
    return Kernel(source, kind, op, sizes, where, parse_rate(row.get("tflops")))


SHORT_LENGTH = 512
"""Shorter sequences are reported separately: they are mostly launch, and rare in training."""
_MASKS = {"top_left": True, "bottom_right": True, "no_mask": False}


def _read_forward(row: Row, sizes: Sizes, direction: Pass) -> Kernel:
    is_causal, kv_heads = "num_key_value_heads" in row, sizes["heads"]
    if is_causal:
        kv_heads = parse_size("num_key_value_heads", row["num_key_value_heads"])
        if sizes["heads"] % kv_heads:
            raise InputError(f"num_key_value_heads must divide {sizes['heads']}, got {kv_heads}")
    op = Attention(
        **sizes,
        kv_heads=kv_heads,
        dtype=DType.BF16,
        is_causal=is_causal,
        kernel=str(row["kernel_source"]),
        direction=direction,
    )
    return _attention(op, str(row.get("collector", "")))


def _read_pass(row: Row, sizes: Sizes, direction: Pass) -> Kernel:
    window = row.get("sliding_window_size")
    if window == window and window:  # noqa: PLR0124  an empty cell is NaN, unequal to itself
        raise InputError(f"sliding window of {quote(window)} keys: windows are not modelled")
    if row["attn_mask"] not in _MASKS:
        raise InputError(f"mask {row['attn_mask']!r}: must be one of {', '.join(_MASKS)}")
    op = Attention(
        **sizes,
        dtype=parse_dtype(str(row["data_type"])),
        is_causal=_MASKS[row["attn_mask"]],
        kernel=str(row.get("backend", "cudnn")),
        direction=direction,
    )
    return _attention(op, op.dtype.value)


def _attention(op: Attention, source: str) -> Kernel:
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
    return Kernel(source, f"{op.kernel}/{op.direction.value}/{mask}{short}", op, columns)


_FP32_WORDS = {"ln": "layer_norm"}
_BINARY = frozenset({"add", "mul", "div", "sub", "pow"})
_TOKEN_KEYS = ("B", "T", "BT", "M", "S", "seq_len", "bsz", "batch_size")
_WIDTH_KEYS = ("V", "intermediate_size", "intermediate_dim", "ffn_local", "H", "hidden_size", "N",
               "D")  # fmt: skip


def _memory(op: MemoryBound, columns: Mapping[str, object]) -> Kernel:
    return Kernel(op.dtype.value, op.operator, op, columns)


def _read_fused(row: Row, sizes: Sizes, _: Pass) -> Kernel:
    """A kernel that a compiler made, as recorded in training: all bytes that it touches."""
    op = MemoryBound(f"fused_{row['fused_kind']}", sizes["size_bytes"], 0, DType.BF16)
    return _memory(op, sizes)


def _read_fp32_operator(row: Row, sizes: Sizes, _: Pass) -> Kernel:
    word, length = str(row["op"]), sizes["length"]
    tensor_bytes = sizes["rows"] * length * DType.FP32.size_bytes
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
    return _memory(op, {"B": sizes["rows"], "H": length})


def _read_norm(row: Row, sizes: Sizes, direction: Pass) -> Kernel:
    dtype, length = parse_dtype(str(row["data_type"])), sizes["length"]
    tensor_bytes = sizes["rows"] * length * dtype.size_bytes
    op = MemoryBound(
        operator=f"{row['norm_type']}/{row['backend']}/{direction.value}",
        read_bytes=tensor_bytes * (2 if direction is Pass.BACKWARD else 1),
        write_bytes=tensor_bytes,
        dtype=dtype,
        row_length=length,
    )
    return _memory(op, {"N": sizes["rows"], "C": length})


def _read_training_kernel(row: Row, _: Sizes, __: Pass) -> Kernel:
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
    return _memory(op, {"x_value": row["x_value"], "x_name": row["x_name"]})


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


def _mark_gated(frame: pd.DataFrame) -> pd.DataFrame:
    """*frame* with a column that says which layers are gated: no kernel of their model is not."""
    models = list(frame[list(_MODEL)].itertuples(index=False, name=None))
    is_plain = frame["kernel_source"].astype(str).str.endswith("nongated")
    plain = {model for model, one in zip(models, is_plain, strict=True) if one}
    return frame.assign(is_gated=[model not in plain for model in models])


def _read_layer(row: Row, sizes: Sizes, _: Pass) -> Kernel:
    dtype, exponent = parse_dtype(str(row["dtype"])), _read_exponent(str(row["distribution"]))
    if sizes["experts"] % sizes["ep"] or sizes["ffn"] % sizes["tp"]:
        raise InputError(f"experts must be divisible by ep and ffn by tp, got {sizes}")
    if not sizes["top_k"] <= sizes["experts"] <= _MOST_EXPERTS:
        raise InputError(f"experts must be from top_k to {_MOST_EXPERTS}, got {sizes['experts']}")
    loads = hottest_loads(
        tokens=sizes["tokens"], top_k=sizes["top_k"], experts=sizes["experts"],
        ranks=sizes["ep"], exponent=exponent,
    )  # fmt: skip
    layer = ExpertLayer(
        kernel=str(row["kernel_source"]),
        tokens=sizes["tokens"],
        rows=loads.rows,
        active=loads.active,
        hidden=sizes["hidden"],
        ffn=sizes["ffn"] // sizes["tp"],
        is_gated=bool(row["is_gated"]),
        dtype=dtype,
    )
    model = {key: row[key] for key in _MODEL}
    source, rate = str(row.get("collector", "")), parse_rate(row.get("tflops"))
    return Kernel(source, f"{dtype.value} experts", layer, model, rate=rate)


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


READERS: Mapping[tuple[str, str], Callable[[Row, Sizes, Pass], Kernel]] = {
    ("gemm", "shapes"): _read_gemm,
    ("gemm", "fp32"): _read_fp32_gemm,
    ("attention", "both_passes"): _read_pass,
    ("attention", "forward"): _read_forward,
    ("experts", "layers"): _read_layer,
    ("memory", "fp32"): _read_fp32_operator,
    ("memory", "norms"): _read_norm,
    ("memory", "training"): _read_training_kernel,
    ("memory", "fused"): _read_fused,
}
"""What makes a kernel of a row, by kind and format."""


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A kind of measured kernel: what reads its tables, and its cost model."""

    load: Callable[[Path, str | None], KernelTable]
    model: Callable[[Sequence[Entry] | None], KernelModel]

    def price(self, kernels: Sequence[MeasuredKernel]) -> Estimates:
        """*kernels* by the constants that come with perfmodel."""
        return price_measured(kernels, self.model(None))


KERNEL_KINDS: Mapping[str, KernelKind] = {
    "gemm": KernelKind(partial(load_table, "gemm"), GemmModel),
    "attention": KernelKind(partial(load_table, "attention"), AttentionModel),
    "experts": KernelKind(partial(load_table, "experts"), ExpertLayerModel),
    "memory": KernelKind(partial(load_table, "memory"), MemoryModel),
}
