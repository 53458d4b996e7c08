"""Patterns: what is looked for in the names of tasks, and where.

A pattern may match anywhere in a task's label, in a name of its op, or in its operator or module,
ignoring case; `*` matches anything, `|` separates alternatives, and `&` terms that must all
match. `||` separates what is looked for only if nothing before it matches. A prefix says where to
look: `range:Optimizer.step`, `module:`, `operator:`, `kernel:`, `stream:7`, `pass:backward`
(or `forward`, `update`), and `like:LABEL` for an example.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from perfmodel.base.errors import ScenarioError
from perfmodel.whatif.passes import TrainingPass


class Where(Enum):
    """Where a term of a pattern is looked for."""

    ANYWHERE = "anywhere"
    RANGE = "range"
    MODULE = "module"
    OPERATOR = "operator"
    KERNEL = "kernel"
    STREAM = "stream"
    LIKE = "like"
    PASS = "pass"  # noqa: S105


Term = tuple[Where, str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Text to look for in labels and names."""

    text: str

    def __post_init__(self) -> None:
        if not all(words.strip("* ") for terms in self.alternatives for _, words in terms):
            raise ScenarioError(
                f"pattern: every alternative must hold a letter or digit, got {self.text!r}. "
                "Leave the pattern out to mean every task."
            )
        passes = {one.name.lower() for one in TrainingPass if one}
        unknown = [words for where, words in self.terms if where is Where.PASS]
        for words in unknown:
            if words not in passes:
                raise ScenarioError(
                    f"pattern: `pass:` must be followed by {', '.join(sorted(passes))}, got "
                    f"{words!r}."
                )

    @property
    def choices(self) -> tuple[tuple[tuple[Term, ...], ...], ...]:
        """Alternatives, each looked for only if those before it match nothing."""
        return tuple(
            tuple(
                tuple(_parse_term(term) for term in terms.split("&")) for terms in choice.split("|")
            )
            for choice in self.text.split("||")
        )

    @property
    def alternatives(self) -> tuple[tuple[Term, ...], ...]:
        """Terms that must all match; one alternative is enough."""
        return tuple(terms for choice in self.choices for terms in choice)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of all alternatives."""
        return tuple(term for terms in self.alternatives for term in terms)

    def matches(self, text: str) -> bool:
        """Whether an alternative without a prefix matches *text*."""
        return any(
            all(where is Where.ANYWHERE and is_found(words, text) for where, words in terms)
            for terms in self.alternatives
        )

    def __str__(self) -> str:
        return self.text


def _parse_term(part: str) -> Term:
    word, colon, rest = part.partition(":")
    places = {where.value: where for where in Where if where is not Where.ANYWHERE}
    # Operators are called `aten::mm`: two colons are part of a name.
    if colon and word.strip() in places and not rest.startswith(":"):
        return places[word.strip()], rest
    return Where.ANYWHERE, part


# Tens of thousands of ops and origins share a few thousand names.
@lru_cache(maxsize=1 << 17)
def is_found(words: str, text: str) -> bool:
    """Whether *words* are anywhere in *text*."""
    return _expression(words).search(text) is not None


@lru_cache(maxsize=256)
def _expression(words: str) -> re.Pattern[str]:
    expression = ".*".join(re.escape(piece) for piece in words.split("*"))
    return re.compile(expression, re.IGNORECASE | re.DOTALL)
