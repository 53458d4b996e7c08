"""Constants of embedding kernels: what fused lookups reach on each generation of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from perfmodel.base.documents import parse_yaml
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Parsed, Positive
from perfmodel.base.forms import Form
from perfmodel.base.units import parse_duration_ns
from perfmodel.costs.calibration_files import (
    LOOKUPS,
    own_entries,
    parse_generations,
    shipped_text,
)
from topologies import Device

FALLBACK = "ampere"
"""The generation whose constants others borrow."""
BORROWED_SIGMA = 0.2
_FILE = "embedding.yaml"


_Time = Annotated[float, Parsed(parse_duration_ns, "4 us", "10000 s")]


@dataclass(frozen=True, slots=True)
class EmbeddingConstants(Form):
    """What fused kernels reach on one generation.

    *memory_ratio* and *cache_ratio* are of the datasheet's bandwidths for gathered rows,
    *plain_cache_ratio* the latter in kernels other than FBGEMM's, which handle fewer cases.
    *update_ratio* is of memory bandwidth for rows that are read and written back, anywhere in a
    table, *sort_ratio* for sorting indices. *updates_per_clock* are numbers added
    in place by the whole GPU, *row_updates_per_clock* those to one row. *block_ns* is what an empty
    block of 16 warps takes on its SM and *long_row_ns* what a block spends on a row with many
    updates, both in the kernels of 2022. *tail_row_ns* is a row of a bag that runs alone,
    *fetched_ns* what each 512 bytes of a row from memory take on its SM, latency over rows in
    flight.
    """

    floor_ns: _Time
    memory_ratio: Positive
    cache_ratio: Positive
    plain_cache_ratio: Positive
    update_ratio: Positive
    sort_ratio: Positive
    updates_per_clock: Positive
    row_updates_per_clock: Positive
    block_ns: Annotated[_Time, Field(alias="block_time")]
    long_row_ns: Annotated[_Time, Field(alias="long_row_time")]
    tail_row_ns: Annotated[_Time, Field(alias="tail_row_time")]
    fetched_ns: Annotated[_Time, Field(alias="fetched_time")]
    relative_sigma: Positive


CONSTANTS = tuple(one.name for one in fields(EmbeddingConstants) if one.name != "relative_sigma")
"""The names of what is fitted."""


def measured_constants(device: Device) -> EmbeddingConstants | None:
    """The constants in calibration files of *device* that were measured on it."""
    for entry in own_entries(LOOKUPS, device):
        if entry.device != device.name:
            continue
        if set(entry.constants) != set(CONSTANTS):
            raise CalibrationError(
                f"constants of lookups on {entry.device}: must be {', '.join(CONSTANTS)}, got "
                f"{', '.join(entry.constants)}. Make them with `perfmodel calibrate embedding`."
            )
        return EmbeddingConstants(**entry.constants, relative_sigma=entry.relative_sigma)
    return None


def constants_for(device: Device) -> EmbeddingConstants:
    """The constants measured on *device*, those of its generation, or borrowed ones."""
    if (own := measured_constants(device)) is not None:
        return own
    generations = load_constants()
    borrowed = generations[FALLBACK]
    sigma = max(borrowed.relative_sigma, BORROWED_SIGMA)
    borrowed = replace(borrowed, relative_sigma=sigma)
    return generations.get(device.generation, borrowed)


def borrowed_lookups(device: Device) -> tuple[str, ...]:
    """What it means for lookups on *device* that no constant of them was measured there."""
    if device.generation in load_constants() or measured_constants(device) is not None:
        return ()
    sentence = (
        f"Lookups and updates borrow the constants of {FALLBACK}, because none were measured on "
        f"{device.generation}: {BORROWED_SIGMA:.0%} (1 sigma). `perfmodel calibrate embedding` "
        "fits your own GPU."
    )
    return (sentence,)


def describe_constants(device: Device) -> str:
    """Which constants price lookups on *device*, and what they were fitted to."""
    if measured_constants(device) is not None:
        return f"{device.name}, from {', '.join(Path(file).name for file in device.calibrations)}"
    content = parse_yaml(shipped_text(_FILE), document=_FILE, error_type=CalibrationError)
    architecture = device.generation
    is_own = architecture in content["generations"]
    origin = architecture if is_own else f"{FALLBACK}, borrowed for {architecture}"
    return f"{origin}: {content['hardware']}; {content['software']}; {content['date']}"


@cache
def load_constants() -> dict[str, EmbeddingConstants]:
    """The constants that come with perfmodel, by generation."""
    return parse_constants(shipped_text(_FILE), document=_FILE)


def parse_constants(text: str, *, document: str) -> dict[str, EmbeddingConstants]:
    """Read constants from *text*; *document* names it in errors."""
    found = parse_generations(text, EmbeddingConstants, document=document)
    if FALLBACK not in found:
        raise CalibrationError(f"{document}: must have constants of {FALLBACK}.")
    return found
