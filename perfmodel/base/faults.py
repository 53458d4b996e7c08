"""Faults: what is wrong with a document, as sentences with their places, all of them at once.

pydantic finds most of them; its words are for programmers, so every kind of fault has a sentence
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from perfmodel.base.errors import InputError
from perfmodel.base.reading import quote

FEWEST_ALIKE, MOST_PLACES, MOST_LINES = 3, 5, 11
"""How many faults of one cause share a line, how many places it names, and how many lines."""
MOST_SECTIONS = 2
"""How deep a key that is in the wrong section is looked for."""


@dataclass(slots=True)
class FaultList:
    """Faults of one document, collected so that they can be fixed in one go.

    *locate* says where in the document a path is, such as on which line.
    """

    document: str
    faults: list[tuple[str, str]] = field(default_factory=list)
    locate: Callable[[str], str] = str

    def add(self, place: str, fault: str) -> None:
        """Note a *fault* at *place*, a path inside the document."""
        self.faults.append((place, fault))

    def check(self, error_type: type[InputError], advice: str = "") -> None:
        """Raise *error_type* with every fault and *advice*, if there are any."""
        if self.faults:
            count = len(self.faults)
            heading = f"{self.document}: {count} fault{'s' if count > 1 else ''}"
            lines = [*self._lines(), *([advice] if advice else [])]
            raise error_type("\n".join([heading, *(f"  {line}" for line in lines)]))

    def _lines(self) -> list[str]:
        """The faults, those of one cause on one line; what they found there may differ."""
        by_cause: dict[str, list[tuple[str, str]]] = {}
        for place, rule in self.faults:
            by_cause.setdefault(rule.partition(", got ")[0], []).append((place, rule))
        groups: list[list[tuple[str, str]]] = []
        for alike in by_cause.values():
            groups += [alike] if len(alike) >= FEWEST_ALIKE else [[one] for one in alike]
        shown = groups if len(groups) <= MOST_LINES else groups[: MOST_LINES - 1]
        lines = []
        for group in shown:
            more = len(group) - MOST_PLACES
            places = ", ".join(self.locate(place) for place, _ in group[:MOST_PLACES])
            lines.append(f"{places}{f' and {more} more' if more > 0 else ''}: {group[0][1]}")
        if len(shown) < len(groups):
            lines.append(f"... and {len(groups) - len(shown)} more")
        return lines


Steps = tuple[int | str, ...]


def iter_faults(
    error: ValidationError, content: Any, schema: Callable[[], Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Place and rule of every fault that *error* found in *content*, a document with *schema*.

    What the types of a union say of one place is one fault.
    """
    rules: dict[Steps, dict[str, bool]] = {}
    alternatives = set()
    for fault in error.errors(include_url=False):
        path, value, is_alternative = _find(fault["loc"], content)
        # Entries with faults of their own are not counted.
        if is_alternative or fault["type"] == "too_short":
            alternatives.add(path)
        rule = _rule_of(fault, path, value, schema)
        rules.setdefault(path, {})[rule] = fault["type"].endswith("_type")
    above = {path[:depth] for path in rules for depth in range(len(path))}
    for path, is_type in rules.items():
        if not (path in alternatives and path in above):
            # A value of one of the types has the fault that matters.
            *first, last = [rule for rule in is_type if not is_type[rule]] or is_type
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
            said = " or ".join([one.partition(", got ")[0] for one in first] + [last])
            yield place.removeprefix("."), said


def _find(loc: Steps, content: Any) -> tuple[Steps, Any, bool]:
    """The path of *loc*, what *content* has there, and whether *loc* names types of a union."""
    path: list[int | str] = []
    is_alternative = False
    for number, part in enumerate(loc):
        is_last = number == len(loc) - 1
        if isinstance(part, int):
            path.append(part)
            content = content[part] if isinstance(content, list) and part < len(content) else None
        elif part != "[key]":
            parts = (
                part.split(".") if isinstance(content, Mapping) and part not in content else [part]
            )
            if not isinstance(content, Mapping) or (parts[0] not in content and not is_last):
                is_alternative = True
                continue
            for one in parts:
                content = content.get(one) if isinstance(content, Mapping) else None
            path += parts
    return tuple(path), content, is_alternative


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    **dict.fromkeys(("dict", "mapping", "dataclass", "model"), "a mapping of keys"),
    **dict.fromkeys(("list", "tuple", "frozen"), "a list"),
}
"""What a value must be, by the first word of pydantic's fault."""
_RULES = {
    "missing": "must be given, but is missing",
    "string_too_short": "must be text, not empty",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "greater_than": "must be above {gt:.12g}",
    "greater_than_equal": "must be at least {ge:.12g}",
    "less_than": "must be below {lt:.12g}",
    "less_than_equal": "must be at most {le:.12g}",
    "too_short": "must have {min_length} entries or more",
    "too_long": "must have {max_length} entries or fewer",
}


def _rule_of(fault: Any, path: Steps, value: Any, schema: Callable[[], Mapping[str, Any]]) -> str:
    context, got = fault.get("ctx", {}), f", got {quote(value)}"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown(str(path[-1]), _keys_at(schema(), path[:-1]), got, schema())
    if fault["type"] == "value_error":
        return str(context["error"])
    if fault["type"] == "missing":
        return _RULES["missing"]
    if "expected" in context:
        words = re.findall(r"'([^']*)'", context["expected"])
        if fault["loc"][-1] == "[key]":
            return _unknown(str(fault["input"]), words, got)
        context = {"expected": ", ".join(words)}
    kind_of_value = _TYPES.get(fault["type"].partition("_")[0], str(fault["msg"]))
    return _RULES.get(fault["type"], f"must be {kind_of_value}").format(**context) + got


def _unknown(key: str, known: Sequence[str], got: str, schema: Any = None) -> str:
    if key in known:
        return f"must be a mapping of keys{got}"
    near = get_close_matches(key, known, n=1) or list(_iter_paths(schema or {}, key))[:1]
    return "unknown key; " + (
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    )


SPELLING_CUTOFF = 0.8


def iter_misspelt(
    given: Iterable[str], missing: Iterable[str], cutoff: float = SPELLING_CUTOFF
) -> Iterator[tuple[str, str]]:
    """Those of *given* that are nearly one of *missing*, and which one."""
    known = {one.lower(): one for one in missing}
    for key in given:
        if near := get_close_matches(str(key).lower(), known, n=1, cutoff=cutoff):
            yield str(key), known[near[0]]


def _iter_paths(schema: Mapping[str, Any], key: str, section: Steps = ()) -> Iterator[str]:
    """Paths to *key* in other sections of *schema*."""
    for one in _keys_at(schema, section):
        if one == key and section:
            yield ".".join([*map(str, section), one])
        elif len(section) < MOST_SECTIONS:
            yield from _iter_paths(schema, key, (*section, one))


def _keys_at(schema: Mapping[str, Any], path: Steps) -> list[str]:
    """The keys that *schema* has at *path*, in order."""
    nodes: list[Any] = [schema]
    for part in (*path, None):
        reached: list[Any] = []
        while nodes:
            node = nodes.pop()
            if "$ref" in node:
                nodes.append(schema["$defs"][node["$ref"].rpartition("/")[2]])
            nodes += [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
            reached.append(node)
        if part is None:
            return sorted({key for node in reached for key in node.get("properties", {})})
        for node in reached:
            inner = node.get("properties", {}).get(part, node.get("additionalProperties"))
            inner = node.get("items") if isinstance(part, int) else inner
            nodes += [inner] if isinstance(inner, dict) else []
    return []
