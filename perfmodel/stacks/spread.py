"""Spread: how far whole predictions under a stack are off, and what that is known from.

Predictions of kernels have errors of their own. A whole iteration has a further error, from what a
stack does and its file does not describe. That spread is estimated by leaving whole sources out of
the fit (`spread.yaml`, and `evidence` in stack files). It grows without evidence: another chip, no
runs, more hosts. It also grows with what is known of the job: see `FamilySpread`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Count, Line
from perfmodel.base.forms import Form, load_document
from perfmodel.stacks.stack import SoftwareStack

FILE = Path(__file__).parent / "spread.yaml"
_Sigma = Annotated[float, Field(strict=True, ge=0, le=2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpread(Form):
    """Standard deviations of the logarithm of predicted over measured, by what is known.

    *other_chip*: the stack was compared with runs on other chips only. *no_runs*: with none.
    *per_doubling* is added for every doubling of hosts beyond the evidence, *per_halving* for every
    halving of a rank's batch below it. *features* are added for what the job is, times how much of
    it the job has: the error of its kernels if kinds of kernels err independently (`kernels`; the
    spread is then that of whole iterations), 1 for experts and for products in four bits, the time
    of the host as a share of that of kernels where there are experts, and the settings that are
    guesses. *rows* and *sources* count the runs that these estimates rest on.
    """

    other_chip: _Sigma
    no_runs: _Sigma
    per_doubling: _Sigma
    per_halving: _Sigma = 0.0
    features: Mapping[str, _Sigma] = field(default_factory=dict)
    rows: Count
    sources: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpread(Form):
    """The same for emulated scripts, from pairs with published times on *chips*."""

    spread: _Sigma
    rows: Count
    sources: Count
    chips: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpreadFile(Form):
    """`spread.yaml`: by family of models, and of emulated scripts.

    *most* is the family with most runs: what is known of stacks for all families.
    """

    source: Line
    date: Line
    licence: Line
    command: Line
    families: Mapping[str, FamilySpread]
    most: str
    scripts: ScriptSpread


@dataclass(frozen=True, slots=True)
class Spread:
    """A relative spread that all costs of a job share, and the evidence it rests on.

    With *includes_kernels* it is that of whole iterations, errors of single kernels included.
    """

    relative_sigma: float = 0.0
    sentence: str = ""
    includes_kernels: bool = False


NO_SPREAD = Spread()
NO_FEATURES: Mapping[str, float] = {}
KERNELS = "kernels"


def find_spread(
    stack: SoftwareStack,
    *,
    architecture: str,
    hosts: int,
    samples: float = 0.0,
    features: Mapping[str, float] = NO_FEATURES,
    is_emulated: bool = False,
) -> Spread:
    """How far predictions under *stack* on *hosts* hosts of such GPUs may be off as a whole.

    A rank trains so many *samples* per iteration; 0 is not known. *features* say how much the job
    has of what widens the spread of its family. Emulated scripts have a spread
    of their own, whatever their stack. It is that of whole iterations where scripts ran on such
    chips. All of them ran on one host.
    """
    known = load_spread()
    family = known.families[stack.family or known.most]
    if is_emulated:
        scripts = known.scripts
        sigma = math.hypot(scripts.spread, family.per_doubling * math.log2(max(hosts, 1)))
        is_covered = architecture in scripts.chips
        lack = "" if is_covered else f"; none ran on {architecture}: errors of kernels are added"
        return Spread(
            sigma,
            f"Interval: {sigma:.0%} (1 sigma) on every cost, from {scripts.rows} "
            f"scripts of {scripts.sources} repositories with published times{lack}.",
            includes_kernels=is_covered,
        )
    own = stack.evidence.get(architecture)
    if own is not None:
        sources = f"{own.sources} publisher{'s' if own.sources > 1 else ''}"
        words = f"{own.rows} runs of {sources} with {stack.name} on {architecture}"
        base = own.spread
    elif stack.evidence:
        base = max(family.other_chip, *(one.spread for one in stack.evidence.values()))
        chips = ", ".join(stack.evidence)
        words = f"runs with {stack.name} on other GPUs ({chips}), none on {architecture}"
    else:
        base = family.no_runs
        words = (
            f"{family.rows} runs with other stacks, each left out of the fit; "
            f"none with {stack.name}"
        )
    parts = {name: one * features.get(name, 0.0) for name, one in family.features.items()}
    told = sorted((one, name) for name, one in parts.items() if one > base / 2)
    if told:
        words += f"; of it {', '.join(f'{name} {one:.0%}' for one, name in reversed(told))}"
    most = max((one.hosts for one in stack.evidence.values()), default=1)
    further = family.per_doubling * max(math.log2(max(hosts, 1) / most), 0.0)
    if further:
        words += f"; {hosts} hosts are beyond the {most} that it covers"
    least = min((one.samples for one in stack.evidence.values() if one.samples), default=0)
    fewer = family.per_halving * math.log2(least / samples) if 0 < samples < least else 0.0
    if fewer:
        words += f"; {samples:,.0f} samples per rank are fewer than the {least:,} that it covers"
    sigma = math.hypot(base, further, fewer, *parts.values())
    sentence = f"Interval: {sigma:.0%} (1 sigma) on every cost, from {words}."
    return Spread(sigma, sentence, includes_kernels=KERNELS in family.features)


@lru_cache(maxsize=1)
def load_spread() -> SpreadFile:
    """The file that comes with perfmodel."""
    return load_document(FILE, CalibrationError).read(SpreadFile)
