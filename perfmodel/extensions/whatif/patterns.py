"""Patterns: what is looked for in the names of tasks, and where.

A pattern may match anywhere in a task's label, in a name of its op, or in its operator or module,
ignoring case; `*` matches anything, `|` separates alternatives, and `&` terms that must all
match. `||` separates what is looked for only if nothing before it matches. A prefix says where to
look: `range:Optimizer.step`, `module:`, `operator:`, `kernel:`, `stream:7`, `pass:backward`
(or `forward`, `update`), and `like:LABEL` for an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif.passes import Mask, TrainingPass
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    GroupedGemm,
    HostSpan,
    HostWork,
    MemoryBound,
    Op,
)

_NAMES: dict[type[object], Callable[[Any], tuple[str, ...]]] = {
    Gemm: lambda _: ("gemm",),
    GroupedGemm: lambda _: ("gemm", "grouped_gemm"),
    Convolution: lambda _: ("convolution",),
    Attention: lambda op: ("attention", op.kernel),
    MemoryBound: lambda op: (op.operator,),
    EmbeddingOp: lambda _: ("embedding",),
    Copy: lambda op: ("copy", op.route.value),
    HostWork: lambda op: (op.operator,),
    Communication: lambda op: (op.collective.kind.value,),
}


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
class LabelPattern:
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


def names_of(op: Op) -> tuple[str, ...]:
    """The names by which *op* can be selected."""
    if isinstance(op, Fixed):
        return (op.name, *(() if op.work is None else names_of(op.work)))
    if isinstance(op, HostSpan):
        return tuple(part.operator for part in op.parts)
    return _NAMES[type(op)](op)


@dataclass(frozen=True, slots=True, eq=False)
class TextTable:
    """The different *texts* of many things, and the number of that of each; the last has none."""

    texts: tuple[tuple[str, ...], ...]
    number: NDArray[np.int32]
    _found: dict[str, Mask] = field(default_factory=dict)

    @classmethod
    def of(cls, all_texts: Iterable[tuple[str, ...]]) -> TextTable:
        """The table of things that have any number of texts each."""
        numbers: dict[tuple[str, ...], int] = {}
        column = [numbers.setdefault(text, len(numbers)) for text in all_texts]
        # NO_ORIGIN is -1: the last one, which matches nothing.
        column.append(len(numbers))
        return cls(tuple(numbers), np.array(column, dtype=np.int32))

    def mask(self, words: str, column: NDArray[np.int32]) -> Mask:
        """Which of the things numbered in *column* have a text with *words*."""
        if words not in self._found:
            found = [any(is_found(words, text) for text in texts) for texts in self.texts]
            self._found[words] = np.array([*found, False], dtype=bool)
        return self._found[words][self.number[column]]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """What patterns look at: labels, names of ops, and the fields of origins."""

    labels: TextTable
    names: TextTable
    origins: dict[str, TextTable]


@lru_cache(maxsize=2)
def texts_of(job: JobGraph) -> Texts:
    """The texts of *job*: tens of thousands of ops and origins share a few thousand."""
    fields = ("operator", "module", "span")
    return Texts(
        labels=TextTable.of((label,) for label in job.labels),
        names=TextTable.of(names_of(op) for op in job.ops),
        origins={
            name: TextTable.of((getattr(one, name),) for one in job.origins) for name in fields
        },
    )
