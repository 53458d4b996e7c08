"""Workloads of measured runs: from the cells of a row to a Transformer or a DLRM.

A row that no workload can express is listed as unsupported, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.extensions.measurements.validation.runs_table import RunRow
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import list_workloads, load_workload, parse_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.family import Spec
from perfmodel.workloads.fields import Workload
from perfmodel.workloads.transformer.axes import (
    AXES,
    OF_EXPERTS,
    OF_MODEL,
    Divided,
    group_size,
)
from perfmodel.workloads.transformer.spec import TransformerSpec

_NEEDED = ("layers", "hidden", "heads", "vocab", "seq_len", "gbs")
GPT_FFN_RATIO = 4
_MASKED = "masked_tokens"
_PREDICTED_TOKENS = {128: 20, 384: 60, 512: 80}
"""Masked tokens per sequence in masked pre-training, by sequence length."""
_PACKED_TOKENS = 512
"""Tokens of a sample where sequences are packed: those of question-answering sets are shorter."""
_SAME_MODEL = ("hidden", "heads", "kv_heads", "vocab", "expert_ffn")
_OF_MODEL = ("norm", "bias", "positions", "clamped_ffn")
_USUAL_LATENTS = {"kv_lora_rank": 512, "q_lora_rank": 1536, "rope_dim": 64}
"""Widths of latent attention, which tables do not state."""
_STORED = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
"""Storage dtype by compute precision; bf16 for everything narrower."""


def _heading(row: RunRow, stack: SoftwareStack) -> dict[str, Any]:
    return {
        "name": str(row.name),
        "family": row.family,
        "description": row.text("model") or "a measured run",
        "source": row.text("source") or "a table of measured runs",
        "stack": stack.name,
    }


def _check_stated(row: RunRow, names: Sequence[str]) -> None:
    missing = [name for name in names if not row.text(name)]
    if missing:
        raise WorkloadError(f"not stated: {', '.join(missing)}")


def build_transformer_spec(row: RunRow, stack: SoftwareStack, sentences: list[str]) -> Workload:
    """The workload of *row* under *stack*; assumptions are added to *sentences*."""
    _check_stated(row, _NEEDED)
    for axis in AXES.values():
        is_spread = axis.divided in OF_EXPERTS and (row.value(axis.name) or 1) > 1
        if is_spread and (row.value("experts") or 0) < 2:
            raise WorkloadError(f"{axis.name} without experts stated")
    content: dict[str, Any] = {
        **_heading(row, stack),
        "batch": _batch(row, sentences),
        "sequence_length": _length(row, sentences),
        "model": _model(row, stack, sentences),
        "parallel": _parallel(row, sentences),
        "training": _training(row, sentences),
    }
    if content["model"].get("head") == _MASKED:
        length, whole = content["sequence_length"], row.value("seq_len") or 0
        predicted = _PREDICTED_TOKENS.get(whole, -(-whole * 5 // 32))
        predicted = -(-predicted * length // whole)
        content[_MASKED] = length if stack.has(FrameworkBehaviour.ALL_LOGITS) else predicted
    return parse_workload(content, document=f"row {row.name}")


def _length(row: RunRow, sentences: list[str]) -> int:
    """Tokens of a sequence, without padding if none was computed."""
    length = row.value("seq_len") or 0
    left = max(round(length * row.tokens_ratio), 1)
    if left < length:
        sentences.append(f"Padding is skipped; assumed {left} of {length} tokens per sequence.")
    return left


def _batch(row: RunRow, sentences: list[str]) -> int:
    batch: int = row.value("gbs") or 0
    micro_batch, rounds = row.value("mbs"), row.value("grad_accum")
    ranks = row.value("n_gpus") or 1
    replicas = ranks // group_size(row.value, *OF_MODEL)
    if micro_batch is None or rounds is None or batch % (micro_batch * max(replicas, 1)) == 0:
        return batch
    whole: int = micro_batch * replicas * rounds
    sentences.append(
        f"A batch of {batch} does not split into whole micro-batches; assumed {whole} sequences."
    )
    return whole


def _model(row: RunRow, stack: SoftwareStack, sentences: list[str]) -> dict[str, Any]:
    is_gated = _is_gated(row, sentences)
    if is_gated or (row.value("experts") or 0) > 1:
        _check_stated(row, ("ffn",))
    model: dict[str, Any] = {
        **row.section("model"),
        "gated_ffn": is_gated,
        "norm": "rms_norm" if is_gated else "layer_norm",
        "bias": not is_gated and not stack.has(FrameworkBehaviour.UNBIASED),
        "positions": "rotary" if is_gated else "learned",
        "dropout": not is_gated and stack.has(FrameworkBehaviour.DROPOUT),
        **row.meaning("arch"),
        **_experts(row),
    }
    if row.text("attention_kind") == "mla":
        model |= {**_USUAL_LATENTS, "kv_heads": None}
        sentences.append(
            "Latent widths are not stated; assumed 512 for keys, 1,536 for queries, 64 rotary."
        )
    if not is_gated:
        model["max_positions"] = row.value("seq_len")
    if not row.value("ffn"):
        model["ffn"] = GPT_FFN_RATIO * model["hidden"]
        sentences.append("The width of the FFN is not stated; assumed four times hidden.")
    if known := _known_model(model):
        sentences.append(f"Norms, positions and bias are those of {known.name}: equal widths.")
        return model | {name: getattr(known.model, name) for name in _OF_MODEL}
    gated, like = ("gated", "Llama") if is_gated else ("not gated", "GPT")
    sentences.append(f"Norms, positions and bias are assumed as in {like}: the FFN is {gated}.")
    return model


def _known_model(model: Mapping[str, Any]) -> TransformerSpec | None:
    """The shipped workload of experts with the widths of *model*; layers and experts may differ."""
    if model.get("experts", 1) < 2:
        return None
    own = {**model, "expert_ffn": model.get("moe_ffn") or model["ffn"]}
    return next(
        (
            spec
            for spec in _shipped_workloads(TransformerSpec)
            if spec.model.has_experts
            and all(getattr(spec.model, name) == own.get(name) for name in _SAME_MODEL)
        ),
        None,
    )


@lru_cache(maxsize=8)
def _shipped_workloads(kind: type[Spec]) -> tuple[Spec, ...]:
    loaded = (load_workload(title.name) for title in list_workloads())
    return tuple(one for one in loaded if isinstance(one, kind))


def _is_gated(row: RunRow, sentences: list[str]) -> bool:
    """Whether the FFN is gated: as stated, or as in models of such a shape.

    Fewer key and value heads than heads, or a width that is not that of GPT, are those of Llama.
    """
    if row.text("gated_ffn"):
        return row.value("gated_ffn") is True
    heads, kv_heads = row.value("heads") or 0, row.value("kv_heads") or 0
    width, usual = row.value("ffn") or 0, GPT_FFN_RATIO * (row.value("hidden") or 0)
    is_like_llama = 0 < kv_heads < heads or (width > 0 and width != usual)
    if is_like_llama:
        sentences.append("Whether the FFN is gated is not stated; assumed as in Llama.")
    return is_like_llama


def _experts(row: RunRow) -> dict[str, Any]:
    if (row.value("experts") or 0) < 2:
        return {}
    return row.section("experts")


def _parallel(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    parallel = row.section("parallel")
    of_model = [axis.name for axis in AXES.values() if axis.divided in OF_MODEL]
    if not any(row.value(name) for name in (*of_model, "mbs")):
        sentences.append("No layout is stated; assumed the one that `predict` would choose.")
        experts = [axis.name for axis in AXES.values() if axis.divided is Divided.EXPERTS]
        kept = ("sharding", "shard_group", *experts)
        return {name: parallel[name] for name in kept if name in parallel}
    if (row.value("experts") or 0) > 1 and parallel["tp"] > 1:
        parallel["sequence_parallel"] = True
        sentences.append("Experts with tensor parallelism: sequence parallelism is assumed.")
    if stages := row.text("stage_layers"):
        lengths = [one.removesuffix("mtp") or "0" for one in stages.split("+")]
        if not all(one.isdigit() for one in lengths):
            raise WorkloadError(f"stage_layers must be numbers joined by +, got {stages!r}")
        parallel["stage_layers"] = [int(one) for one in lengths]
    if "micro_batch" not in parallel:
        sentences.append("The micro-batch is not stated; assumed the largest that fits.")
    return parallel


def _training(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    _check_stated(row, ["compute_precision"])
    training: dict[str, Any] = {
        **row.section("training"),
        "precision": _STORED.get(row.text("compute_precision"), "bf16"),
        "clip_gradients": row.text("optimizer_kind") != "none",
    }
    training |= row.meaning("remat_policy")
    if modules := row.text("recompute_modules"):
        training["recompute_modules"] = modules.split("+")
    if row.value("packed") and not row.text("packed_tokens"):
        training["packed_tokens"] = _PACKED_TOKENS
        sentences.append(
            f"Sequences are packed of samples of unstated length; assumed {_PACKED_TOKENS} tokens."
        )
    if not row.text("optimizer_kind"):
        sentences.append(f"The optimizer is not stated; assumed {training['optimizer']}.")
    return training


_NEEDED_OF_DLRM = (
    "gbs", "dense_features", "emb_dim", "compute_precision", "interaction_kind", "top_layers",
)  # fmt: skip
_BYTES_PER_GB = 1e9
_ALIKE, _ALIKE_SHARE = 1.3, 0.75
"""Tables are of one data set if this share of them differ by no more than this factor."""


def build_dlrm_spec(row: RunRow, stack: SoftwareStack, sentences: list[str]) -> Workload:
    """The workload of *row* under *stack*; assumptions are added to *sentences*."""
    _check_stated(row, _NEEDED_OF_DLRM)
    precision = _STORED.get(row.text("compute_precision"), "bf16")
    optimizer = row.text("optimizer_kind") or "sgd"
    if not row.text("optimizer_kind"):
        sentences.append("The optimizer is not stated; assumed sgd.")
    if precision != "fp32":
        sentences.append(f"Tables are stored in fp32 and exchanged in {precision}.")
    content: dict[str, Any] = {
        **_heading(row, stack),
        "batch": row.value("gbs"),
        "embedding": _embedding(row, sentences)
        | {"optimizer": optimizer, "exchange_dtype": precision},
        "sharding": row.meaning("placement"),
        "dense": _dense(row),
        "training": {"precision": precision, "optimizer": optimizer},
    }
    if row.load_ns is not None:
        content["input"] = {"load_time": f"{row.load_ns:g} ns"}
        sentences.append("The loader bounds this run; what it takes is an input of the run.")
    return parse_workload(content, document=f"row {row.name}")


def _embedding(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    width, rows, lookups = (
        row.value("emb_dim"),
        _table_rows(row, sentences),
        row.value("lookups") or [],
    )
    if not lookups:
        sentences.append("Lookups per sample and table are not stated; assumed one.")
    each = lookups if lookups and len(lookups) > 1 else (lookups or [1]) * len(rows)
    if row.value("wide_table") is not True:
        skew = _skew(rows, each, sentences) if row.value("table_rows") else {}
        pooling = [float(count) for count in each]
        return {"rows": rows, "width": width, "pooling_factors": pooling, **skew}
    sentences.append("The wide part is one table of width 1 with the rows of all others together.")
    return {
        "rows": [*rows, sum(rows)],
        "width": [width] * len(rows) + [1],
        "pooling_factors": [*(float(count) for count in each), float(sum(each))],
    }


def _skew(rows: list[int], lookups: list[int], sentences: list[str]) -> dict[str, Any]:
    """The index skew of the shipped workload with the same tables; empty if there is none.

    Tables are compared in order of size, because data sets are truncated at different row counts.
    """
    order = sorted(range(len(rows)), key=lambda place: -rows[place])
    for spec in _shipped_workloads(DlrmSpec):
        known = spec.embedding
        if not isinstance(known.zipf_exponents, tuple):
            continue
        known_order = sorted(range(len(known.rows)), key=lambda place: -known.rows[place])
        pairs = list(zip(order, known_order, strict=False))
        alike = sum(
            max(rows[own], known.rows[other]) <= _ALIKE * min(rows[own], known.rows[other])
            for own, other in pairs
        )
        pooling = known.pooling_factors
        is_multi_hot = isinstance(pooling, tuple)
        if len(rows) != len(known.rows) or is_multi_hot is not (max(lookups) > 1):
            continue
        if alike >= _ALIKE_SHARE * len(rows):
            exponents, occurring = [0.0] * len(rows), [1] * len(rows)
            for own, other in pairs:
                exponents[own] = known.zipf_exponents[other]
                occurring[own] = min(rows[own], (known.zipf_rows or known.rows)[other])
            sentences.append(
                f"Indices are as skewed as those of {spec.name}: it has the same tables."
            )
            return {
                "zipf_exponents": exponents,
                "zipf_rows": occurring,
                "fixed_bags": known.fixed_bags,
            }
    return {}


def _table_rows(row: RunRow, sentences: list[str]) -> list[int]:
    stated: list[int] | None = row.value("table_rows")
    if stated:
        return stated
    tables, total = row.value("tables"), row.value("rows_total")
    size_gb = row.value("emb_params_gb")
    if total is None and size_gb is not None:
        total = int(size_gb * _BYTES_PER_GB / (4 * (row.value("emb_dim") or 1)))
    if tables is None or total is None:
        raise WorkloadError("the rows of the tables are not stated")
    sentences.append(f"The rows of each table are not stated; assumed {tables} equal tables.")
    return [max(total // tables, 1)] * tables


def _dense(row: RunRow) -> dict[str, Any]:
    dense = {"bottom_mlp": [], **row.section("dense"), **row.meaning("interaction_kind")}
    cross = row.section("cross")
    return dense | ({"cross": cross} if cross else {})


WORKLOADS: dict[str, Callable[[RunRow, SoftwareStack, list[str]], Workload]] = {
    "transformer": build_transformer_spec,
    "dlrm": build_dlrm_spec,
}
"""By family, what makes a workload of a row under a stack and adds its assumptions to a list."""
