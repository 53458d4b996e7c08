"""Layers of a model that differ: what each of them is, by keys of a file, as a pattern of blocks.

A rule says by which key layers differ and what its values mean. `each` names a list (or a text)
with a value per layer, `listed` numbers of layers from one, `first` how many, `every` every how
many; `otherwise` is for a file without the key. Meanings are words of `model.pattern`, in which
`{key}` stands for a value of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models.fields import (
    FieldReader,
    FieldUse,
    Source,
    Use,
    work_out,
)

Rule = Mapping[str, Any]
_FFN_MULTIPLE = 256
"""Widths of feed-forward networks that were searched for are multiples of it."""
_HOWS = ("each", "listed", "first", "every")
_PRODUCT = re.compile(r"\d+(?:\*\d+)+")


def layer_words(
    reader: FieldReader, rule: Rule, layers: int | None, blocks: Mapping[str, str]
) -> list[str] | None:
    """What *rule* says of every layer, with words for *blocks*; None where that is a fault."""
    sources = {how: Source.parse(f"{rule[how]}?") for how in _HOWS if how in rule}
    stated: Any = None
    keys: tuple[str, ...] = ("",)
    for how, source in sources.items():  # noqa: B007  the one that is stated is used below
        keys, stated = source.keys, reader.find("|".join(source.keys))
        reader.note(*keys, target="model.pattern")
        stated = source.default if stated is None else stated
        if stated is not None:
            break
    if stated is None:
        word = rule.get("otherwise")
        if sources:
            asked = "/".join(key for source in sources.values() for key in source.keys)
            reader.uses.append(FieldUse(asked, Use.DEFAULTED, "model.pattern", word))
        if word is None and layers is not None:
            reader.faults.add(keys[0], "must be given, but is missing")
        return None if word is None or layers is None else _filled(reader, [word] * layers)
    values = _values(how, stated, layers)
    if values is None or (layers is not None and len(values) < layers):
        reader.faults.add(keys[0], f"must say something of each of {layers} layers")
        return None
    for value in dict.fromkeys(values[:layers]):
        reader.check_one_of(keys[0], value, rule["is"])
    words = [rule["is"].get(value, "") for value in values[:layers]]
    return _filled(reader, [blocks.get(word, word) for word in words])


def pattern_of(mixers: Sequence[str], networks: Sequence[str]) -> str:
    """The shortest pattern of layers with *mixers* and *networks*; a mixer may name both."""
    pairs = zip(mixers, networks, strict=True)
    blocks = [one if "/" in one else f"{one}/{other}" for one, other in pairs]
    count = len(blocks)
    period = next(size for size in range(1, count + 1) if blocks[size:] == blocks[: count - size])
    runs = [(block, len(list(same))) for block, same in groupby(blocks[:period])]
    return " + ".join(block if number == 1 else f"{number} x {block}" for block, number in runs)


def searched_blocks(reader: FieldReader, heads: int, hidden: int) -> str:
    """The pattern of a model whose every layer was searched for (`block_configs`)."""
    mixers, networks = [], []
    reader.note("block_configs", target="model.pattern")
    for number, one in enumerate(reader.content.get("block_configs") or ()):
        try:
            mixer, ffn = one["attention"], one["ffn"]
            is_linear = mixer.get("replace_with_linear") or ffn.get("replace_with_linear")
            groups = 1 if mixer["no_op"] else mixer["n_heads_in_group"]
            width = 0 if ffn["no_op"] else int(2 * ffn["ffn_mult"] * hidden / 3)
            mixers.append("none" if mixer["no_op"] else f"full(kv_heads={heads // groups})")
            width = -(-width // _FFN_MULTIPLE) * _FFN_MULTIPLE
            networks.append(f"dense(ffn={width})" if width else "none")
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
            is_linear = True
        if is_linear:
            fault = "must state attention and ffn, without replace_with_linear"
            reader.faults.add(f"block_configs[{number}]", fault)
            return ""
    return pattern_of(mixers, networks) if mixers else ""


def _values(how: str, stated: Any, layers: int | None) -> list[str] | None:
    """What a key says of every layer; None if it is not what *how* takes."""
    if how == "each":
        return [str(one) for one in stated] if isinstance(stated, list | str) else None
    if layers is None or type(stated) is not (list if how == "listed" else int):
        return None
    picked: Any = stated
    if how != "listed":
        steps = (1, picked + 1, 1) if how == "first" else (picked, layers + 1, max(picked, 1))
        picked = range(*steps)
    return [how if number in picked else "rest" for number in range(1, layers + 1)]


def _filled(reader: FieldReader, words: list[str]) -> list[str] | None:
    """*words* with the values of the file, and products of these worked out."""
    filled = {}
    for word in dict.fromkeys(words):
        filled[word] = word
        for key in re.findall(r"\{([\w.]+)\}", word):
            reader.note(key, target="model.pattern")
            value = reader.find(key)
            if type(value) not in (int, bool):
                said = "missing" if value is None else quote(value)
                reader.faults.add(key, f"must be given for {quote(word)}, but is {said}")
                return None
            filled[word] = filled[word].replace(f"{{{key}}}", str(value))
        filled[word] = _PRODUCT.sub(lambda product: str(work_out(product[0])), filled[word])
    return [filled[word] for word in words]
