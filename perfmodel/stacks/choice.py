"""Choosing a stack: which profile stands for a framework, its release and a family of workloads.

Stack files say so themselves, under `stands_for`. Nobody's framework gets a neighbour's profile:
what no file names gets the generic one of its family, and a sentence that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfmodel.base.errors import CalibrationError
from perfmodel.stacks.profiles import STACK_FOLDER, list_stacks, load_stack, merge_profile
from perfmodel.stacks.stack import Family, SoftwareStack

GENERIC = "generic"
Release = tuple[int, ...]
_Word = Annotated[str, Field(strict=True, min_length=1)]


class Claim(BaseModel):
    """What one entry of `stands_for` says: releases from *since* on and *before* another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    framework: _Word
    since: _Word | None = Field(default=None, alias="from")
    before: _Word | None = None
    placement: _Word | None = None

    @property
    def has_releases(self) -> bool:
        """Whether only some releases are meant."""
        return self.since is not None or self.before is not None

    def covers(self, release: str, placement: str) -> bool:
        """Whether runs of *release* that place tables as *placement* says are meant."""
        if self.placement is not None and self.placement != placement:
            return False
        if not self.has_releases:
            return True
        number = _numbers(release)
        is_late = self.since is None or number >= _numbers(self.since)
        is_early = self.before is None or number < _numbers(self.before)
        return bool(number) and is_late and is_early


@dataclass(frozen=True, slots=True)
class ChosenStack:
    """A stack, and what was taken for granted in choosing it."""

    stack: SoftwareStack
    assumptions: tuple[str, ...] = ()


def choose_stack(
    framework: str, *, release: str = "", family: Family, placement: str = ""
) -> ChosenStack:
    """The stack that stands for *framework* in *release* running *family*.

    Of several claims that cover it, one for its releases goes first, then one for its
    *placement* of tables, then one for the whole framework.
    """
    claims = [
        (claim.has_releases, claim.placement is not None, name)
        for name, claim in _claims_of(family)
        if claim.framework == framework and claim.covers(release, placement)
    ]
    if claims and framework != GENERIC:
        return ChosenStack(_load(max(claims)[-1]))
    name = next(name for name, claim in _claims_of(family) if claim.framework == GENERIC)
    word = f"Framework {framework!r} has no stack of its own for {family.value} workloads"
    if not framework:
        word = "The framework is not stated"
    sentence = f"{word}: the stack {name!r}, fitted to nothing, stands for it."
    return ChosenStack(_load(name), (sentence,))


def list_frameworks(family: Family) -> Mapping[str, tuple[str, ...]]:
    """Frameworks that have stacks for *family*, with the names of those."""
    found: dict[str, list[str]] = {}
    for name, claim in _claims_of(family):
        found.setdefault(claim.framework, []).append(name)
    return {word: tuple(dict.fromkeys(names)) for word, names in sorted(found.items())}


@lru_cache(maxsize=64)
def _load(name: str) -> SoftwareStack:
    return load_stack(name)


@lru_cache(maxsize=4)
def _claims_of(family: Family) -> tuple[tuple[str, Claim], ...]:
    """Every claim of a stack for *family*, by the name of the stack."""
    return tuple(_iter_claims(family))


def _iter_claims(family: Family) -> Iterator[tuple[str, Claim]]:
    for name in list_stacks():
        content = merge_profile(STACK_FOLDER / f"{name}.yaml")
        if "stands_for" in content and content.get("family") == family.value:
            for place, entry in enumerate(content["stands_for"]):
                yield name, _read_claim(entry, f"{name}.yaml: stands_for[{place}]")


def _read_claim(entry: Any, place: str) -> Claim:
    try:
        return Claim.model_validate(entry)
    except ValidationError as error:
        words = "; ".join(str(fault["msg"]) for fault in error.errors())
        raise CalibrationError(
            f"{place}: must state a framework and, where needed, from, before or placement as "
            f"texts, got {entry!r}. {words}."
        ) from None


def _numbers(release: str) -> Release:
    """The numbers in a release, in order: `torch 2.1` is 2, 1 and `2022-01-10` is 2022, 1, 10."""
    return tuple(int(part) for part in re.findall(r"\d+", release))
