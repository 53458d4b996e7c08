"""Settings of training programs: Megatron-LM and NeMo, torchtitan, DeepSpeed.

They state the layout and how a model is trained; most state the model, too. `settings.yaml` says
which key is which field. What only the running program knows is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    REPEATED,
    FieldReader,
    FieldUse,
    Source,
    Use,
    default_sentence,
    unknown_keys,
)
from perfmodel.extensions.formats.models.layer_kinds import layer_words, pattern_of
from perfmodel.workloads.catalog import SPEC_FOLDER

TABLE = Path(__file__).with_name("settings.yaml")
_GATES = ("swiglu", "geglu", "reglu")
_LAYOUT = ("parallel", "training")
_DECIDING = (
    "parallel.sharding:fsdp", "training.precision:trainer", "training.offload_optimizer:share",
)  # fmt: skip
"""Parts that replace what switches say of their field; without a switch they say nothing."""
_OFF = (None, False, 0, "none", "")
_CONVERTERS = {
    "float8": "fp8", "quantize.linear.float8": "fp8", "quantize.linear.mx": "mxfp8",
    "Float8LinearConverter": "fp8", "MXFP8LinearConverter": "mxfp8",
    "NVFP4LinearConverter": "nvfp4",
}  # fmt: skip
"""The number format of GEMMs by the converter of torchtitan that brings it."""
_MIXED = {"mxfp8": "mxfp8", "nvfp4": "nvfp4", "subchannel": "fp8_block", "fp8": "fp8"}
"""The same by a part of the name of Megatron-Bridge's `mixed_precision`."""
_REFERENCE = re.compile(r"\$\{\.*([a-z_][\w.]*)\}")
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}")
# The section of a tokenizer is merged, so its `model` and `type` have no prefix.
_TOKENIZER = ("tokenizer_type", "tokenizer_model", "type", "tokenizer_name_or_path", "model",
              "restore_from_path", "run.name", "name")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SettingsTable(Form):
    """The fields of one program; `settings.yaml` describes the keys."""

    kind: str
    stack: str
    merged: tuple[str, ...]
    reads: Mapping[str, str]
    words: Mapping[str, Mapping[str, Any]]
    switches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unstated: tuple[Any, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[Mapping[str, Any], ...] = ()
    ignored: tuple[str, ...] = ()
    tokenizers: Mapping[str, int] = field(default_factory=dict)
    mixers: tuple[Mapping[str, Any], ...] = ()
    implied: tuple[Mapping[str, Any], ...] = ()
    left_out_if: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    flavors: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


@cache
def load_table(program: str) -> SettingsTable:
    """The table of *program*."""
    tables = load_yaml(TABLE)
    entry = dict(tables[program])
    entry = {**tables.get(entry.pop("extends", ""), {}), **entry}
    return read_mapping(SettingsTable, entry, document=TABLE.name)


def flatten(
    content: Mapping[str, Any], merged: Sequence[str], repeated: list[str]
) -> dict[str, Any]:
    """*content* without levels: keys of *merged* sections alone, others as `section.key`.

    A reference to another key of the file is replaced by the value there, and a product of such
    by its value. *repeated* gets the keys of several sections that differ.
    """
    flat: dict[str, Any] = {}

    def add(prefix: str, mapping: Mapping[str, Any]) -> None:
        for key, value in mapping.items():
            name = str(key).removeprefix("--").replace("-", "_")
            if isinstance(value, Mapping):
                inner = "" if name.lower() in merged else f"{prefix}{name}."
                add(inner, value)
            else:
                name = f"{prefix}{name}"
                if flat.setdefault(name, value) != value:
                    repeated.append(name)
                flat[name] = value

    add("", content)
    for key, value in flat.items():
        if isinstance(value, str) and "${" in value:
            flat[key] = _resolve(value, flat)
    return flat


def _resolve(text: str, flat: Mapping[str, Any]) -> Any:
    """What the references in *text* stand for; the text where something stays open."""

    def find(path: str, otherwise: str) -> Any:
        return flat.get(path, flat.get(path.rpartition(".")[2], otherwise))

    whole = _REFERENCE.fullmatch(text)
    if whole is not None:
        return find(whole[1], text)
    inner = _REFERENCE.sub(lambda match: str(find(match[1], match[0])), text)
    numbers = _PRODUCT.fullmatch(inner)
    return int(numbers[1]) * int(numbers[2]) if numbers is not None else text


@dataclass(slots=True)
class SettingsReader:
    """Reads one file by the table of its program; *is_layout* leaves the model out."""

    table: SettingsTable
    fields: FieldReader
    is_layout: bool = False
    unstated: Collection[str] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """The fields of a workload, by their dotted names."""
        for target, source in self.table.reads.items():
            if self.is_layout and target.startswith("model."):
                continue
            wanted = Source.parse(source)
            if self.is_layout and wanted.is_needed:
                wanted = Source(wanted.keys, None)
            value = self.fields.read(target, wanted, self.table.hints.get(target, ""))
            if value is not None:
                self.values[target] = self._translate(target, value, wanted)
        for target, keys in self.table.switches.items():
            if not (self.is_layout and target.startswith("model.")):
                self._switch(target, keys)
        return self.values

    def _translate(self, target: str, value: Any, source: Source) -> Any:
        words = self.table.words.get(target)
        if words is None:
            return value
        word = words.get(str(value))
        if word is None and target not in self.fields.given:
            known = ", ".join(map(str, words))
            self.fields.faults.add(source.keys[0], f"must be one of {known}, got {quote(value)}")
        return word

    def _switch(self, target: str, keys: Mapping[str, Any]) -> None:
        for key, meaning in keys.items():
            stated = self.fields.content.get(key)
            if key == "unless" or stated is None:
                continue
            self.fields.uses.append(FieldUse(key, Use.READ, target, stated))
            if meaning is None:
                self.values[target] = stated
            elif stated is True or "$" in str(stated):
                # What follows a flag in a script may be a list of further arguments.
                self.values[target] = meaning
            elif stated is not False:
                fault = f"must be true or false, got {quote(stated)}"
                self.fields.faults.add(key, fault)
        if not any(key in self.fields.content for key in keys):
            # Each of them decides alone.
            words = "/".join(key for key in keys if key != "unless")
            self.fields.uses.append(FieldUse(words, Use.DEFAULTED, target, keys.get("unless")))
        if "unless" in keys and not set(self.unstated) & keys.keys():
            self.values.setdefault(target, keys["unless"])


def read_settings(
    program: str,
    content: dict[str, Any],
    *,
    document: str,
    name: str,
    given: Collection[str] = (),
    is_layout: bool = False,
) -> tuple[dict[str, Any], tuple[FieldUse, ...]]:
    """The workload, or the layout alone, in the settings of *program*, and the use of fields."""
    table = load_table(program)
    repeated = list(content.pop(REPEATED, ()))
    flat = flatten(content, table.merged, repeated)
    _refuse_others(table, flat, document, is_layout=is_layout)
    assumed = _imply(table, flat)
    assumed += [] if is_layout else _add_vocabulary(table, flat)
    _count_hybrid_layers(flat)
    left_out = table.left_out_if.items()
    assumed += [said[str(flat[key])] for key, said in left_out if str(flat.get(key)) in said]
    unstated = [key for key, value in flat.items() if value in table.unstated]
    stated = {key: value for key, value in flat.items() if key not in unstated}
    reader = SettingsReader(table, FieldReader(document, stated, given), is_layout, unstated)
    values = reader.read()
    ignored = [key for key in stated if _matches(table.ignored, key)]
    reader.fields.check_spelling(_known_keys(table), ignored)
    # What follows counts with values of the right kind.
    reader.fields.faults.check(WorkloadError)
    base: dict[str, Any] = {}
    if program == "torchtitan":
        _finish_torchtitan(values)
        if not is_layout:
            base = _find_flavor(table, reader.fields)
    elif program == "deepspeed":
        _finish_bucket(values, values.get("training.precision", "fp32"))
    else:
        _finish_megatron(values, reader.fields, table)
    _finish_batch(values, reader.fields, table)
    uses = reader.fields.finish(ignored)
    assumed += default_sentence(uses)
    if repeated:
        assumed.append(f"Stated more than once, the last counts: {', '.join(repeated)}.")
    workload: dict[str, Any] = {
        "name": name,
        "family": "transformer",
        "description": f"{table.kind} in {document}.",
        "source": f"{document}, read by its fields.",
        "stack": table.stack,
        "assumed": assumed,
        "unknown_keys": unknown_keys(uses),
    }
    for section in ("model", *_LAYOUT):
        workload[section] = dict(base.get(section, {}))
    for target, value in values.items():
        section, dot, key = target.partition(".")
        if dot:
            workload[section][key] = value
        else:
            workload[target] = value
    return workload, uses


def _imply(table: SettingsTable, flat: dict[str, Any]) -> list[str]:
    """Put into *flat* what other keys imply, where it is not stated; what is assumed by it."""
    found = []
    for entry in table.implied:
        stated = flat.get(entry["key"])
        if stated is not None and re.search(entry.get("like", ""), str(stated)):
            added = {key: value for key, value in entry["sets"].items() if key not in flat}
            flat |= added
            found += [entry["says"]] if added else []
    return found


def _count_hybrid_layers(flat: dict[str, Any]) -> None:
    """Put into *flat* what a pattern of letters says: layers, and as Megatron's default heads."""
    pattern = flat.get("hybrid_layer_pattern")
    if pattern and isinstance(hidden := flat.get("hidden_size"), int):
        flat.setdefault("num_layers", len(pattern))
        flat.setdefault("mamba_num_heads", 2 * hidden // flat["mamba_head_dim"])


def _matches(patterns: Sequence[str], key: str) -> bool:
    return any(re.search(pattern, key) for pattern in patterns)


def _known_keys(table: SettingsTable) -> set[str]:
    sources = [Source.parse(source).keys for source in table.reads.values()]
    sources += [tuple(keys) for keys in table.switches.values()]
    sources += [tuple(entry["keys"]) for entry in table.refused]
    return {key for keys in sources for key in keys}


def _refuse_others(
    table: SettingsTable, flat: Mapping[str, Any], document: str, *, is_layout: bool
) -> None:
    """Raise where *flat* has a key that says what no workload, or no layout, can say."""
    for entry in table.refused:
        if is_layout and entry["part"] == "model":
            continue
        if any(map(flat.get, entry.get("but", "").split("|"))):
            continue
        meant, allowed = entry.get("values"), entry.get("unless")
        key = next(
            (
                one
                for one in entry["keys"]
                if (flat.get(one) in meant if meant else flat.get(one) not in _OFF)
                and not (allowed and re.match(allowed, str(flat[one])))
            ),
            None,
        )
        if key is not None:
            hint = " Give the model with --workload and this file with --layout-from."
            raise WorkloadError(
                f"{document}: {key} says that it {entry['why']}."
                + (hint if entry["part"] == "model" else f" Take {key} out to predict without it.")
            )


def _add_vocabulary(table: SettingsTable, flat: dict[str, Any]) -> Iterator[str]:
    """Put the size of a well-known tokenizer into *flat* where none is stated, and say so."""
    if any(flat.get(key) is not None for key in ("vocab_size", "padded_vocab_size")):
        return
    words = [str(flat[key]) for key in _TOKENIZER if key in flat]
    if flat.get("merge_file"):
        words.insert(0, "GPT2BPETokenizer")
    for word in words:
        known = max((one for one in table.tokenizers if _names(word, one)), key=len, default="")
        if known:
            flat["vocab_size"] = table.tokenizers[known]
            yield f"model.vocab: {flat['vocab_size']:,} is the vocabulary of {word}."
            return


def _names(word: str, known: str) -> bool:
    """Whether *word* is about *known*: `Llama-3-8B` names llama3, `llama-30b` does not."""
    pattern = "[^a-z0-9]*".join(known) + r"(?!\.?[0-9b])"
    return re.search(pattern, word.lower()) is not None


def _finish_batch(values: dict[str, Any], fields: FieldReader, table: SettingsTable) -> None:
    """Keep the batch of a data-parallel rank only where the file states none of the whole job."""
    packed = fields.content.get("max_tokens_per_gpu")
    if packed and packed == values.get("sequence_length"):
        values["sequence_length"] = packed * values.get("parallel.cp", 1)
    if "batch" not in values and (rollouts := values.get("batch:prompts")):
        samples = rollouts * values.get("batch:samples", 1)
        values["batch"] = samples // values.get("batch:steps", 1)
    for part in ("prompts", "samples", "steps"):
        values.pop(f"batch:{part}", None)
    of_replica, times = values.pop("replica_batch", None), values.pop("replica_batch:times", 1)
    if "batch" in values or "batch" in fields.given or of_replica is None:
        return
    values["replica_batch"] = of_replica * times
    key = Source.parse(table.reads["batch"]).keys[0]
    fields.uses.append(FieldUse(key, Use.DEFAULTED, "batch", f"{of_replica * times} per replica"))


def _finish_megatron(values: dict[str, Any], fields: FieldReader, table: SettingsTable) -> None:
    """What several of Megatron's arguments decide together."""
    if str(fields.content.get("optim.name", "")).startswith(("distributed", "mcore_dist")):
        values["parallel.sharding"] = "zero1"
    for part in _DECIDING:
        target, value = part.partition(":")[0], values.pop(part, None)
        if value is not None and target in values:
            values[target] = value
    _finish_formats(values)
    layers, pp = fields.content.get("num_layers"), values.get("parallel.pp", 1)
    of_stage = values.pop("parallel.interleaving:layers", None)
    if of_stage and isinstance(layers, int):
        values["parallel.interleaving"] = max(1, layers // pp // of_stage)
    _finish_stages(values, layers, fields)
    _finish_recomputation(values, layers)
    kind, backend = (
        values.pop(f"parallel.dispatcher:{part}", None) for part in ("type", "backend")
    )
    if kind and fields.content.get("num_experts", 1) != 1:
        values["parallel.dispatcher"] = (backend or kind) if kind == "deepep" else kind
    if values.get("parallel.tp", 1) == 1:
        values["parallel.sequence_parallel"] = False
    if any(key.startswith("model.") for key in values):
        _finish_model(values, fields, table)
    for key in ("group_query", "latent", "gate_word"):
        values.pop(key, None)


def _finish_formats(values: dict[str, Any]) -> None:
    """The format of GEMMs, and what is captured."""
    recipe = values.pop("training.compute:recipe", None) or "fp8"
    if values.pop("training.compute:fp8", None):
        values["training.compute"] = recipe
    mixed = str(values.pop("training.compute:mixed", ""))
    if found := next((one for word, one in _MIXED.items() if word in mixed), None):
        values["training.compute"] = found
    if values.pop("training.gradient_dtype:fp32", None) is False:
        values["training.gradient_dtype"] = "bf16"
    _finish_bucket(values, "fp32")
    if values.pop("training.compute:fp4", None):
        values["training.compute"] = "nvfp4"
    if "full_iteration" in str(values.pop("training.cuda_graph:scope", "")):
        values["training.cuda_graph"] = "full"


def _finish_bucket(values: dict[str, Any], format_of_gradients: str) -> None:
    """The bytes of a bucket that is stated in elements."""
    count = values.pop("training.bucket_size:elements", None)
    if count:
        size = DType(values.get("training.gradient_dtype", format_of_gradients)).size_bytes
        values["training.bucket_size"] = f"{int(count * size)} B"


def _finish_recomputation(values: dict[str, Any], layers: Any) -> None:
    """What is recomputed: parts of all layers, or so many layers of every virtual stage."""
    parts, method, count = (
        values.pop(f"training.recompute:{part}", None) for part in ("parts", "method", "layers")
    )
    if values.pop("checkpointing", False):
        values.setdefault("training.recompute", "attention")
    recompute = values.get("training.recompute")
    if recompute == "attention" and parts:
        values["training.recompute"] = "none"
        values["training.recompute_modules"] = re.findall(r"\w+", str(parts))
    if recompute == "full" and method == "block" and count and isinstance(layers, int):
        stages = values.get("parallel.pp", 1) * values.get("parallel.interleaving", 1)
        values["training.recompute_fraction"] = min(1.0, count * stages / layers)


def _finish_stages(values: dict[str, Any], layers: Any, fields: FieldReader) -> None:
    """Layers of every virtual stage, where the ends have others or a pattern states them."""
    first, last, pattern = (
        values.pop(f"parallel.stage_layers:{part}", None) for part in ("first", "last", "layout")
    )
    pp, chunks = values.get("parallel.pp", 1), values.get("parallel.interleaving", 1)
    if pattern:
        values["parallel.stage_layers"] = counts = _layers_of_stages(pattern)
        values["parallel.interleaving"] = max(1, len(counts) // pp)
    elif (first or last) and pp > 1 and isinstance(layers, int):
        ends = [first, last]
        left = layers - sum(one or 0 for one in ends)
        inner = pp - sum(one is not None for one in ends)
        counts = [left // max(inner, 1)] * inner
        counts = ([] if first is None else [first]) + counts + ([] if last is None else [last])
        if sum(counts) != layers or any(one % chunks for one in counts):
            fields.faults.add(
                "decoder_first_pipeline_num_layers",
                f"must leave equal stages: {layers} layers over {pp} stages of {chunks} parts",
            )
        values["parallel.stage_layers"] = [one // chunks for one in counts] * chunks


def _layers_of_stages(pattern: Any) -> list[int]:
    """The layers of each virtual stage in *pattern*: `Et*3|(tt|)*29,m|L`, or lists of words."""
    if isinstance(pattern, list):
        return [stage.count("decoder") for stage in pattern]
    words = re.sub(r"[\s,]", "", str(pattern))
    for group in (r"\(([^()]*)\)\*(\d+)", r"(\w)\*(\d+)"):
        words = re.sub(group, lambda match: match[1] * int(match[2]), words)
    return [stage.count("t") for stage in words.split("|")]


def _finish_model(values: dict[str, Any], fields: FieldReader, table: SettingsTable) -> None:
    if "gate_word" in values:
        values["model.gated_ffn"] = any(gate in str(values["gate_word"]) for gate in _GATES)
    hidden, is_gated = values.get("model.hidden"), values.get("model.gated_ffn")
    if "model.ffn" not in values and hidden:
        # Megatron's own default: of a gated network two thirds, in whole blocks of 64.
        values["model.ffn"] = 4 * hidden * 2 // 3 // 64 * 64 if is_gated else 4 * hidden
    is_arguments = "swiglu" in fields.content or "group_query_attention" in fields.content
    if values.get("group_query"):
        values.setdefault("model.kv_heads", 1)
    elif is_arguments:
        values.pop("model.kv_heads", None)
    values["model.dropout"] = bool(values.get("model.dropout"))
    share = values.pop("masked_tokens:share", 0.15)
    if "model.head" in values and "sequence_length" in values:
        values["masked_tokens"] = max(1, round(share * values["sequence_length"]))
    _finish_latents(values)
    if "model.window" in values:
        values["model.window"] = _first_number(values["model.window"])
    layers = values.get("model.layers")
    networks = ["dense"] * (layers if isinstance(layers, int) else 0)
    if values.get("model.experts", 1) == 1:
        for key in ("experts", "top_k", "moe_ffn", "shared_experts:width", "dense_layers:pattern"):
            values.pop(f"model.{key}", None)
    else:
        networks = _finish_experts(values, fields, len(networks))
    if networks:
        _finish_layers(values, networks, fields, table)


def _finish_latents(values: dict[str, Any]) -> None:
    if not values.get("latent"):
        for key in ("kv_lora_rank", "q_lora_rank", "rope_dim", "value_dim"):
            values.pop(f"model.{key}", None)
    else:
        values["model.head_dim"] = values.get("model.head_dim:latent", 128)
        values.setdefault("model.kv_lora_rank", 512)
        values.setdefault("model.rope_dim", 64)
    values.pop("model.head_dim:latent", None)


def _finish_experts(values: dict[str, Any], fields: FieldReader, layers: int) -> list[str]:
    width = values.get("model.moe_ffn") or values.get("model.ffn")
    shared = values.pop("model.shared_experts:width", None)
    if shared and width:
        if shared % width:
            fields.faults.add(
                "moe_shared_expert_intermediate_size",
                f"must be a multiple of the width of an expert {width}, got {shared}",
            )
        values["model.shared_experts"] = shared // width
    return _expert_layers(values.pop("model.dense_layers:pattern", 1), layers, fields)


def _expert_layers(stated: Any, layers: int, fields: FieldReader) -> list[str]:
    """The network of each of so many *layers*, where *stated* says which have experts.

    It is a number, one layer in so many, or a list such as `[0]*3+[1]*58`.
    """
    terms = re.sub(r"[\s()]", "", str(stated))
    if isinstance(stated, int):
        is_expert = ["1" if stated and layer % stated == 0 else "0" for layer in range(layers)]
    elif re.fullmatch(r"(\[[01](,[01])*\](\*\d+)?\+?)+", terms):
        parts = re.findall(r"\[([01,]+)\](?:\*(\d+))?", terms)
        is_expert = [one for ones, times in parts for one in ones.split(",") * int(times or 1)]
    else:
        fields.faults.add(
            "moe_layer_freq", f"must be a number or like ([0]*3+[1]*58), got {quote(stated)}"
        )
        return []
    return ["experts" if one == "1" else "dense" for one in is_expert[:layers]]


def _finish_layers(
    values: dict[str, Any], networks: list[str], fields: FieldReader, table: SettingsTable
) -> None:
    """What layers are where they differ: dense ones first, or a pattern."""
    latent, window = values.get("model.kv_lora_rank"), values.get("model.window")
    usual = "latent" if latent else "windowed" if window else "full"
    rule = next(
        (one for one in table.mixers if any(map(fields.content.get, one["when"].split("|")))), None
    )
    mixers = [usual] * len(networks)
    if rule is not None:
        mixers = layer_words(fields, rule, len(networks), {}) or mixers
    dense = networks.index("experts") if "experts" in networks else len(networks)
    if rule is not None and values.get("parallel.cp", 1) > 1:
        # States pass over whole sequences of some heads.
        values["parallel.cp_kind"] = "all_to_all"
    if mixers != [usual] * len(networks) or "dense" in networks[dense:]:
        values["model.pattern"] = pattern_of(mixers, networks)
    elif 0 < dense < len(networks):
        values["model.dense_layers"] = dense


def _first_number(value: Any) -> int | None:
    found = re.search(r"\d+", str(value))
    return int(found[0]) if found else None


def _finish_torchtitan(values: dict[str, Any]) -> None:
    replicas, shards = (
        values.pop("parallel.sharding:replicas", 1),
        values.pop("parallel.sharding:shards", -1),
    )
    reshard, stages = values.pop("parallel.sharding:reshard"), values.get("parallel.pp", 1)
    # Weights stay gathered between forward and backward; pipelines have that by default.
    keeps = reshard == "never" or (reshard == "default" and stages > 1)
    if shards == 1:
        values["parallel.sharding"] = "none"
    elif replicas > 1:
        values["parallel.sharding"] = "hsdp"
        if shards > 1:
            values["parallel.shard_group"] = shards
    else:
        values["parallel.sharding"] = "zero2" if keeps else "zero3"
    if values.get("parallel.tp", 1) == 1:
        values["parallel.sequence_parallel"] = False
        values.pop("parallel.tp_overlap", None)
    if stages == 1:
        # Only pipelines divide what a rank gets for a step.
        values["parallel.micro_batch"] = values.get("replica_batch")
        values.pop("parallel.schedule", None)
    elif values.get("parallel.schedule") == "interleaved":
        values.pop("parallel.schedule")
        values["parallel.interleaving"] = 2
    every = values.pop("training.recompute_fraction:option")
    if values.get("training.recompute") == "ops" and str(every).isdigit():
        values["training.recompute"] = "full"
        values["training.recompute_fraction"] = 1 / max(1, int(every))
    converters = re.findall(r"[\w.]+", str(values.pop("training.compute:converters", "")))
    for name in _CONVERTERS.keys() & set(converters):
        values["training.compute"] = _CONVERTERS[name]


def _find_flavor(table: SettingsTable, fields: FieldReader) -> dict[str, Any]:
    """The model of that name and flavor; torchtitan keeps shapes in its code."""
    model, flavor = (fields.content.get(f"model.{key}") for key in ("name", "flavor"))
    entry = table.flavors.get(str(model), {}).get(str(flavor))
    if entry is None:
        known = "; ".join(_iter_flavors(table))
        raise WorkloadError(
            f"{fields.document}: model.flavor must be one whose shape is known ({known}), got "
            f"{model} {flavor}: torchtitan keeps shapes in its code. Give the model with "
            "--workload and this file with --layout-from."
        )
    for key in ("name", "flavor"):
        value = fields.content[f"model.{key}"]
        fields.uses.append(FieldUse(f"model.{key}", Use.READ, "model", value))
    others = dict(entry)
    base = load_yaml(SPEC_FOLDER / f"{others.pop('like')}.yaml")
    return {"model": {**base["model"], **others}}


def _iter_flavors(table: SettingsTable) -> Iterator[str]:
    for name, flavors in table.flavors.items():
        yield f"{name}: {', '.join(flavors)}"
