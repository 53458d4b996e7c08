"""Models of Hugging Face: `config.json` becomes a workload, by a table per `model_type`.

The file states the shape of a model and nothing about its training: batch and sequence length are
assumed, and every assumption is in the answer. An architecture without a table is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import WorkloadError
from perfmodel.base.forms import Form, read_mapping
from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models.fields import MOST_LAYERS, FieldReader, FieldUse
from perfmodel.extensions.formats.models.layer_kinds import (
    layer_words,
    pattern_of,
    searched_blocks,
)

KIND = "Hugging Face config.json"
TABLE = Path(__file__).with_name("hugging_face.yaml")
LONGEST_ASSUMED = 4096
TOKENS_PER_BATCH = 2**20
"""What is assumed where a file says nothing: tokens of a sequence, and of a batch."""
_LANGUAGE = ("forcausallm", "forconditionalgeneration", "lmheadmodel")
_MASKED = ("formaskedlm", "forpretraining", "model")
FFN_RATIO, MASKED_SHARE = 4, 0.15
"""The width of a network that is not stated, in hidden widths, and how many tokens are masked."""
_WINDOWS = {
    "each": "layer_types",
    "is": {"sliding_attention": "windowed", "full_attention": "full",
           "every": "full", "rest": "windowed"},
    "otherwise": "windowed",
}  # fmt: skip
"""Which layers of a model with a window have it; its own rule adds to this."""
_NETWORKS = {"is": {"first": "dense", "rest": "experts"}}


@dataclass(frozen=True, slots=True)
class ArchitectureTable(Form):
    """What one `model_type` means; `hugging_face.yaml` describes the keys."""

    reads: Mapping[str, str | None]
    sets: Mapping[str, Any]
    sets_when: tuple[Mapping[str, Any], ...] = ()
    classes: tuple[str, ...] = ()
    must: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dropout: tuple[str, ...] = ()
    mixers: Mapping[str, Any] | None = None
    networks: Mapping[str, Any] | None = None
    searches_blocks: bool = False
    left_out: tuple[str, ...] = ()
    left_out_if: Mapping[str, str] = field(default_factory=dict)
    also_read: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    part: str | None = None


@cache
def load_tables() -> dict[str, ArchitectureTable]:
    """The table of every `model_type`."""
    tables: dict[str, dict[str, Any]] = {}
    # What an entry extends stands before it.
    for name, entry in load_yaml(TABLE)["model_types"].items():
        own = dict(entry)
        below = tables.get(own.pop("extends", ""), {})
        joined = {key: {**below.get(key, {}), **own.get(key, {})} for key in ("reads", "sets")}
        tables[name] = {**below, **own, **joined}
    return {
        name: read_mapping(ArchitectureTable, entry, document=TABLE.name)
        for name, entry in tables.items()
    }


def find_table(content: Mapping[str, Any], document: str) -> tuple[str, ArchitectureTable]:
    """The `model_type` that *content* states and its table; an unknown one is refused."""
    tables, name = load_tables(), content.get("model_type")
    stated = content.get("architectures")
    stated = () if stated is None else stated
    if not isinstance(stated, list | tuple) or not all(isinstance(one, str) for one in stated):
        raise WorkloadError(
            f"{document}: architectures must be a list of names, got {quote(stated)}."
        )
    if name is None:
        fitting = (one for one, table in tables.items() if _names(stated, one, table))
        name = next(fitting, None)
    table = tables.get(name) if isinstance(name, str) else None
    if table is None:
        named = str(name or ", ".join(stated) or "nothing")
        for entry in load_yaml(TABLE)["refused"]:
            if named in entry["types"]:
                raise WorkloadError(
                    f"{document}: model_type {named} is {entry['why']}. `perfmodel emulate` "
                    "predicts the script that trains it."
                )
        near = difflib.get_close_matches(named, tables, n=3) or sorted(tables)[:3]
        raise WorkloadError(
            f"{document}: model_type must be one of the {len(tables)} that are known (such as "
            f"{', '.join(near)}), got {named}. `perfmodel init workload` writes a file that "
            "describes any Transformer."
        )
    if stated and not _names(stated, str(name), table):
        raise WorkloadError(
            f"{document}: architectures must name {name} with its language head, got "
            f"{', '.join(stated)}. Other heads and models have no table: without this key, it is "
            f"taken as {name} with a language head."
        )
    return str(name), table


def _names(architectures: Sequence[str], name: str, table: ArchitectureTable) -> bool:
    """Whether one of *architectures* is the class of type *name* with its language head."""
    heads = _MASKED if "head" in table.sets else _LANGUAGE
    known = {re.sub("[^a-z0-9]", "", name.lower()).removesuffix("text"), *table.classes}
    known |= {word + head for word in known for head in heads}
    return any(one.replace("_", "").lower() in known for one in architectures)


def read_config(
    content: Mapping[str, Any], *, document: str, name: str, given: Collection[str] = ()
) -> tuple[dict[str, Any], list[FieldUse]]:
    """The workload in the *content* of a config.json, called *name*, and the use of its fields."""
    model_type, table = find_table(content, document)
    defaults = load_yaml(TABLE)
    left_out: list[str] = []
    if table.part is not None:
        left_out.append(f"Only {table.part} is trained; the other parts of the model are left out.")
        whole, content = content, content.get(table.part) or content
        if not isinstance(content, Mapping):
            raise WorkloadError(
                f"{document}: {table.part} must be a mapping, got {quote(content)}."
            )
        # A part may be of another kind, so its own type decides; `x_text` is the text of `x`.
        if content.get("model_type") not in (None, model_type, f"{model_type}_text"):
            _, table = find_table(content, f"{document}: {table.part}")
        # The head belongs to the whole model.
        if "tie_word_embeddings" in whole:
            content = {**content, "tie_word_embeddings": whole["tie_word_embeddings"]}
    left_out += table.left_out
    left_out += [text for key, text in table.left_out_if.items() if content.get(key)]
    reader = FieldReader(document, content, given, defaults["ignored"])
    reader.note(*table.left_out_if, *table.also_read)
    model = _read_model(reader, table)
    # What is no whole number is refused with the rest of the workload.
    longest = model.get("max_positions")
    longest = longest if isinstance(longest, int) and longest > 0 else LONGEST_ASSUMED
    length = min(longest, LONGEST_ASSUMED)
    shape = {"batch": max(1, TOKENS_PER_BATCH // length), "sequence_length": length}
    assumed = [
        f"batch: {shape['batch']:,} sequences are assumed; change it with --set batch=N.",
        f"sequence_length: {length:,} tokens are assumed; the model takes up to {longest:,}.",
        "training: bf16 and AdamW are assumed, and the file states no layout.",
    ]
    if model.get("head"):
        shape["masked_tokens"] = max(1, round(length * MASKED_SHARE))
        said = f"masked_tokens: {shape['masked_tokens']} of a sequence are assumed."
        assumed.append(said)
    workload = {
        **reader.describe(name, f"{model_type} model", [*assumed, *left_out]),
        "family": "transformer",
        **shape,
        "model": model,
        "parallel": dict(defaults["training"]["parallel"]),
        "training": {**defaults["training"]["training"], **table.training},
    }
    return workload, reader.uses


def _read_model(reader: FieldReader, table: ArchitectureTable) -> dict[str, Any]:
    """The section `model` of a workload."""
    read = {
        target: reader.read(f"model.{target}", source)
        for target, source in table.reads.items()
        if source is not None
    }
    reader.note(*table.must)
    for key, allowed in table.must.items():
        value = reader.content.get(key)
        reader.check_one_of(key, allowed[0] if value is None else value, allowed)
    if read.get("ffn") is None and read.get("hidden"):
        read["ffn"] = FFN_RATIO * read["hidden"]
    shared = read.pop("shared_ffn", None), read.get("moe_ffn")
    if None not in shared:
        read["shared_experts"] = reader.count_shared("shared_expert_intermediate_size", *shared)
    for entry in table.sets_when:
        reader.note(*entry["when"])
        stated = {key: reader.content.get(key) for key in entry["when"]}
        if all(stated[key] in (None, value) for key, value in entry["when"].items()):
            read |= entry["sets"]
    odds = [reader.read("model.dropout", key) for key in table.dropout]
    kinds = _read_kinds(reader, table, read)
    model = {**table.sets, **read, **kinds, "dropout": any(odds)}
    return {key: value for key, value in model.items() if value is not None}


def _read_kinds(
    reader: FieldReader, table: ArchitectureTable, read: Mapping[str, Any]
) -> dict[str, Any]:
    """What layers are where they differ, and their number where only that states it."""
    if table.searches_blocks:
        return {"pattern": searched_blocks(reader, read["heads"] or 1, read["hidden"] or 1)}
    blocks, count = load_yaml(TABLE)["blocks"], read.get("layers")
    if count is not None and not (type(count) is int and 0 < count <= MOST_LAYERS):
        # Refused with the rest of the workload.
        return {}
    rule, usual = table.mixers, "latent" if read.get("kv_lora_rank") else "full"
    window = read.get("window")
    if rule is None or not {"is", "otherwise"} & rule.keys():
        rule = {**_WINDOWS, **(rule or {})} if window else None
    mixers = layer_words(reader, rule or {"otherwise": usual}, count, blocks)
    if mixers is None:
        return {}
    network = "experts" if (read.get("experts") or 1) > 1 else "dense"
    rule = {**_NETWORKS, "otherwise": network, **(table.networks or {})}
    networks = layer_words(reader, rule, len(mixers), blocks) or [network] * len(mixers)
    is_alike = {*mixers} == {"windowed" if window else usual} and {*networks} == {network}
    return {"layers": len(mixers), "pattern": None if is_alike else pattern_of(mixers, networks)}
