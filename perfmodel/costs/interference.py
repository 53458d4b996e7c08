"""Interference constants: how much longer kernels take beside a collective, by generation.

A collective whose kernel waits for other ranks only holds multiprocessors; one
that moves bytes also takes memory bandwidth. A generation that nobody recorded
takes the constants of the nearest, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import resources

from perfmodel.base.documents import FaultList, parse_yaml
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.calibration_files import GENERATIONS, HEADER_KEYS
from topologies import Device
from topologies.device import Architecture

SLOWED_FAMILIES = ("gemm", "memory", "attention", "embedding")
"""Families of kernels that need multiprocessors; copies and the host do not."""
_AMD = "cdna"
_ENTRY_KEYS = {"slowdown", "measured", "low", "high", "kernels"}


class Phase(IntEnum):
    """What the collectives beside a kernel do: nothing, wait for other ranks, or move bytes."""

    NONE = 0
    WAITING = 1
    MOVING = 2

    @property
    def word(self) -> str:
        """The phase as files write it."""
        return self.name.lower()


BESIDE = (Phase.WAITING, Phase.MOVING)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times longer a family takes in a phase; *kernels* is how many were seen so.

    Where none was seen the value is that of other generations or families.
    """

    factor: float
    kernels: int


@dataclass(frozen=True, slots=True)
class GenerationSlowdowns:
    """The constants of one *architecture*, by family and phase.

    *is_own* is False where they were taken over for a generation without any.
    """

    architecture: str
    of: Mapping[tuple[str, Phase], Slowdown]
    is_own: bool = True

    def factor(self, family: str, phase: Phase) -> float:
        """How many times longer *family* takes in *phase*; 1 for what nothing slows."""
        found = self.of.get((family, phase))
        return 1.0 if found is None else found.factor


NOTHING_SLOWED = GenerationSlowdowns("", {})
"""For durations that were recorded or stated."""


def slowdowns_for(device: Device) -> GenerationSlowdowns:
    """The constants of the generation of *device*, or those of the nearest.

    None for a CPU: what was seen on GPUs says nothing about its cores.
    """
    if device.architecture is Architecture.CPU:
        return NOTHING_SLOWED
    return nearest_slowdowns(load_slowdowns(), device.architecture.value)


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
    file = resources.files("perfmodel.costs") / "calibrations" / "interference.yaml"
    return parse_slowdowns(file.read_text(encoding="utf-8"), document="interference.yaml")


def parse_slowdowns(text: str, *, document: str) -> dict[str, GenerationSlowdowns]:
    """Read constants from *text*; *document* names it in errors."""
    content = parse_yaml(text, document=document, error_type=CalibrationError)
    faults = FaultList(document)
    for key in (*HEADER_KEYS, "generations"):
        if not content.get(key):
            faults.add(key, "must be given. Make the file with `perfmodel calibrate interference`")
    for key in sorted(set(content) - {*HEADER_KEYS, "generations"}):
        faults.add(key, "is not a key of this file")
    faults.check(CalibrationError)
    found = {
        name: GenerationSlowdowns(name, _families(entry, f"generations.{name}", faults))
        for name, entry in content["generations"].items()
    }
    faults.check(CalibrationError)
    return found


def _families(entry: object, place: str, faults: FaultList) -> dict[tuple[str, Phase], Slowdown]:
    found: dict[tuple[str, Phase], Slowdown] = {}
    if not isinstance(entry, dict) or set(entry) != set(SLOWED_FAMILIES):
        faults.add(place, f"must have the families {', '.join(SLOWED_FAMILIES)}")
        return found
    for family, phases in entry.items():
        if not isinstance(phases, dict) or set(phases) != {phase.word for phase in BESIDE}:
            faults.add(f"{place}.{family}", "must have the phases waiting and moving")
            continue
        for phase in BESIDE:
            slowdown = _slowdown(phases[phase.word], f"{place}.{family}.{phase.word}", faults)
            if slowdown is not None:
                found[family, phase] = slowdown
    return found


def _slowdown(entry: object, place: str, faults: FaultList) -> Slowdown | None:
    if not isinstance(entry, dict) or not set(entry) <= _ENTRY_KEYS or "slowdown" not in entry:
        faults.add(place, f"must be slowdown and, where seen, {', '.join(sorted(_ENTRY_KEYS))}")
        return None
    factor, kernels = entry["slowdown"], entry.get("kernels", 0)
    if not isinstance(factor, int | float) or not 1 <= factor < 10:
        faults.add(f"{place}.slowdown", f"must be a number from 1 to 10, got {factor!r}")
        return None
    if not isinstance(kernels, int) or kernels < 0:
        faults.add(f"{place}.kernels", f"must be a count, got {kernels!r}")
        return None
    return Slowdown(float(factor), kernels)
