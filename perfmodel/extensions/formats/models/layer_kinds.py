"""Layers of a model that differ: what each of them is, from a config.json, as a pattern of blocks.

A rule says by which key layers differ and what its values mean. `each` names a list (or a text)
with a value per layer, `listed` numbers of layers from one, `first` how many, `every` every how
many; `otherwise` is for a file without the key. Meanings are words of `model.pattern`, in which
`{key}` stands for a value of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from string import Formatter
from typing import Any

from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models.fields import FieldReader, FieldUse, Use

Rule = Mapping[str, Any]
_FFN_MULTIPLE = 256
"""Widths of feed-forward networks that were searched for are multiples of it."""


def layer_words(
    reader: FieldReader, rule: Rule, layers: int | None, blocks: Mapping[str, str]
) -> list[str] | None:
    """What *rule* says of every layer, with words for *blocks*; None where that is a fault."""
    how = next((one for one in _HOWS if one in rule and _find(reader, rule[one]) is not None), "")
    if not how:
        word = rule.get("otherwise")
        if word is None and layers is not None:
            key = next(rule[one] for one in _HOWS if one in rule)
            reader.faults.add(key, "must be given, but is missing")
        return None if word is None or layers is None else _filled(reader, [word] * layers)
    key = rule[how]
    for one in key.split("|"):
        reader.uses.append(FieldUse(one.partition(".")[0], Use.READ, "model.pattern"))
    values = _values(how, _find(reader, key), layers)
    if values is None or (layers is not None and len(values) < layers):
        reader.faults.add(key, f"must say something of each of {layers} layers")
        return None
    if unknown := [value for value in values[:layers] if value not in rule["is"]]:
        known = ", ".join(rule["is"])
        reader.faults.add(key, f"can only be modelled as {known}, got {quote(unknown[0])}")
        return None
    return _filled(
        reader, [blocks.get(word := rule["is"][value], word) for value in values[:layers]]
    )


def pattern_of(mixers: Sequence[str], networks: Sequence[str]) -> str:
    """The shortest pattern of layers with *mixers* and *networks*; a mixer may name both."""
    pairs = zip(mixers, networks, strict=True)
    blocks = [one if "/" in one else f"{one}/{other}" for one, other in pairs]
    count = len(blocks)
    period = next(
        size
        for size in range(1, count + 1)
        if all(blocks[place] == blocks[place - size] for place in range(size, count))
    )
    runs = [(block, len(list(same))) for block, same in groupby(blocks[:period])]
    return " + ".join(block if number == 1 else f"{number} x {block}" for block, number in runs)


def searched_blocks(reader: FieldReader, heads: int, hidden: int) -> str:
    """The pattern of a model whose every layer was searched for (`block_configs`)."""
    found = []
    reader.uses.append(FieldUse("block_configs", Use.READ, "model.pattern"))
    for number, one in enumerate(reader.content.get("block_configs") or ()):
        attention, network = one["attention"], one["ffn"]
        if any(part.get("replace_with_linear") for part in (attention, network)):
            what = f"block_configs[{number}]"
            reader.faults.add(what, "can only be modelled without replace_with_linear")
        mixer, ffn = "none", "none"
        if not attention["no_op"]:
            mixer = f"full(kv_heads={heads // attention['n_heads_in_group']})"
        if not network["no_op"]:
            width = int(2 * network["ffn_mult"] * hidden / 3)
            ffn = f"dense(ffn={-(-width // _FFN_MULTIPLE) * _FFN_MULTIPLE})"
        found.append((mixer, ffn))
    return pattern_of(*zip(*found, strict=True)) if found else ""


_HOWS = ("each", "listed", "first", "every")


def _values(how: str, stated: Any, layers: int | None) -> list[str] | None:
    """What a key says of every layer; None if it is not what *how* takes."""
    if how == "each":
        return [str(one) for one in stated] if isinstance(stated, list | str) else None
    kind: Any = list if how == "listed" else int
    if layers is None or not isinstance(stated, kind):
        return None
    picked = stated if how == "listed" else range(1, stated + 1)
    if how == "every":
        picked = range(stated, layers + 1, max(stated, 1))
    return [how if number in picked else "rest" for number in range(1, layers + 1)]


def _find(reader: FieldReader, key: str) -> Any:
    """The value of *key*, which may be inside a section, or a choice of several."""
    for one in key.split("|"):
        value: Any = reader.content
        for part in one.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _filled(reader: FieldReader, words: list[str]) -> list[str] | None:
    """*words* with the values of the file, and products of these worked out."""
    filled = {}
    for word in dict.fromkeys(words):
        for _, name, _, _ in Formatter().parse(word):
            if name is None:
                continue
            key = name.partition("[")[0]
            reader.uses.append(FieldUse(key, Use.READ, "model.pattern"))
            if _find(reader, name.replace("[", ".").replace("]", "")) is None:
                reader.faults.add(key, f"must be given for {quote(word)}, but is missing")
                return None
        text = word.format_map(dict(reader.content))
        filled[word] = re.sub(r"(\d+)\*(\d+)", lambda two: str(int(two[1]) * int(two[2])), text)
    return [filled[word] for word in words]
