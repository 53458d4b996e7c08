"""Fields: what was read from a file of another program, what was assumed, and what was ignored.

Where a key is read from is written as `a|b` (the first that is there), `key=4` (with a default) or
`key?` (may be missing); `a.b` is inside a section. A value of null counts as missing.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from perfmodel.base.documents import parse_value
from perfmodel.base.errors import WorkloadError
from perfmodel.base.faults import FaultList, iter_misspelt
from perfmodel.base.reading import quote

_MISSING = object()
_MOST, _MOST_REPEATS = 1e12, 65_536
REPEATED = "\0repeated"
"""The key of arguments that a command line gives several times."""
MOST_LAYERS = 10_000
COUNTS = ("prompts", "samples", "steps", "layers", "first", "last")
"""Parts of fields that are whole numbers from one, though a file may leave them out."""
SPELLING_CUTOFF = 0.93
"""An unknown key so like a known one is a misspelling of it."""


class Use(Enum):
    """What became of a field of a file."""

    READ = "read"
    DEFAULTED = "not stated"
    IGNORED = "no effect"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FieldUse:
    """A field of a file: its *key*, what became of it, the field of a workload, and its value."""

    key: str
    use: Use
    target: str = ""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a field is read from: the first of *keys*, else *default*."""

    keys: tuple[str, ...]
    default: Any = _MISSING

    @classmethod
    def parse(cls, text: str) -> Source:
        """The source that a table writes as *text*."""
        keys, sign, default = text.removesuffix("?").partition("=")
        value = parse_value(default) if sign else None if text.endswith("?") else _MISSING
        return cls(tuple(keys.split("|")), value)


@dataclass(slots=True)
class FieldReader:
    """Reads fields of one file, and notes what became of each.

    *given* are fields of the workload that the question states itself: they may be missing or
    unreadable here. A target `field:part` is a part of what decides that field. *ignored* are
    patterns of keys without effect on time.
    """

    document: str
    content: Mapping[str, Any]
    given: Collection[str] = ()
    ignored: Sequence[str] = ()
    uses: list[FieldUse] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    faults: FaultList = field(init=False)

    def __post_init__(self) -> None:
        self.faults = FaultList(self.document)

    def find(self, keys: str) -> Any:
        """The value of the first of *keys* that is stated, which may be inside a section."""
        for key in keys.split("|"):
            value: Any = self.content
            for part in [key] if key in self.content else key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def note(self, *keys: str, target: str = "") -> None:
        """Note those of *keys* that are stated as read for *target*."""
        for key in keys:
            whole = key if key in self.content else key.partition(".")[0]
            self.known.add(whole)
            value = self.content.get(whole)
            if value is not None and whole not in {use.key for use in self.uses}:
                self.uses.append(FieldUse(whole, Use.READ, target, value))

    def read(self, target: str, source: Source | str, hint: str = "") -> Any:
        """The value for *target*, or None without one; a fault, with *hint*, where it is needed."""
        target, _, part = target.partition(":")
        if isinstance(source, str):
            source = Source.parse(source)
        self.known.update(source.keys)
        key = next((key for key in source.keys if self.content.get(key) is not None), "")
        if not key and source.default is _MISSING:
            fault = f"must be given, but is missing{hint}. Or give --set {target}=VALUE"
            if target not in self.given:
                self.faults.add(source.keys[0], fault)
        elif not key:
            words = "/".join(source.keys)
            self.uses.append(FieldUse(words, Use.DEFAULTED, target, source.default))
            return source.default
        else:
            value = self.content[key]
            # A pattern may be one number or say every layer, and an option be a word.
            least = 1 if part in COUNTS else None
            if type(source.default) is int and part not in ("pattern", "option"):
                least = 1 if target.startswith("parallel.") else min(source.default, 0)
            if isinstance(value, str) and "$" in value:
                fault = f"is the reference {quote(value)}, which only its program can resolve. "
                fault += f"Write the value there, or give --set {target}=VALUE"
                if target not in self.given:
                    self.faults.add(key, fault)
            elif rule := _rule_broken(value, least, is_share=target == "model.dropout"):
                self.faults.add(key, f"must be {rule}, got {quote(value)}")
            else:
                self.uses.append(FieldUse(key, Use.READ, target, value))
                return value
        return None

    def check_one_of(self, key: str, value: Any, allowed: Collection[Any]) -> None:
        """Note a fault unless *value* of *key* is one that can be modelled."""
        if value not in [*allowed]:
            words = ", ".join(map(str, allowed))
            self.faults.add(key, f"can only be modelled as {words}, got {quote(value)}")

    def count_shared(self, key: str, width: Any, one: Any) -> int | None:
        """Shared experts whose total *width* the key states, as so many of the width of *one*."""
        if width in (None, 0) or one is None:
            return None
        if not (type(width) is type(one) is int) or width % one:
            fault = f"must be a multiple of the width of an expert {one}, got {width}"
            self.faults.add(key, fault)
            return None
        return int(width // one)

    def check(self) -> None:
        """Raise if there are faults, or an unknown key is nearly a known one that is not stated."""
        missing = self.known - self.content.keys()
        unknown = [one.key for one in self._rest() if one.use is Use.UNKNOWN]
        for key, meant in iter_misspelt(unknown, sorted(missing), SPELLING_CUTOFF):
            self.faults.add(key, f"is not known; {meant} is. Correct it or take it out")
        self.faults.check(WorkloadError)

    def _rest(self) -> Iterator[FieldUse]:
        """The keys that nothing was read from."""
        seen = {use.key for use in self.uses}
        for key, value in self.content.items():
            if key not in seen:
                is_known = key in self.known or any(re.search(one, key) for one in self.ignored)
                yield FieldUse(key, Use.IGNORED if is_known else Use.UNKNOWN, value=value)

    def describe(self, name: str, kind: str, assumed: Sequence[str]) -> dict[str, Any]:
        """What every workload says of the file that it is from; raises if that has faults."""
        self.check()
        self.uses += self._rest()
        unsaid = {use.key: use.value for use in self.uses if use.use is Use.DEFAULTED}
        words = [key if value is None else f"{key} ({value})" for key, value in unsaid.items()]
        said = [f"Not stated, so as its program has it by default: {', '.join(words)}."]
        unknown = [use for use in self.uses if use.use is Use.UNKNOWN and use.value is not None]
        return {
            "name": name,
            "description": f"{kind} in {self.document}.",
            "source": f"{self.document}, read by its fields.",
            "assumed": [*assumed, *(said if words else ())],
            "unknown_keys": [use.key or "''" for use in unknown],
        }


def _rule_broken(value: Any, least: int | None, *, is_share: bool) -> str:
    """What *value* must be and is not; with a *least* it is a count."""
    is_number = type(value) in (int, float)
    if is_number and not abs(value) <= _MOST:
        return f"a number up to {_MOST:.0e}"
    if least is not None and (type(value) is not int or value < least):
        return f"a whole number from {least}"
    return "a share from 0 to 1" if is_share and not (is_number and 0 <= value <= 1) else ""


_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_SIDES = ((int, int), (list, int), (list, list))


def work_out(text: str) -> Any:
    """What sums and products of whole numbers and lists come to: `[0]*3+[1]*58`; None of others."""
    try:
        return _work_out(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None


def _work_out(node: ast.expr) -> Any:
    if not isinstance(node, ast.BinOp):
        return ast.literal_eval(node)
    sides = left, right = _work_out(node.left), _work_out(node.right)
    kinds = tuple(map(type, sides))
    if kinds not in _SIDES or (kinds == (list, int) and len(left) * right > _MOST_REPEATS):
        raise ValueError
    return _OPERATORS[type(node.op)](*sides)
