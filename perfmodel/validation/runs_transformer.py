"""Transformer runs: from the cells of a row to a workload.

What the workloads cannot express is refused with its reason, so that the row
is listed and not guessed at.
"""

from __future__ import annotations

import math
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.stack import FrameworkBehaviour, SoftwareStack
from perfmodel.validation.runs_table import RunRow, stated_or_none
from perfmodel.workloads.catalog import parse_workload
from perfmodel.workloads.transformer.spec import TransformerSpec

_SHAPE = ("layers", "hidden", "heads", "ffn", "vocab")
_STATED_WIDTHS = ("kv_heads", "head_dim", "window", "window_every")
_MASKED = "masked_tokens"
_PREDICTED_TOKENS = {128: 20, 384: 60, 512: 80}
"""Masked tokens a sequence of masked pre-training, by length."""
_USUAL_LATENTS = {"kv_lora_rank": 512, "q_lora_rank": 1536, "rope_dim": 64}
_STORED = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
"""What tensors are kept in, by what is computed in; bf16 for everything narrower."""


def build_transformer_spec(
    row: RunRow, stack: SoftwareStack, sentences: list[str]
) -> TransformerSpec:
    """The workload of *row* under *stack*; what is taken for granted goes into *sentences*."""
    _check_expressible(row)
    content: dict[str, Any] = {
        "name": str(row.name),
        "family": "transformer",
        "description": row.text("model") or "a measured run",
        "source": row.text("source") or "a table of measured runs",
        "stack": stack.name,
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


def _check_expressible(row: RunRow) -> None:
    missing = [name for name in (*_SHAPE, "seq_len", "gbs") if row.count(name) is None]
    reasons = (
        (missing, f"not stated: {', '.join(missing)}"),
        (
            (row.count("ep") or 1) > 1 and (row.count("experts") or 0) < 2,
            "ep without experts stated",
        ),
    )
    reason = next((sentence for is_fault, sentence in reasons if is_fault), None)
    if reason is not None:
        raise WorkloadError(reason)


def _length(row: RunRow, sentences: list[str]) -> int:
    """Tokens of a sequence, padding aside where none was computed."""
    length = row.count("seq_len") or 0
    left = max(round(length * row.tokens_ratio), 1)
    if left < length:
        sentences.append(f"Padding is not computed: {left} of {length} tokens a sequence taken.")
    return left


def _batch(row: RunRow, sentences: list[str]) -> int:
    batch = row.count("gbs") or 0
    micro_batch, rounds = row.count("mbs"), row.count("grad_accum")
    ranks = row.count("n_gpus") or 1
    replicas = ranks // math.prod(row.count(name) or 1 for name in ("tp", "pp", "cp"))
    if micro_batch is None or rounds is None or batch % (micro_batch * max(replicas, 1)) == 0:
        return batch
    whole = micro_batch * replicas * rounds
    sentences.append(f"The batch of {batch} does not divide; {whole} sequences taken.")
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
        **_latents(row, sentences),
    }
    if not is_gated:
        model["max_positions"] = row.count("seq_len")
    words = "gated, so as Llama has them" if is_gated else "not gated, so as GPT has them"
    sentences.append(f"Norms, positions, bias: layers are {words}.")
    return model


def _experts(row: RunRow) -> dict[str, Any]:
    if (row.count("experts") or 0) < 2:
        return {}
    return stated_or_none(row, ("experts", "top_k", "moe_ffn")) | {
        name: int(row.number(name) or 0) for name in ("shared_experts", "dense_layers")
    }


def _latents(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    """Latent attention: tables say that it is there, not how wide its latents are."""
    if row.text("attention_kind") != "mla":
        return {}
    sentences.append("Latents of keys are 512 numbers, of queries 1,536, rotary parts 64: assumed.")
    return {**_USUAL_LATENTS, "kv_heads": None}


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
        sentences.append("Experts behind a tensor split: sequence parallelism taken.")
    for name in ("tp_overlap", "dp_overlap"):
        if row.text(name):
            parallel[name] = row.text(name)
    if row.count("mbs") is not None:
        parallel["micro_batch"] = row.count("mbs")
    else:
        sentences.append("The micro-batch is not stated: the largest that fits taken.")
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
    for name, word in (("recompute", "recomputation"), ("optimizer_kind", "optimizer")):
        if not row.text(name):
            taken = training[name.removesuffix("_kind")]
            sentences.append(f"The {word} is not stated: {taken} taken.")
    return training
