"""Cautions: what an answer warns of, and what of its files was not understood.

They are part of the answer: in its headline, its JSON and its page. Under `--strict` they are
errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from perfmodel.base.errors import InputError

MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Warned:
    """A *rule* of physics that something breaks: *where*, what was *found*, and the *limit*."""

    rule: str
    where: str
    found: float
    limit: float

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}, {self.found:,.6g}, limit {self.limit:,.6g}"

    @property
    def times(self) -> str:
        """How far beyond the limit it is, in words."""
        is_ratio = self.rule.startswith("beyond")
        return f"{self.rule}: {self.found:,.4g}{' times' if is_ratio else ''}"


@dataclass(frozen=True, slots=True)
class Cautions:
    """*warnings*, and keys of files of other programs that no table knows."""

    warnings: tuple[Warned, ...] = ()
    unknown_keys: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.warnings or self.unknown_keys)

    def document(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "warnings": [asdict(one) for one in self.warnings],
            "unknown_keys": list(self.unknown_keys),
        }

    def lines(self) -> tuple[str, ...]:
        """Each warning in words, and the keys of which a headline says only the number."""
        warned = tuple(map(str, self.warnings))
        if len(self.unknown_keys) <= MOST_NAMED:
            return warned
        return (*warned, f"Unknown keys: {', '.join(self.unknown_keys)}.")

    def count(self) -> Iterator[str]:
        """What a headline says of them."""
        if self.warnings:
            words = "; ".join(dict.fromkeys(one.times for one in self.warnings[:MOST_NAMED]))
            yield f"{_count(len(self.warnings), 'warning')}: {words}"
        if self.unknown_keys:
            names = ", ".join(self.unknown_keys[:MOST_NAMED])
            more = ", ..." if len(self.unknown_keys) > MOST_NAMED else ""
            yield f"{_count(len(self.unknown_keys), 'unknown key')}, without effect: {names}{more}"

    def refuse(self) -> None:
        """Raise if there are any, as `--strict` asks."""
        if self:
            lines = [*map(str, self.warnings), *list(self.count())[bool(self.warnings) :]]
            raise InputError(
                "\n  ".join(["--strict: the answer has warnings.", *lines])
                + "\n  Correct what they name, or ask without --strict."
            )


NO_CAUTIONS = Cautions()


def join_cautions(several: Iterable[Cautions]) -> Cautions:
    """All of *several*, each once."""
    found = tuple(several)
    return Cautions(
        tuple(dict.fromkeys(warned for one in found for warned in one.warnings)),
        tuple(dict.fromkeys(key for one in found for key in one.unknown_keys)),
    )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' if number > 1 else ''}"
