"""Reading typed fields out of a document, noting every fault instead of stopping.

A reader returns a stand-in where it noted a fault. Nothing may be built from
the values before the fault list was checked.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar

from perfmodel.base.documents import FaultList
from perfmodel.base.errors import InputError
from perfmodel.base.reading import quote

E = TypeVar("E", bound=Enum)
Q = TypeVar("Q", int, float)
MOST = 1_000_000


@dataclass(slots=True)
class Section:
    """A mapping of a document, at *place* inside it."""

    content: dict[Any, Any]
    place: str
    faults: FaultList
    read: set[str] = field(default_factory=set)

    def at(self, key: str) -> str:
        """The path of *key* inside the document."""
        return f"{self.place}.{key}" if self.place else key

    def fault(self, key: str, message: str) -> None:
        """Note a fault at *key*."""
        self.faults.add(self.at(key), message)

    def has(self, key: str) -> bool:
        """Whether *key*, which may be left out, is there."""
        self.read.add(key)
        return key in self.content

    def raw(self, key: str) -> Any:
        """The value as the parser left it, or a noted fault and None."""
        self.read.add(key)
        if key not in self.content:
            self.fault(key, "must be given, but is missing")
        return self.content.get(key)

    def text(self, key: str, *, default: str | None = None) -> str:
        """A line of text; a date counts as one."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if isinstance(value, datetime.date):
            return value.isoformat()
        if isinstance(value, str) and value.strip():
            return " ".join(value.split())
        if key in self.content:
            self.fault(key, f"must be text, got {quote(value)}")
        return ""

    def origin(self) -> str:
        """Where the document is from, as far as it says; those that we ship say all of it."""
        source, date, licence = (
            self.text(key, default="") for key in ("source", "date", "licence")
        )
        remarks = "; ".join(part for part in (date, licence) if part)
        return f"{source or 'its author'} ({remarks})" if remarks else source or "its author"

    def integer(self, key: str, *, minimum: int = 1, default: int | None = None) -> int:
        """A count, which has no unit and a bound that no machine comes near."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MOST:
            return value
        if key in self.content:
            rule = f"must be a whole number, {minimum} or more and at most {MOST}"
            self.fault(key, f"{rule}, got {quote(value)}")
        return minimum

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        if not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, bool):
            self.fault(key, f"must be true or false, got {quote(value)}")
            return default
        return value

    def quantity(
        self, key: str, parse: Callable[[str], Q], *, zero: bool = False, default: Q | None = None
    ) -> Q:
        """A number with its unit, above zero (or *zero* itself where that makes sense)."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        stand_in = _stand_in(default)
        if key not in self.content:
            return stand_in
        try:
            number = parse(value)
        except InputError as fault:
            self.fault(key, str(fault))
            return stand_in
        if number < 0 or (number == 0 and not zero):
            rule = "must be zero or more" if zero else "must be above zero"
            self.fault(key, f"{rule}, got {quote(value)}")
            return stand_in
        return number

    def word(self, key: str, choices: type[E], *, allowed: tuple[E, ...] | None = None) -> E:
        """One word out of an enum."""
        allowed = allowed or tuple(choices)
        value = self.raw(key)
        for member in allowed:
            if member.value == value:
                return member
        if key in self.content:
            known = ", ".join(str(member.value) for member in allowed)
            self.fault(key, f"must be one of {known}, got {quote(value)}")
        return allowed[0]

    def section(self, key: str) -> Section:
        """The mapping at *key*."""
        value = self.raw(key)
        if not isinstance(value, dict):
            if key in self.content:
                self.fault(key, f"must be a mapping of keys, got {quote(value)}")
            value = {}
        return Section(value, self.at(key), self.faults)

    def sections(self, key: str) -> Iterator[Section]:
        """The mappings in the list at *key*."""
        value = self.raw(key)
        if not isinstance(value, list):
            if key in self.content:
                self.fault(key, f"must be a list, got {quote(value)}")
            return
        for position, item in enumerate(value):
            place = f"{key}[{position}]"
            if isinstance(item, dict):
                yield Section(item, self.at(place), self.faults)
            else:
                self.fault(place, f"must be a mapping of keys, got {quote(item)}")

    def refuse_unknown(self) -> None:
        """Note every key that nobody asked for."""
        known = sorted(self.read)
        strange: list[str] = []
        for key in (str(key) for key in self.content if key not in known):
            near = get_close_matches(key, known, n=1)
            if near:
                self.fault(key, f"unknown key; did you mean {near[0]!r}?")
            else:
                strange.append(key)
        if strange:
            word = "unknown key" if len(strange) == 1 else "unknown keys"
            self.fault(", ".join(strange), f"{word}; known: {', '.join(known)}")


def _stand_in(default: Q | None) -> Q:
    """What a quantity holds after a fault was noted: never zero, never used."""
    return 1 if default is None else default
