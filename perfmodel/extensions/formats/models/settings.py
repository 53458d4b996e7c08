"""Settings of training programs: Megatron-LM and NeMo, torchtitan, DeepSpeed.

They state the layout and how a model is trained; most state the model, too. `settings.yaml` says
which key is which field. What only the running program knows is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.base.forms import Form, read_mapping
from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models.fields import (
    MOST_LAYERS,
    REPEATED,
    FieldReader,
    FieldUse,
    Source,
    Use,
    work_out,
)
from perfmodel.extensions.formats.models.layer_kinds import layer_words, pattern_of
from perfmodel.extensions.formats.models.scripts import resolve, value_of
from perfmodel.workloads.catalog import SPEC_FOLDER

TABLE = Path(__file__).with_name("settings.yaml")
_OFF = (None, False, 0, "none", "")
_PRODUCT = re.compile(r"\$\{multiply:([^,]+),(.*)\}")
# The section of a tokenizer is merged, so its `model` and `type` have no prefix.
_TOKENIZER = ("tokenizer_type", "tokenizer_model", "type", "tokenizer_name_or_path", "model",
              "restore_from_path", "run.name", "name")  # fmt: skip
_NETWORKS = {"0": "dense", "1": "experts"}


@dataclass(frozen=True, slots=True)
class SettingsTable(Form):
    """The fields of one program; `settings.yaml` describes the keys."""

    kind: str
    stack: str
    merged: tuple[str, ...]
    reads: Mapping[str, str]
    words: Mapping[str, Mapping[Any, Any]]
    ignored: tuple[str, ...]
    unstated: tuple[Any, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[Mapping[str, Any], ...] = ()
    tokenizers: Mapping[str, int] = field(default_factory=dict)
    mixers: tuple[Mapping[str, Any], ...] = ()
    implied: tuple[Mapping[str, Any], ...] = ()
    flavors: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


@cache
def load_table(program: str) -> SettingsTable:
    """The table of *program*."""
    tables, entry = load_yaml(TABLE), {"extends": program}
    while base := entry.pop("extends", None):
        entry = {**tables[base], **entry, "extends": tables[base].get("extends")}
    return read_mapping(SettingsTable, entry, document=TABLE.name)


def read_settings(
    program: str,
    content: dict[str, Any],
    *,
    document: str,
    name: str,
    given: Collection[str] = (),
    is_layout: bool = False,
) -> tuple[dict[str, Any], list[FieldUse]]:
    """The workload, or the layout alone, in the settings of *program*, and the use of fields."""
    table = load_table(program)
    repeated = list(content.pop(REPEATED, ()))
    flat = flatten(content, table.merged, repeated)
    _refuse_others(table, flat, document, is_layout=is_layout)
    assumed = [*_imply(table, flat), *(() if is_layout else _add_vocabulary(table, flat))]
    stated = {key: value for key, value in flat.items() if value not in table.unstated}
    fields = FieldReader(document, stated, given, table.ignored)
    values = read_values(table, fields, flat.keys() - stated.keys(), is_layout=is_layout)
    fields.note(*(entry["key"] for entry in table.implied))
    fields.known.update(key for entry in table.refused for key in entry["keys"])
    # What follows counts with values of the right kind.
    fields.check()
    base: Mapping[str, Any] = {}
    if program == "torchtitan":
        _finish_torchtitan(values, fields)
        base = {} if is_layout else _find_flavor(table, fields)
    elif program != "deepspeed":
        _finish_megatron(values, fields)
        _finish_stages(values, fields)
        if not is_layout:
            _finish_model(values, fields, table)
    _finish_batch(values, fields, table)
    if repeated:
        assumed.append(f"Stated more than once, the last counts: {', '.join(repeated)}.")
    workload: dict[str, Any] = {
        **fields.describe(name, table.kind, assumed),
        "family": "transformer",
        "stack": table.stack,
        "model": dict(base),
        "parallel": {},
        "training": {},
    }
    for target, value in values.items():
        section, dot, key = target.partition(".")
        if value is not None and ":" not in target:
            (workload[section] if dot else workload)[key or target] = value
    return workload, fields.uses


def flatten(
    content: Mapping[str, Any], merged: Collection[str], repeated: list[str]
) -> dict[str, Any]:
    """*content* without levels: keys of *merged* sections alone, others as `section.key`.

    References to other keys of the file are replaced by their values, products of them worked
    out. *repeated* gets the keys of several sections that differ.
    """
    flat: dict[str, Any] = {}

    def add(prefix: str, mapping: Mapping[str, Any]) -> None:
        for key, value in mapping.items():
            name = str(key).removeprefix("--").replace("-", "_")
            if isinstance(value, Mapping):
                add("" if name.lower() in merged else f"{prefix}{name}.", value)
            else:
                name = f"{prefix}{name}"
                if flat.setdefault(name, value) != value:
                    repeated.append(name)
                flat[name] = value

    add("", content)
    for key, value in flat.items():
        if isinstance(value, str) and "${" in value:
            flat[key] = value_of(resolve(_PRODUCT.sub(r"$((\1*\2))", value), flat))
    return flat


def read_values(
    table: SettingsTable,
    fields: FieldReader,
    unstated: Collection[str] = (),
    *,
    is_layout: bool = False,
) -> dict[str, Any]:
    """The fields of a workload, by their dotted names, and parts by names with a colon.

    Fields with keys of *unstated* are left as they are.
    """
    values: dict[str, Any] = {}
    fields.content = content = dict(fields.content)
    for target, text in table.reads.items():
        name, _, part = target.partition(":")
        # A layout may leave out what a job must state.
        source = Source.parse(f"{text.rstrip('?')}?" if is_layout else text)
        fields.known.update(source.keys)
        if (is_layout and name.startswith("model.")) or {*unstated} & {*source.keys}:
            continue
        known = table.words.get(target, table.words.get(name, {}))
        is_switch = not known and isinstance(source.default, bool)
        if is_switch or "true" in known:
            # What follows a flag in a script may be a list of further arguments.
            content |= {key: True for key in source.keys if "$" in str(content.get(key))}
        value = fields.read(target, source, table.hints.get(target, ""))
        allowed = ("true", "false") if is_switch else (*known, "false") if known else ()
        word = str(value).lower()
        if allowed and value is not None and word not in allowed and name not in fields.given:
            key = next(key for key in source.keys if key in content)
            fault = f"must be one of {', '.join(known or allowed)}, got {quote(value)}"
            fields.faults.add(key, fault)
        value = known.get(word) if known and value is not None else value
        if value is not None:
            values[name if part.startswith("or ") else target] = value
    return values


def _imply(table: SettingsTable, flat: dict[str, Any]) -> Iterator[str]:
    """Put into *flat* what other keys imply, where it is not stated; what is assumed by it."""
    for entry in table.implied:
        stated, sets = flat.get(entry["key"]), entry.get("sets", {})
        if stated is None or not re.search(entry.get("like", ""), str(stated)):
            continue
        added = {key: value for key, value in sets.items() if key not in flat}
        flat |= added
        if "says" in entry and (added or not sets):
            yield entry["says"]
    pattern = flat.get("hybrid_layer_pattern")
    if isinstance(pattern, str) and isinstance(hidden := flat.get("hidden_size"), int):
        flat.setdefault("num_layers", len(pattern))
        if type(width := flat.get("mamba_head_dim")) is int and width:
            flat.setdefault("mamba_num_heads", 2 * hidden // width)


def _refuse_others(
    table: SettingsTable, flat: Mapping[str, Any], document: str, *, is_layout: bool
) -> None:
    """Raise where *flat* has a key that says what no workload, or no layout, can say."""

    def is_meant(entry: Mapping[str, Any], value: Any) -> bool:
        is_refused = value in entry["values"] if "values" in entry else value not in _OFF
        return is_refused and not ("unless" in entry and re.match(entry["unless"], str(value)))

    for entry in table.refused:
        is_model = entry["part"] == "model"
        if (is_layout and is_model) or any(map(flat.get, entry.get("but", "").split("|"))):
            continue
        key = next((one for one in entry["keys"] if is_meant(entry, flat.get(one))), None)
        if key is not None:
            hint = "Give the model with --workload and this file with --layout-from."
            hint = hint if is_model else f"Take {key} out to predict without it."
            raise WorkloadError(f"{document}: {key} says that it {entry['why']}. {hint}")


def _add_vocabulary(table: SettingsTable, flat: dict[str, Any]) -> Iterator[str]:
    """Put the size of a well-known tokenizer into *flat* where none is stated, and say so."""
    if any(flat.get(key) is not None for key in ("vocab_size", "padded_vocab_size")):
        return
    words = [str(flat[key]) for key in _TOKENIZER if key in flat]
    for word in [*(["GPT2BPETokenizer"] if flat.get("merge_file") else ()), *words]:
        # `Llama-3-8B` names llama3, `llama-30b` does not.
        found = [
            known
            for known in table.tokenizers
            if re.search("[^a-z0-9]*".join(known) + r"(?!\.?[0-9b])", word.lower())
        ]
        if found:
            flat["vocab_size"] = table.tokenizers[max(found, key=len)]
            yield f"model.vocab: {flat['vocab_size']:,} is the vocabulary of {word}."
            return


def _finish_batch(values: dict[str, Any], fields: FieldReader, table: SettingsTable) -> None:
    """Bytes of a bucket, and the batch of a data-parallel rank where none of the job is stated."""
    count = values.get("bucket:elements")
    if isinstance(count, int | float):
        usual = values.get("training.precision", "fp32") if table.stack == "deepspeed" else "fp32"
        size = DType(values.get("training.gradient_dtype", usual)).size_bytes
        values["training.bucket_size"] = f"{int(count * size)} B"
    packed = fields.content.get("max_tokens_per_gpu")
    if packed and packed == values.get("sequence_length"):
        values["sequence_length"] = packed * values.get("parallel.cp", 1)
    if "batch" not in values and (prompts := values.get("batch:prompts")):
        samples = prompts * values.get("batch:samples", 1)
        values["batch"] = samples // values.get("batch:steps", 1)
    of_replica = values.pop("replica_batch", None)
    if "batch" in values or "batch" in fields.given or of_replica is None:
        return
    values["replica_batch"] = of_replica * values.get("replica_batch:times", 1)
    key, said = Source.parse(table.reads["batch"]).keys[0], f"{values['replica_batch']} per replica"
    fields.uses.append(FieldUse(key, Use.DEFAULTED, "batch", said))


def _finish_megatron(values: dict[str, Any], fields: FieldReader) -> None:
    """What several of Megatron's arguments decide together about the layout."""
    for target, part in (
        ("training.offload_optimizer", "offload:share"), ("training.compute", "compute:recipe"),
    ):  # fmt: skip
        if values.get(target) in (1.0, "fp8"):
            values[target] = values.get(part, values[target])
    layers, of_stage = fields.content.get("num_layers"), values.get("interleaving:layers")
    if of_stage and isinstance(layers, int):
        values["parallel.interleaving"] = max(1, layers // values.get("parallel.pp", 1) // of_stage)
    kind = values.get("dispatcher:type")
    if kind and fields.content.get("num_experts", 1) != 1:
        backend = values.get("dispatcher:backend", kind)
        values["parallel.dispatcher"] = backend if kind == "deepep" else kind
    recompute, count = values.get("training.recompute"), values.get("recompute:layers")
    if recompute == "attention" and (parts := values.get("recompute:parts")):
        values["training.recompute"] = "none"
        values["training.recompute_modules"] = re.findall(r"\w+", str(parts))
    is_block = recompute == "full" and values.get("recompute:method") == "block"
    if is_block and count and isinstance(layers, int):
        stages = values.get("parallel.pp", 1) * values.get("parallel.interleaving", 1)
        values["training.recompute_fraction"] = min(1.0, count * stages / layers)


def _finish_stages(values: dict[str, Any], fields: FieldReader) -> None:
    """Layers of every virtual stage, where the ends have others or a pattern states them."""
    ends = [values.get(f"stages:{part}") for part in ("first", "last")]
    pp, chunks = values.get("parallel.pp", 1), values.get("parallel.interleaving", 1)
    layers = fields.content.get("num_layers")
    counts: list[int] = []
    if pattern := values.get("stages:layout"):
        values["parallel.stage_layers"] = counts = _layers_of_stages(pattern)
        values["parallel.interleaving"] = chunks = max(1, len(counts) // pp)
    elif any(ends) and pp > 1 and isinstance(layers, int):
        inner, left = pp - 2 + ends.count(None), layers - sum(one or 0 for one in ends)
        first, last = ([one] if one is not None else [] for one in ends)
        counts = [*first, *[left // max(inner, 1)] * inner, *last]
        values["parallel.stage_layers"] = [one // chunks for one in counts] * chunks
    is_uneven = not pattern and any(one % chunks for one in counts)
    if counts and isinstance(layers, int) and (sum(counts) != layers or is_uneven):
        fields.faults.add(
            "pipeline_model_parallel_layout" if pattern else "decoder_first_pipeline_num_layers",
            f"must place {layers} layers, in equal stages: {pp} of {chunks} parts, got {counts}",
        )


def _layers_of_stages(pattern: Any) -> list[int]:
    """The layers of each virtual stage in *pattern*: `Et*3|(tt|)*29,m|L`, or lists of words."""
    if isinstance(pattern, list):
        return [stage.count("decoder") for stage in pattern]
    words = re.sub(r"[\s,]", "", str(pattern))
    # No stage has thousands of layers; the rest does not add up to those of the model.
    words = re.sub(r"\d{4,}", "0", words)
    for group in (r"\(([^()]*)\)\*(\d+)", r"(\w)\*(\d+)"):
        words = re.sub(group, lambda match: match[1] * int(match[2]), words)
    return [stage.count("t") for stage in words.split("|")]


def _finish_model(values: dict[str, Any], fields: FieldReader, table: SettingsTable) -> None:
    """What several of Megatron's arguments decide together about the model."""
    content, hidden = fields.content, values.get("model.hidden")
    fields.note("group_query_attention", "multi_latent_attention")
    if "model.ffn" not in values and isinstance(hidden, int):
        # Megatron's own default: of a gated network two thirds, in whole blocks of 64.
        is_gated = values.get("model.gated_ffn")
        values["model.ffn"] = 4 * hidden * 2 // 3 // 64 * 64 if is_gated else 4 * hidden
    if content.get("group_query_attention"):
        values.setdefault("model.kv_heads", 1)
    elif {"swiglu", "group_query_attention"} & content.keys() and "model.kv_heads" in values:
        fault = "has no effect without group_query_attention; state that, or take it out"
        fields.faults.add("num_query_groups", fault)
    values["model.dropout"] = bool(values.get("model.dropout"))
    length, share = values.get("sequence_length"), values.get("masked_tokens:share")
    if "model.head" in values and isinstance(length, int) and isinstance(share, int | float):
        values["masked_tokens"] = max(1, round(share * length))
    if content.get("multi_latent_attention"):
        latent = {"head_dim": 128, "kv_lora_rank": 512, "rope_dim": 64}
        for key in (*latent, "q_lora_rank", "value_dim"):
            values[f"model.{key}"] = values.get(f"model.latent:{key}", latent.get(key))
    if "model.window" in values:
        first = re.search(r"\d+", str(values["model.window"]))
        values["model.window"] = int(first[0]) if first else None
    if isinstance(layers := values.get("model.layers"), int) and layers <= MOST_LAYERS:
        _finish_layers(values, _networks(values, layers, fields), fields, table)


def _networks(values: dict[str, Any], layers: int, fields: FieldReader) -> list[str]:
    """The network of each of so many *layers*.

    Which have experts is a number, one layer in so many, or a list such as `[0]*3+[1]*58`.
    """
    if values.get("model.experts", 1) == 1:
        for name in ("experts", "top_k", "moe_ffn"):
            values.pop(f"model.{name}", None)
        return ["dense"] * layers
    shared, width = values.get("model.shared_experts:width"), values.get("model.moe_ffn")
    values["model.shared_experts"] = fields.count_shared(
        "moe_shared_expert_intermediate_size", shared, width or values.get("model.ffn")
    )
    stated = values.get("model.experts:pattern", 1)
    found = work_out(stated) if isinstance(stated, str) else stated
    if isinstance(found, int):
        found = [int(found > 0 and layer % found == 0) for layer in range(layers)]
    if not isinstance(found, list) or {*map(str, found)} - _NETWORKS.keys():
        fault = f"must be a number or like ([0]*3+[1]*58), got {quote(stated)}"
        fields.faults.add("moe_layer_freq", fault)
        found = []
    return [_NETWORKS[str(one)] for one in found[:layers]]


def _finish_layers(
    values: dict[str, Any], networks: list[str], fields: FieldReader, table: SettingsTable
) -> None:
    """What layers are, where they differ, as a pattern."""
    latent, window = values.get("model.kv_lora_rank"), values.get("model.window")
    usual = "latent" if latent else "windowed" if window else "full"
    rules = (one for one in table.mixers if fields.find(one["when"]))
    mixers = [usual] * len(networks)
    if (rule := next(rules, None)) is not None:
        mixers = layer_words(fields, rule, len(networks), {}) or mixers
        if values.get("parallel.cp", 1) > 1:
            # States pass over whole sequences of some heads.
            values["parallel.cp_kind"] = "all_to_all"
    if len({*networks}) > 1 or {*mixers} - {usual}:
        values["model.pattern"] = pattern_of(mixers, networks)


def _finish_torchtitan(values: dict[str, Any], fields: FieldReader) -> None:
    replicas, shards = values["sharding:replicas"], values.get("sharding:shards", -1)
    reshard, stages = values["sharding:reshard"], values.get("parallel.pp", 1)
    # Weights stay gathered between forward and backward; pipelines have that by default.
    keeps = reshard == "never" or (reshard == "default" and stages > 1)
    if shards != 1 and replicas > 1:
        values["parallel.sharding"] = "hsdp"
        values["parallel.shard_group"] = shards if shards > 1 else None
    else:
        values["parallel.sharding"] = "none" if shards == 1 else "zero2" if keeps else "zero3"
    if stages == 1:
        # Only pipelines divide what a rank gets for a step.
        values["parallel.micro_batch"] = values.get("replica_batch")
        values["parallel.schedule"] = values["parallel.interleaving"] = None
    every = str(values["recompute:option"])
    if not (every == "op" or (every.isdigit() and int(every))):
        fault = f"must be op or a number of layers, got {quote(every)}"
        fields.faults.add("activation_checkpoint.selective_ac_option", fault)
    if 0 in (replicas, shards):
        fields.faults.add("parallelism", "must have degrees from 1, or -1 for what is left, got 0")
    if values.get("training.recompute") == "ops" and every.isdigit():
        values["training.recompute"] = "full"
        values["training.recompute_fraction"] = 1 / max(1, int(every))


def _find_flavor(table: SettingsTable, fields: FieldReader) -> dict[str, Any]:
    """The model of that name and flavor; torchtitan keeps shapes in its code."""
    model, flavor = (str(fields.content.get(f"model.{key}")) for key in ("name", "flavor"))
    entry = table.flavors.get(model, {}).get(flavor)
    if entry is None:
        known = "; ".join(f"{name}: {', '.join(some)}" for name, some in table.flavors.items())
        raise WorkloadError(
            f"{fields.document}: model.flavor must be one whose shape is known ({known}), got "
            f"{model} {flavor}: torchtitan keeps shapes in its code. Give the model with "
            "--workload and this file with --layout-from."
        )
    fields.note("model.name", "model.flavor", target="model")
    others = dict(entry)
    shape: dict[str, Any] = load_yaml(SPEC_FOLDER / f"{others.pop('like')}.yaml")["model"]
    return shape | others
