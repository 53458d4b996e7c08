"""Workloads of measured runs: from the cells of a row to a Transformer or a DLRM.

A row that no workload can express is listed as unsupported, with the reason.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.validation.runs_table import RunRow, stated_or_none
from perfmodel.workloads.catalog import list_workloads, load_workload, parse_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.transformer.spec import TransformerSpec

_SHAPE = ("layers", "hidden", "heads", "ffn", "vocab")
_STATED_WIDTHS = ("kv_heads", "head_dim", "window", "window_every")
_MASKED = "masked_tokens"
_PREDICTED_TOKENS = {128: 20, 384: 60, 512: 80}
"""Masked tokens per sequence in masked pre-training, by sequence length."""
_USUAL_LATENTS = {"kv_lora_rank": 512, "q_lora_rank": 1536, "rope_dim": 64}
"""Widths of latent attention, which tables do not state."""
_STORED = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
"""Storage dtype by compute precision; bf16 for everything narrower."""


def _heading(row: RunRow, stack: SoftwareStack) -> dict[str, Any]:
    return {
        "name": str(row.name),
        "family": row.family.value,
        "description": row.text("model") or "a measured run",
        "source": row.text("source") or "a table of measured runs",
        "stack": stack.name,
    }


def build_transformer_spec(
    row: RunRow, stack: SoftwareStack, sentences: list[str]
) -> TransformerSpec:
    """The workload of *row* under *stack*; assumptions are added to *sentences*."""
    missing = [name for name in (*_SHAPE, "seq_len", "gbs") if row.count(name) is None]
    if missing:
        raise WorkloadError(f"not stated: {', '.join(missing)}")
    if (row.count("ep") or 1) > 1 and (row.count("experts") or 0) < 2:
        raise WorkloadError("ep without experts stated")
    content: dict[str, Any] = {
        **_heading(row, stack),
        "batch": _batch(row, sentences),
        "sequence_length": _length(row, sentences),
        "model": _model(row, stack, sentences),
        "parallel": _parallel(row, sentences),
        "training": _training(row, sentences),
    }
    if content["model"].get("head") == _MASKED:
        length, whole = content["sequence_length"], row.count("seq_len") or 0
        predicted = _PREDICTED_TOKENS.get(whole, -(-whole * 5 // 32))
        predicted = -(-predicted * length // whole)
        content[_MASKED] = length if stack.has(FrameworkBehaviour.ALL_LOGITS) else predicted
    spec = parse_workload(content, document=f"row {row.name}")
    assert isinstance(spec, TransformerSpec)
    return spec


def _length(row: RunRow, sentences: list[str]) -> int:
    """Tokens of a sequence, without padding if none was computed."""
    length = row.count("seq_len") or 0
    left = max(round(length * row.tokens_ratio), 1)
    if left < length:
        sentences.append(f"Padding is skipped; assumed {left} of {length} tokens per sequence.")
    return left


def _batch(row: RunRow, sentences: list[str]) -> int:
    batch = row.count("gbs") or 0
    micro_batch, rounds = row.count("mbs"), row.count("grad_accum")
    ranks = row.count("n_gpus") or 1
    replicas = ranks // math.prod(row.count(name) or 1 for name in ("tp", "pp", "cp"))
    if micro_batch is None or rounds is None or batch % (micro_batch * max(replicas, 1)) == 0:
        return batch
    whole = micro_batch * replicas * rounds
    sentences.append(
        f"A batch of {batch} does not split into whole micro-batches; assumed {whole} sequences."
    )
    return whole


def _model(row: RunRow, stack: SoftwareStack, sentences: list[str]) -> dict[str, Any]:
    is_gated = row.switch("gated_ffn") is True
    model: dict[str, Any] = {
        **stated_or_none(row, (*_SHAPE, *_STATED_WIDTHS)),
        "gated_ffn": is_gated,
        "norm": "rms_norm" if is_gated else "layer_norm",
        "bias": not is_gated and not stack.has(FrameworkBehaviour.UNBIASED),
        "positions": "rotary" if is_gated else "learned",
        "tied_embeddings": row.switch("tied_emb") is not False,
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
        model["max_positions"] = row.count("seq_len")
    gated, like = ("gated", "Llama") if is_gated else ("not gated", "GPT")
    sentences.append(f"Norms, positions and bias are assumed as in {like}: the FFN is {gated}.")
    return model


def _experts(row: RunRow) -> dict[str, Any]:
    if (row.count("experts") or 0) < 2:
        return {}
    return stated_or_none(row, ("experts", "top_k", "moe_ffn")) | {
        name: int(row.number(name) or 0) for name in ("shared_experts", "dense_layers")
    }


def _parallel(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    parallel: dict[str, Any] = {
        "tp": row.count("tp") or 1,
        "pp": row.count("pp") or 1,
        "sequence_parallel": row.switch("sequence_parallel") is True,
        "sharding": row.text("data_sharding") or "none",
        "interleaving": row.count("vpp") or 1,
        **stated_or_none(row, ("shard_group",)),
    }
    for name in ("cp", "ep"):
        if (row.count(name) or 1) > 1:
            parallel[name] = row.count(name)
    if (row.count("experts") or 0) > 1 and parallel["tp"] > 1:
        parallel["sequence_parallel"] = True
        sentences.append("Experts with tensor parallelism: sequence parallelism is assumed.")
    for name in ("tp_overlap", "dp_overlap"):
        if row.text(name):
            parallel[name] = row.text(name)
    if row.count("mbs") is not None:
        parallel["micro_batch"] = row.count("mbs")
    else:
        sentences.append("The micro-batch is not stated; assumed the largest that fits.")
    return parallel


def _training(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    computed = row.text("compute_precision")
    if not computed:
        raise WorkloadError("not stated: compute_precision")
    stored = _STORED.get(computed, "bf16")
    optimizer = row.text("optimizer_kind")
    training: dict[str, Any] = {
        "precision": stored,
        "compute": computed,
        "optimizer": optimizer or "adam",
        "clip_gradients": optimizer != "none",
        "recompute": row.text("recompute") or "none",
        "attention": row.text("attention_kernel") or "auto",
        "adapters_only": row.switch("adapters_only") is True,
    }
    if row.number("recompute_fraction") is not None:
        training["recompute_fraction"] = row.number("recompute_fraction")
    for name, word in (("recompute", "Recomputation"), ("optimizer_kind", "The optimizer")):
        if not row.text(name):
            assumed = training[name.removesuffix("_kind")]
            sentences.append(f"{word} is not stated; assumed {assumed}.")
    return training


_BYTES_PER_GB = 1e9
_ALIKE, _ALIKE_SHARE = 1.3, 0.75
"""Tables are of one data set if this share of them differ by no more than this factor."""


def build_dlrm_spec(row: RunRow, stack: SoftwareStack, sentences: list[str]) -> DlrmSpec:
    """The workload of *row* under *stack*; assumptions are added to *sentences*."""
    missing = [name for name in ("gbs", "dense_features", "emb_dim") if row.count(name) is None]
    missing += [
        name
        for name in ("compute_precision", "interaction_kind", "top_layers")
        if not row.text(name)
    ]
    if missing:
        raise WorkloadError(f"not stated: {', '.join(missing)}")
    precision = _STORED.get(row.text("compute_precision"), "bf16")
    optimizer = row.text("optimizer_kind") or "sgd"
    if not row.text("optimizer_kind"):
        sentences.append("The optimizer is not stated; assumed sgd.")
    if precision != "fp32":
        sentences.append(f"Tables are stored in fp32 and exchanged in {precision}.")
    content: dict[str, Any] = {
        **_heading(row, stack),
        "batch": row.count("gbs"),
        "embedding": _embedding(row, sentences)
        | {"optimizer": optimizer, "exchange_dtype": precision},
        "sharding": row.meaning("placement"),
        "dense": _dense(row),
        "training": {"precision": precision, "optimizer": optimizer},
    }
    spec = parse_workload(content, document=f"row {row.name}")
    assert isinstance(spec, DlrmSpec)
    return spec


def _embedding(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    width, rows, lookups = row.count("emb_dim"), _table_rows(row, sentences), row.counts("lookups")
    if not lookups:
        sentences.append("Lookups per sample and table are not stated; assumed one.")
    each = lookups if len(lookups) > 1 else (lookups or [1]) * len(rows)
    if row.switch("wide_table") is not True:
        skew = _skew(rows, each, sentences) if row.counts("table_rows") else {}
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
    for spec in _skewed_workloads():
        known = spec.embedding
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
            assert isinstance(known.zipf_exponents, tuple)
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


@lru_cache(maxsize=1)
def _skewed_workloads() -> tuple[DlrmSpec, ...]:
    found = (load_workload(title.name) for title in list_workloads())
    return tuple(
        spec
        for spec in found
        if isinstance(spec, DlrmSpec) and isinstance(spec.embedding.zipf_exponents, tuple)
    )


def _table_rows(row: RunRow, sentences: list[str]) -> list[int]:
    stated = row.counts("table_rows")
    if stated:
        return stated
    tables, total = row.count("tables"), row.count("rows_total")
    size_gb = row.number("emb_params_gb")
    if total is None and size_gb is not None:
        total = int(size_gb * _BYTES_PER_GB / (4 * (row.count("emb_dim") or 1)))
    if tables is None or total is None:
        raise WorkloadError("the rows of the tables are not stated")
    sentences.append(f"The rows of each table are not stated; assumed {tables} equal tables.")
    return [max(total // tables, 1)] * tables


def _dense(row: RunRow) -> dict[str, Any]:
    dense: dict[str, Any] = {
        "features": row.count("dense_features"),
        "bottom_mlp": row.counts("bottom_layers"),
        "top_mlp": row.counts("top_layers"),
        **row.meaning("interaction_kind"),
    }
    cross = stated_or_none(row, ("cross_layers", "cross_rank"))
    if cross:
        dense["cross"] = {name.removeprefix("cross_"): count for name, count in cross.items()}
    return dense
