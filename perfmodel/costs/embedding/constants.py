"""Constants of embedding kernels by GPU generation, from a calibration file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from perfmodel.base.documents import FaultList, parse_yaml
from perfmodel.base.errors import CalibrationError, InputError
from perfmodel.base.units import parse_duration_ns
from topologies import Device

HEADER = ("source", "hardware", "software", "date", "licence", "command")
FALLBACK = "ampere"
_FILE = "embedding.yaml"
BORROWED_SIGMA = 0.2
_TIMES = ("floor", "block_time", "long_row_time", "tail_row_time")
_NUMBERS = ("memory_ratio", "cache_ratio", "sort_ratio", "updates_per_clock", "relative_sigma")


@dataclass(frozen=True, slots=True)
class EmbeddingConstants:
    """What fused kernels reach on one generation.

    *memory_ratio* and *cache_ratio* are of the datasheet's bandwidths for
    gathered rows, *sort_ratio* of memory bandwidth for sorting indices.
    *updates_per_clock* are numbers added in place, whole GPU. *block_ns* is
    what an empty block of 16 warps takes on its SM and *long_row_ns* what a
    block spends on a row with many updates, both in the kernels of 2022.
    *tail_row_ns* is a row of a bag that is left alone.
    """

    floor_ns: float
    memory_ratio: float
    cache_ratio: float
    sort_ratio: float
    updates_per_clock: float
    block_ns: float
    long_row_ns: float
    tail_row_ns: float
    relative_sigma: float
    is_own: bool


def constants_for(device: Device) -> EmbeddingConstants:
    """The constants of the generation of *device*, or those borrowed from the nearest."""
    generations = load_constants()
    architecture = device.architecture.value
    return generations.get(architecture, generations[FALLBACK + " borrowed"])


def describe_constants(device: Device) -> str:
    """Whose constants price lookups on *device*, and what they were fitted to."""
    content = parse_yaml(_text(), document=_FILE, error_type=CalibrationError)
    architecture = device.architecture.value
    is_own = architecture in content["generations"]
    whose = architecture if is_own else f"{FALLBACK}, borrowed for {architecture}"
    return f"{whose}: {content['hardware']}; {content['software']}; {content['date']}"


def _text() -> str:
    file = resources.files("perfmodel.costs") / "calibrations" / _FILE
    return file.read_text(encoding="utf-8")


@cache
def load_constants() -> dict[str, EmbeddingConstants]:
    """The constants that come with perfmodel, by generation."""
    return parse_constants(_text(), document=_FILE)


def parse_constants(text: str, *, document: str) -> dict[str, EmbeddingConstants]:
    """Read constants from *text*; *document* names it in errors."""
    content = parse_yaml(text, document=document, error_type=CalibrationError)
    faults = FaultList(document)
    for key in (*HEADER, "generations"):
        if not content.get(key):
            faults.add(key, "must be given")
    faults.check(CalibrationError)
    found: dict[str, EmbeddingConstants] = {}
    for name, entry in content["generations"].items():
        values: dict[str, float] = {}
        for key in (*_TIMES, *_NUMBERS):
            try:
                value = entry[key]
                number = parse_duration_ns(value) if key in _TIMES else float(value)
            except (InputError, KeyError, TypeError, ValueError) as fault:
                faults.add(f"generations.{name}.{key}", f"cannot be read ({fault})")
                continue
            if not number > 0:
                faults.add(f"generations.{name}.{key}", f"must be above zero, got {value}")
            values[key.removesuffix("_time") + "_ns" if key in _TIMES else key] = number
        faults.check(CalibrationError)
        found[name] = EmbeddingConstants(**values, is_own=True)
    if FALLBACK not in found:
        raise CalibrationError(f"{document}: must have constants of {FALLBACK}.")
    borrowed = {**{key: getattr(found[FALLBACK], key) for key in values}}
    borrowed["relative_sigma"] = max(borrowed["relative_sigma"], BORROWED_SIGMA)
    found[FALLBACK + " borrowed"] = EmbeddingConstants(**borrowed, is_own=False)
    return found
