"""Interference constants: how much longer kernels take when they overlap a collective.

A collective that waits for other ranks only holds multiprocessors; one that moves bytes also takes
memory bandwidth. A generation without recordings uses the constants of the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Annotated

from pydantic import Field

from perfmodel.base.fields import NaturalNumber
from perfmodel.base.forms import Form
from perfmodel.costs.calibration_files import (
    GENERATIONS,
    parse_generations,
    shipped_text,
    strict_form,
)
from topologies import Device
from topologies.device import CPU

SLOWED_FAMILIES = ("gemm", "memory", "attention", "embedding")
"""Families of kernels that need multiprocessors; copies and the host do not."""
_AMD = "cdna"


class Phase(IntEnum):
    """What overlapping collectives do: nothing, wait for other ranks, or move bytes."""

    NONE = 0
    WAITING = 1
    MOVING = 2

    @property
    def word(self) -> str:
        """The phase as files write it."""
        return self.name.lower()


OVERLAPPING = (Phase.WAITING, Phase.MOVING)


_Factor = Annotated[float, Field(strict=True, ge=1, lt=10)]


@dataclass(frozen=True, slots=True)
class Slowdown(Form):
    """How many times longer a family takes in a phase, from *kernels* recorded kernels.

    Without recorded kernels the value comes from other generations or families. *measured*, *low*
    and *high* are the mean of the kernels and its 90 % interval.
    """

    slowdown: _Factor
    measured: float = 1.0
    low: float = 1.0
    high: float = 1.0
    kernels: NaturalNumber = 0


@dataclass(frozen=True, slots=True)
class GenerationSlowdowns:
    """The constants of one *architecture*, by family and phase.

    *is_own* is False where they are borrowed for another generation.
    """

    architecture: str
    of: Mapping[tuple[str, Phase], float]
    is_own: bool = True

    def factor(self, family: str, phase: Phase) -> float:
        """How many times longer *family* takes in *phase*; 1 for what nothing slows."""
        return self.of.get((family, phase), 1.0)


NOTHING_SLOWED = GenerationSlowdowns("", {})
"""For durations that were recorded or stated."""


def slowdowns_for(device: Device) -> GenerationSlowdowns:
    """The constants of the generation of *device*, or those of the nearest.

    None for a CPU: recordings of GPUs do not apply to its cores.
    """
    if device.architecture == CPU:
        return NOTHING_SLOWED
    return nearest_slowdowns(load_slowdowns(), device.generation)


def nearest_slowdowns(
    generations: Mapping[str, GenerationSlowdowns], architecture: str
) -> GenerationSlowdowns:
    """The constants of *architecture*; else of the next one of its vendor, the newer of two."""
    if architecture in generations:
        return generations[architecture]
    age = GENERATIONS.get(architecture, 0)
    is_amd = architecture.startswith(_AMD)

    def distance(name: str) -> tuple[bool, int, int, str]:
        other = GENERATIONS.get(name, 0)
        return name.startswith(_AMD) != is_amd, abs(other - age), -other, name

    nearest = generations[min(generations, key=distance)]
    return GenerationSlowdowns(nearest.architecture, nearest.of, is_own=False)


@cache
def load_slowdowns() -> dict[str, GenerationSlowdowns]:
    """The constants that come with perfmodel, by architecture."""
    return parse_slowdowns(shipped_text("interference.yaml"), document="interference.yaml")


_Phases = strict_form("_Phases", **{phase.word: Slowdown for phase in OVERLAPPING})
_Families = strict_form("_Families", **dict.fromkeys(SLOWED_FAMILIES, _Phases))


def parse_slowdowns(text: str, *, document: str) -> dict[str, GenerationSlowdowns]:
    """Read constants from *text*; *document* names it in errors."""
    return {
        name: GenerationSlowdowns(
            name,
            {
                (family, phase): float(getattr(getattr(families, family), phase.word).slowdown)
                for family in SLOWED_FAMILIES
                for phase in OVERLAPPING
            },
        )
        for name, families in parse_generations(text, _Families, document=document).items()
    }
