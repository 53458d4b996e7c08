"""Transformer runs: from the cells of a row to a workload.

What the workloads cannot express is refused with its reason, so that the row
is listed and not guessed at.
"""

from __future__ import annotations

from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.validation.runs_software import GradientFormat, SoftwareRule, read_precision
from perfmodel.validation.runs_table import RunRow
from perfmodel.workloads.catalog import parse_workload
from perfmodel.workloads.transformer.spec import TransformerSpec

_SHAPE = ("layers", "hidden", "heads", "ffn", "vocab")
_DECODER, _MASKED, _ENCODER = "decoder", "encoder (MLM+NSP)", "encoder (LM head)"
_PREDICTED_TOKENS = {128: 20, 384: 60, 512: 80}
"""Masked tokens a sequence of BERT pre-training, by length."""
_ENDS = 2
_NO_VOCAB = 1024
_ONE_BUCKET = "1 TiB"
_BUCKET = "25 MiB"


def build_transformer_spec(
    row: RunRow, rule: SoftwareRule, sentences: list[str]
) -> TransformerSpec:
    """The workload of *row* under the software of *rule*; defaults go into *sentences*."""
    _check_expressible(row)
    content = {
        "name": str(row.name),
        "family": "transformer",
        "description": row.text("model") or "a measured run",
        "source": row.text("source"),
        "stack": rule.profile,
        "batch": _batch(row, sentences),
        "sequence_length": row.count("seq_len"),
        "sync_each_iteration": rule.reads_loss,
        "model": _model(row, rule, sentences),
        "parallel": _parallel(row, sentences),
        "training": _training(row, rule, sentences),
    }
    if row.text("arch") == _MASKED:
        length = row.count("seq_len") or 0
        content["masked_tokens"] = _PREDICTED_TOKENS.get(length, -(-length * 5 // 32))
    spec = parse_workload(content, document=f"row {row.name}")
    assert isinstance(spec, TransformerSpec)
    return spec


def _check_expressible(row: RunRow) -> None:
    missing = [name for name in (*_SHAPE, "seq_len", "gbs") if row.count(name) is None]
    reasons = (
        (missing, f"not stated: {', '.join(missing)}"),
        (
            row.text("arch") not in ("", _DECODER, _MASKED, _ENCODER),
            f"architecture {row.text('arch')!r} is not a workload yet",
        ),
        ((row.count("ep") or 1) > 1, "expert parallelism is not a workload yet"),
        ((row.count("cp") or 1) > 1, "context parallelism is not a workload yet"),
        ("unpadded" in row.text("attn_impl"), "sequences without padding are not a workload yet"),
        ("LoRA" in row.text("sharding"), "training of adapters only is not a workload yet"),
    )
    reason = next((sentence for is_fault, sentence in reasons if is_fault), None)
    if reason is not None:
        raise WorkloadError(reason)


def _batch(row: RunRow, sentences: list[str]) -> int:
    batch = row.count("gbs") or 0
    micro_batch, rounds = row.count("mbs"), row.count("grad_accum")
    dp = _data_parallel(row)
    if micro_batch is None or dp is None or batch % (micro_batch * dp) == 0 or rounds is None:
        return batch
    whole = micro_batch * dp * rounds
    sentences.append(f"The batch of {batch} does not divide; {whole} sequences taken.")
    return whole


def _data_parallel(row: RunRow) -> int | None:
    ranks = row.count("n_gpus")
    return None if ranks is None else ranks // ((row.count("tp") or 1) * (row.count("pp") or 1))


def _model(row: RunRow, rule: SoftwareRule, sentences: list[str]) -> dict[str, Any]:
    is_llama = row.switch("gated_ffn") is True
    architecture = row.text("arch") or _DECODER
    model: dict[str, Any] = {name: row.count(name) for name in _SHAPE}
    for name in ("kv_heads", "head_dim"):
        if row.count(name) is not None:
            model[name] = row.count(name)
    model |= {
        "gated_ffn": is_llama,
        "norm": "rms_norm" if is_llama else "layer_norm",
        "bias": not is_llama and rule.profile != "llm_foundry",
        "positions": "rotary" if is_llama else "learned",
        "tied_embeddings": row.switch("tied_emb") is not False,
        "dropout": rule.has_dropout,
        "causal": architecture == _DECODER,
    }
    if not is_llama:
        model["max_positions"] = row.count("seq_len")
    if architecture == _MASKED:
        model |= {"head": "masked_tokens", "pooler": True, "token_types": 2}
    if _counts_ends(row):
        stages = row.count("pp")
        model |= {"layers": model["layers"] + _ENDS, "vocab": _NO_VOCAB}
        sentences.append(
            f"{row.count('layers')} layers and two ends on {stages} stages: a pipeline of equal "
            "stages, without the work of its ends, stands for it."
        )
    words = "gated, so as Llama has them" if is_llama else "not gated, so as GPT has them"
    sentences.append(f"Norms, positions, bias: layers are {words}.")
    return model


def _counts_ends(row: RunRow) -> bool:
    """Whether stages are equal only if embedding and head count as a layer each."""
    layers, stages = row.count("layers") or 0, row.count("pp") or 1
    return layers % stages != 0 and (layers + _ENDS) % stages == 0


def _parallel(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    parallel: dict[str, Any] = {
        "tp": row.count("tp") or 1,
        "pp": row.count("pp") or 1,
        "sequence_parallel": row.text("sp").startswith("yes"),
        "sharding": _sharding(row.text("sharding")),
        "interleaving": row.count("vpp") or 1,
    }
    if row.count("mbs") is not None:
        parallel["micro_batch"] = row.count("mbs")
    else:
        sentences.append("The micro-batch is not stated: the largest that fits taken.")
    return parallel


def _sharding(text: str) -> str:
    if any(word in text for word in ("FSDP", "FULL_SHARD", "ZeRO-3")):
        return "full"
    if any(word in text for word in ("ZeRO-1", "ZeRO-2", "distributed optimizer")):
        return "optimizer"
    return "none"


def _training(row: RunRow, rule: SoftwareRule, sentences: list[str]) -> dict[str, Any]:
    precision = read_precision(row)
    is_pure = "PURE" in row.text("sharding") or rule.gradients is GradientFormat.AS_COMPUTED
    training = {
        "precision": precision.stored.value,
        "gradient_dtype": precision.stored.value if is_pure else "fp32",
        "optimizer": _optimizer(row.text("optimizer")) if rule.steps else "sgd",
        "clip_gradients": rule.steps,
        "recompute": _recompute(row.text("act_recompute"), sentences),
        "attention": _attention(row.text("attn_impl")),
        "bucket_size": _ONE_BUCKET if rule.reduces_in_one_piece else _BUCKET,
    }
    if not rule.steps:
        sentences.append(
            "No optimizer was timed: plain SGD, a hundredth of the time, stands for it."
        )
    return training


def _optimizer(text: str) -> str:
    known = (("LAMB", "lamb"), ("ADAMW", "adamw"))
    return next((name for word, name in known if word in text.upper()), "adam")


def _recompute(text: str, sentences: list[str]) -> str:
    if text.startswith("full"):
        return "full"
    if text.startswith("selective (attention"):
        return "selective"
    if text.startswith("selective (op-level"):
        return "operators"
    if text.startswith("selective"):
        sentences.append(f"Recomputation {text!r} is counted as that of whole layers.")
        return "full"
    if not text.startswith("none"):
        sentences.append(f"Recomputation is {text or 'not stated'!r}: none taken.")
    return "none"


def _attention(text: str) -> str:
    return "unfused" if any(word in text for word in ("unfused", "eager")) else "auto"
