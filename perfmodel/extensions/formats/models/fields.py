"""Fields: what was read from a file of another program, what was assumed, and what was ignored.

Where a key is read from is written as `a|b` (the first that is there), `key=4` (with a default) or
`key?` (may be missing). A value of null counts as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from perfmodel.base.documents import parse_value
from perfmodel.base.errors import WorkloadError
from perfmodel.base.faults import FaultList, iter_misspelt
from perfmodel.base.reading import quote

_MISSING = object()
_MOST = 1e12
REPEATED = "\0repeated"
"""The key of arguments that a command line gives several times."""
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
        keys, sign, default = text.partition("=")
        if sign:
            return cls(tuple(keys.split("|")), parse_value(default))
        if keys.endswith("?"):
            return cls(tuple(keys[:-1].split("|")), None)
        return cls(tuple(keys.split("|")))

    @property
    def is_needed(self) -> bool:
        """Whether a file must state it."""
        return self.default is _MISSING


@dataclass(slots=True)
class FieldReader:
    """Reads fields of one file, and notes what became of each.

    *given* are fields of the workload that the question states itself: they may be missing or
    unreadable here. A target `field:part` is a part of what decides that field.
    """

    document: str
    content: Mapping[str, Any]
    given: Collection[str] = ()
    uses: list[FieldUse] = field(default_factory=list)
    faults: FaultList = field(init=False)

    def __post_init__(self) -> None:
        self.faults = FaultList(self.document)

    def read(self, target: str, source: Source, hint: str = "") -> Any:
        """The value for *target*, or None without one; a fault, with *hint*, where it is needed."""
        target, _, part = target.partition(":")
        # A pattern may be one number or say every layer, and an option be a word.
        is_count = type(source.default) is int and part not in ("pattern", "option")
        for key in source.keys:
            value = self.content.get(key)
            if value is None:
                continue
            if isinstance(value, str) and "$" in value:
                if target not in self.given:
                    self.faults.add(
                        key,
                        f"is the reference {quote(value)}, which only its program can resolve. "
                        f"Write the value there, or give --set {target}=VALUE",
                    )
                return None
            least = min(source.default, 0) if is_count else None
            if rule := _rule_broken(value, least, is_share=target == "model.dropout"):
                self.faults.add(key, f"must be {rule}, got {quote(value)}")
                return None
            self.uses.append(FieldUse(key, Use.READ, target, value))
            return value
        if source.is_needed:
            if target not in self.given:
                self.faults.add(
                    source.keys[0],
                    f"must be given, but is missing{hint}. Or give --set {target}=VALUE",
                )
            return None
        keys = "/".join(source.keys)
        self.uses.append(FieldUse(keys, Use.DEFAULTED, target, source.default))
        return source.default

    def check_one_of(self, key: str, allowed: Collection[Any]) -> None:
        """Note a fault unless *key* is missing or has one of the values that can be modelled."""
        value = self.content.get(key)
        if value is None:
            return
        if value not in allowed:
            words = " or ".join(map(str, allowed))
            self.faults.add(key, f"can only be modelled as {words}, got {quote(value)}")
        self.uses.append(FieldUse(key, Use.READ, "", value))

    def check_spelling(self, known: Collection[str], ignored: Collection[str]) -> None:
        """Note a fault for every unknown key that is nearly a known one which is not stated."""
        missing = [key for key in known if key not in self.content]
        seen = {use.key for use in self.uses}.union(known, ignored)
        unknown = [key for key in self.content if key not in seen]
        for key, meant in iter_misspelt(unknown, missing, SPELLING_CUTOFF):
            self.faults.add(key, f"is not known; {meant} is. Correct it or take it out")

    def finish(self, ignored: Collection[str]) -> tuple[FieldUse, ...]:
        """Everything that became of the file; raises if it has faults."""
        self.faults.check(WorkloadError)
        seen = {use.key for use in self.uses}
        for key, value in self.content.items():
            if key not in seen:
                use = Use.IGNORED if key in ignored else Use.UNKNOWN
                self.uses.append(FieldUse(key, use, value=value))
        return tuple(self.uses)


def _rule_broken(value: Any, least: int | None, *, is_share: bool) -> str:
    """What *value* must be and is not; with a *least* it is a count."""
    is_number = isinstance(value, int | float)
    if is_number and not abs(value) <= _MOST:
        return f"a number up to {_MOST:.0e}"
    if least is not None and (type(value) is not int or value < least):
        return f"a whole number from {least}"
    return "a share from 0 to 1" if is_share and not (is_number and 0 <= value <= 1) else ""


def unknown_keys(uses: Collection[FieldUse]) -> list[str]:
    """The keys that no table knows."""
    return [use.key or "''" for use in uses if use.use is Use.UNKNOWN and use.value is not None]


def default_sentence(uses: Collection[FieldUse]) -> Iterator[str]:
    """A sentence about what a file leaves open."""
    open_keys = {use.key: use.value for use in uses if use.use is Use.DEFAULTED}
    words = [key if value is None else f"{key} ({value})" for key, value in open_keys.items()]
    if words:
        yield f"Not stated, so as its program has it by default: {', '.join(words)}."
