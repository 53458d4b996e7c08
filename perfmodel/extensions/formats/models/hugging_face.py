"""Models of Hugging Face: `config.json` becomes a workload, by a table per `model_type`.

The file states the shape of a model and nothing about its training: batch and sequence length are
assumed, and every assumption is in the answer. An architecture without a table is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import WorkloadError
from perfmodel.base.forms import Form, read_mapping
from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models.fields import (
    FieldReader,
    FieldUse,
    Source,
    Use,
    default_sentence,
    unknown_keys,
)
from perfmodel.extensions.formats.models.layer_kinds import (
    Rule,
    layer_words,
    pattern_of,
    searched_blocks,
)

TABLE = Path(__file__).with_name("hugging_face.yaml")
LONGEST_ASSUMED = 4096
TOKENS_PER_BATCH = 2**20
"""What is assumed where a file says nothing: tokens of a sequence, and of a batch."""
_WINDOWS = {
    "each": "layer_types",
    "is": {"sliding_attention": "windowed", "full_attention": "full"},
}


@dataclass(frozen=True, slots=True)
class ArchitectureTable(Form):
    """What one `model_type` means; `hugging_face.yaml` describes the keys."""

    reads: Mapping[str, str | None]
    sets: Mapping[str, Any]
    sets_when: tuple[Mapping[str, Any], ...] = ()
    architectures: tuple[str, ...] = ()
    must: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    equal: tuple[str, ...] = ()
    dropout: tuple[str, ...] = ()
    windows: str | None = None
    mixers: Mapping[str, Any] | None = None
    networks: Mapping[str, Any] | None = None
    searches_blocks: bool = False
    left_out: tuple[str, ...] = ()
    left_out_if: Mapping[str, str] = field(default_factory=dict)
    also_read: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    ffn_ratio: int | None = None
    masked_share: float | None = None
    part: str | None = None


@cache
def load_tables() -> dict[str, ArchitectureTable]:
    """The table of every `model_type`."""
    entries = load_yaml(TABLE)["model_types"]
    return {
        name: read_mapping(ArchitectureTable, _extended(entries, name), document=TABLE.name)
        for name in entries
    }


def _extended(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    entry = dict(entries[name])
    base = entry.pop("extends", None)
    if base is None:
        return entry
    below = _extended(entries, base)
    merged = {**below, **entry}
    for key in ("reads", "sets"):
        merged[key] = {**below.get(key, {}), **entry.get(key, {})}
    return merged


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
        by_class = {one: key for key, table in tables.items() for one in table.architectures}
        name = next((by_class[one] for one in stated if one in by_class), None)
    table = tables.get(name) if isinstance(name, str) else None
    if table is None:
        named = name or ", ".join(map(str, stated)) or "nothing"
        _refuse_known(named, document)
        near = difflib.get_close_matches(str(named), tables, n=3) or sorted(tables)[:3]
        raise WorkloadError(
            f"{document}: model_type must be one of the {len(tables)} that are known (such as "
            f"{', '.join(near)}), got {named}. `perfmodel init workload` writes a file that "
            "describes any Transformer."
        )
    if stated and not set(stated) & set(table.architectures):
        raise WorkloadError(
            f"{document}: architectures must name one of {', '.join(table.architectures)}, "
            f"got {', '.join(map(str, stated))}. Other heads have no table: without this key, the "
            "model is taken with its language head."
        )
    return str(name), table


def _refuse_known(name: str, document: str) -> None:
    """Raise with the reason why a well-known type has no table."""
    for entry in load_yaml(TABLE)["refused"]:
        if name in entry["types"]:
            raise WorkloadError(
                f"{document}: model_type {name} is {entry['why']}. `perfmodel emulate` predicts "
                "the script that trains it."
            )


def read_config(
    content: Mapping[str, Any], *, document: str, name: str, given: Collection[str] = ()
) -> tuple[dict[str, Any], tuple[FieldUse, ...]]:
    """The workload in the *content* of a config.json, called *name*, and the use of its fields."""
    model_type, table = find_table(content, document)
    defaults = load_yaml(TABLE)
    left_out: list[str] = []
    if table.part is not None:
        left_out.append(f"Only {table.part} is trained; the other parts of the model are left out.")
        whole, content = content, content.get(table.part) or content
        # A part may be of another kind, so its own type decides; `x_text` is the text of `x`.
        if content.get("model_type") not in (None, model_type, f"{model_type}_text"):
            _, table = find_table(content, f"{document}: {table.part}")
        # The head belongs to the whole model.
        if "tie_word_embeddings" in whole:
            content = {**content, "tie_word_embeddings": whole["tie_word_embeddings"]}
    left_out += table.left_out
    left_out += [text for key, text in table.left_out_if.items() if content.get(key)]
    reader = FieldReader(document, content, given)
    model = _read_model(reader, table)
    for key in (*table.equal, *table.left_out_if, *table.also_read):
        if content.get(key) is not None:
            reader.uses.append(FieldUse(key, Use.READ, value=content[key]))
    reader.check_spelling(_known_keys(table), defaults["ignored"])
    uses = reader.finish(defaults["ignored"])
    shape, assumed = _assume_batch(model, table)
    workload = {
        "name": name,
        "family": "transformer",
        "description": f"{model_type} model of {document}.",
        "source": f"{document}, read by its fields.",
        **shape,
        "model": model,
        "parallel": dict(defaults["training"]["parallel"]),
        "training": {**defaults["training"]["training"], **table.training},
        "assumed": [*assumed, *left_out, *default_sentence(uses)],
        "unknown_keys": unknown_keys(uses),
    }
    return workload, uses


def _known_keys(table: ArchitectureTable) -> set[str]:
    """The keys that *table* asks for."""
    known = {key for text in table.reads.values() if text for key in Source.parse(text).keys}
    known |= {*table.must, *table.equal, *table.left_out_if, *table.dropout}
    return known | {key for entry in table.sets_when for key in entry["when"]}


def _read_model(reader: FieldReader, table: ArchitectureTable) -> dict[str, Any]:
    """The section `model` of a workload."""
    read = {
        target: reader.read(f"model.{target}", Source.parse(source))
        for target, source in table.reads.items()
        if source is not None
    }
    for key, allowed in table.must.items():
        reader.check_one_of(key, allowed)
    parts = {key: reader.content.get(key) for key in table.equal}
    if len({value for value in parts.values() if value is not None}) > 1:
        words = " and ".join(f"{key} {value}" for key, value in parts.items())
        reader.faults.add(table.equal[0], f"must be equal to {table.equal[1]}, got {words}")
    if read.get("ffn") is None and table.ffn_ratio and read.get("hidden"):
        read["ffn"] = table.ffn_ratio * read["hidden"]
    _count_shared(reader, read)
    kinds = _read_kinds(reader, table, read)
    odds = [reader.read("model.dropout", Source.parse(key)) for key in table.dropout]
    model = {**table.sets, **read, **_decided(reader, table), **kinds, "dropout": any(odds)}
    return {key: value for key, value in model.items() if value is not None}


def _decided(reader: FieldReader, table: ArchitectureTable) -> dict[str, Any]:
    """What the architecture decides by switches of the file."""
    found: dict[str, Any] = {}
    for entry in table.sets_when:
        stated = {key: reader.content.get(key) for key in entry["when"]}
        reader.uses += [FieldUse(key, Use.READ, value=value) for key, value in stated.items()]
        if all(stated[key] in (None, value) for key, value in entry["when"].items()):
            found |= entry["sets"]
    return found


def _count_shared(reader: FieldReader, read: dict[str, Any]) -> None:
    """Shared experts whose total width is stated, as so many of the width of one expert."""
    width, one = read.pop("shared_ffn", None), read.get("moe_ffn")
    if not width or not one:
        return
    if width % one:
        reader.faults.add(
            "shared_expert_intermediate_size",
            f"must be a multiple of moe_intermediate_size {one}, got {width}",
        )
    read["shared_experts"] = width // one


def _read_kinds(
    reader: FieldReader, table: ArchitectureTable, read: dict[str, Any]
) -> dict[str, Any]:
    """What layers are where they differ, as fields of a workload."""
    full_every, window = read.pop("full_every", None), read.pop("window", None)
    if table.searches_blocks:
        return {"pattern": searched_blocks(reader, read["heads"] or 1, read["hidden"] or 1)}
    if table.windows is not None and window is None:
        window = reader.read("model.window", Source(("sliding_window",), None))
    rule = table.mixers
    if rule is None and window and "layer_types" in reader.content:
        rule = _WINDOWS
    if rule is not None:
        of_window = {} if window is None else {"window": window}
        return of_window | _read_pattern(reader, rule, table.networks, read)
    if not window:
        return {}
    full_every = 2 if table.windows == "alternate" else full_every
    return {"window": window} | ({"full_every": full_every} if full_every else {})


def _read_pattern(
    reader: FieldReader, mixing: Rule, networking: Rule | None, read: dict[str, Any]
) -> dict[str, Any]:
    """A pattern, and the number of layers where only this states it."""
    blocks = load_yaml(TABLE)["blocks"]
    mixers = layer_words(reader, mixing, read.get("layers"), blocks)
    if mixers is None:
        return {}
    networks = ["experts" if (read.get("experts") or 1) > 1 else "dense"] * len(mixers)
    if networking is not None:
        networks = layer_words(reader, networking, len(mixers), blocks) or networks
    elif first := read.pop("dense_layers", 0):
        networks[:first] = ["dense"] * first
    return {"layers": len(mixers), "pattern": pattern_of(mixers, networks)}


def _assume_batch(
    model: Mapping[str, Any], table: ArchitectureTable
) -> tuple[dict[str, int], list[str]]:
    """Sequence length and batch, which no config.json states, and sentences about them."""
    stated = model.get("max_positions") or LONGEST_ASSUMED
    # What is no whole number is refused with the rest of the workload.
    longest = stated if isinstance(stated, int) and stated > 0 else LONGEST_ASSUMED
    length = min(longest, LONGEST_ASSUMED)
    shape = {"batch": max(1, TOKENS_PER_BATCH // length), "sequence_length": length}
    sentences = list(_sentences(shape, longest))
    if table.masked_share is not None:
        shape["masked_tokens"] = max(1, round(length * table.masked_share))
        sentences.append(f"masked_tokens: {shape['masked_tokens']} of a sequence are assumed.")
    return shape, sentences


def _sentences(shape: Mapping[str, int], longest: int) -> Iterator[str]:
    yield (
        f"batch: {shape['batch']:,} sequences are assumed, because the file states none; "
        "change it with --set batch=N."
    )
    yield (
        f"sequence_length: {shape['sequence_length']:,} tokens are assumed; the model takes up to "
        f"{longest:,}."
    )
    yield "training: bf16 and AdamW are assumed, and the file states no layout."
