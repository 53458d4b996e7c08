"""Damage: ways in which a file can be wrong, by what the file is.

All of it is drawn from one `random.Random`, so a seed and a number name a case.
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, 10**20, -(2**63), 0.5, 1e20, 1e308, -1e-9,
    float("inf"), float("-inf"), float("nan"), "", " ", "soon", "-5", "1e20", "inf", "nan", "64mb",
    "450 GB/s", "-3 us", "0 ns", "1e400 GB", "\x00", "é☃", "$x_{1}$", "<b>bold</b>", "[red]x[/red]",
    "../../etc", "a" * 5000, [], [[]], [1, 2], ["a"], {}, {"a": 1}, {"a": {"b": {}}}, "6+6", "1,5",
)  # fmt: skip
Document = Any


def damage_tree(document: Document, source: random.Random) -> Document:
    """*document* with a few places changed, dropped, doubled or renamed."""
    document = copy.deepcopy(document)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        places = list(_iter_places(document))
        if not places:
            return source.choice(ODD_VALUES)
        _change(*source.choice(places), source)
    return document


def _iter_places(value: Document) -> Any:
    if isinstance(value, dict):
        for key in list(value):
            yield value, key
            yield from _iter_places(value[key])
    elif isinstance(value, list):
        for index in range(len(value)):
            yield value, index
            yield from _iter_places(value[index])


def _change(holder: Any, key: Any, source: random.Random) -> None:
    how = source.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[source.choice(("x", f"{key}s", 5, ""))] = holder.pop(key)
    elif how == 2 and isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[key : key + 1]) * source.choice((1, 3, 50)))
    elif how == 3 and isinstance(holder[key], int | float):
        holder[key] = holder[key] * source.choice((-1, 0, 10, 1e6, 1e18, 0.001, 2**40))
    else:
        holder[key] = copy.deepcopy(source.choice(ODD_VALUES))


def damage_text(text: str, source: random.Random) -> str:
    """*text* cut, doubled, with characters changed or lines moved."""
    how = source.randrange(5)
    place = source.randrange(len(text) + 1)
    if how == 0:
        return text[:place]
    if how == 1:
        lines = text.splitlines(keepends=True)
        source.shuffle(lines)
        return "".join(lines)
    if how == 2:
        return text[:place] + source.choice(
            ("\x00", "\t", "{", "]", "&a *a", "!!python/x", "é", "\n- ")
        )
    if how == 3:
        return text + text
    return text[:place] + text[place + source.choice((1, 5, 40)) :]


def damage_bytes(data: bytes, source: random.Random) -> bytes:
    """*data* with bits flipped, cut, or doubled."""
    how = source.randrange(4)
    if how == 0 or len(data) < 8:
        return data[: source.randrange(len(data) + 1)]
    if how == 1:
        return data + data
    changed = bytearray(data)
    for _ in range(source.choice((1, 4, 64))):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)


def damaged_json(document: Document, source: random.Random) -> bytes:
    """A JSON file with a fault in its tree or its text, compressed now and then."""
    tree = damage_tree(document, source) if source.random() < 0.8 else document
    text = json.dumps(tree)
    if source.random() < 0.2:
        text = damage_text(text, source)
    return text.encode(errors="surrogatepass")


def damaged_yaml(text: str, source: random.Random) -> bytes:
    """A YAML file with a fault in its tree or its text."""
    if source.random() < 0.25:
        return damage_text(text, source).encode()
    tree = damage_tree(yaml.safe_load(text), source)
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode()


def damaged_csv(text: str, source: random.Random) -> bytes:
    """A table with a fault in some cells, its heading or its text."""
    if source.random() < 0.15:
        return damage_text(text, source).encode()
    rows = list(csv.reader(io.StringIO(text)))
    for _ in range(source.choice((1, 1, 3))):
        row = source.choice(rows)
        how = source.randrange(5)
        if how == 0 and len(row) > 1:
            row.pop(source.randrange(len(row)))
        elif how == 1:
            row.append("more")
        elif row:
            odd = source.choice(ODD_VALUES)
            huge = "7" * 140_000 if source.random() < 0.02 else str(odd)
            row[source.randrange(len(row))] = huge
    target = io.StringIO()
    csv.writer(target).writerows(rows)
    return target.getvalue().encode(errors="surrogatepass")


def forge_table(path: Path, source: random.Random) -> None:
    """The Parquet file at *path* with a column that is plausible and wrong."""
    table = pq.read_table(path)
    name = source.choice(table.column_names)
    values = table[name].to_pylist()
    if source.random() < 0.2:
        source.shuffle(values)
    elif values:
        wrong = source.choice((None, True, -1, 0, 1, 7, 2**31, 2**62, 0.5, float("nan"), "soon"))
        places = range(len(values)) if source.random() < 0.4 else [source.randrange(len(values))]
        for place in places:
            values[place] = wrong
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError):
        column = pa.array([str(value) for value in values])
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


def bomb(source: random.Random) -> bytes:
    """A few kilobytes that unpack to a great deal."""
    inside = source.choice((b"\0", b"[", b'{"a":', b'{"traceEvents":[{"name":"' + b"x" * 100))
    return gzip.compress(inside * (64 * 2**20 // len(inside)), 6)


Damager = Callable[[Any, random.Random], bytes]
