"""The software stack that a framework in a release stands for, as files of stacks claim.

Files say which frameworks they are for, under `stands_for`; any other framework gets the generic
stack of its family, and an assumption says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perfmodel.base.forms import read_mapping
from perfmodel.stacks.profiles import list_stacks, load_profile, load_stack
from perfmodel.stacks.stack import Claim, SoftwareStack

GENERIC = "generic"
FOR_ALL = "pytorch_fused"
"""The stack that runs every family."""


@dataclass(frozen=True, slots=True)
class ChosenStack:
    """A stack, and what was assumed in choosing it."""

    stack: SoftwareStack
    assumptions: tuple[str, ...] = ()


def choose_stack(
    framework: str, *, release: str = "", family: str, placement: str = "", generation: str = ""
) -> ChosenStack:
    """The stack for *framework* in *release* running *family* on chips of *generation*.

    Of several claims that cover it, one for its chips wins over one for its *placement* of tables,
    that over one for its releases only, and that over one for the whole framework: releases of a
    framework that places tables otherwise say little.
    """
    framework = framework.strip().lower().replace("-", "_").replace(" ", "_")
    claims = [
        (bool(claim.generations), claim.placement is not None, claim.has_releases, name)
        for name, claim in _claims_of(family)
        if claim.framework == framework and claim.covers(release, placement, generation)
    ]
    if claims and framework != GENERIC:
        return ChosenStack(_load(max(claims)[-1]))
    generic = (name for name, claim in _claims_of(family) if claim.framework == GENERIC)
    name = next(generic, FOR_ALL)
    reason = f"Framework {framework!r} has no stack of its own for {family} workloads"
    if not framework:
        reason = "The framework is not stated"
    sentence = f"{reason}: the stack {name!r} is used, which was not fitted to any runs."
    return ChosenStack(_load(name), (sentence,))


_load = lru_cache(maxsize=64)(load_stack)


@lru_cache(maxsize=4)
def _claims_of(family: str) -> tuple[tuple[str, Claim], ...]:
    """Every claim of a shipped stack for *family*, with the name of the stack."""
    profiles = {name: load_profile(name).content for name in list_stacks()}
    return tuple(
        (name, claim)
        for name, content in profiles.items()
        if content.get("family") == family
        for claim in read_mapping(
            tuple[Claim, ...], content.get("stands_for", ()), document=f"{name}.yaml"
        )
    )
