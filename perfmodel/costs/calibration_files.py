"""Calibration files: fitted constants with their origin, and which of them a device uses.

A device without its own constants borrows those of the nearest device: of the same architecture,
else of the same class of chip (data centre or graphics), else of any. Constants are ratios of
datasheet values, so they carry over; the distance widens the interval. A board with fewer watts
for its rate than the one that was measured is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, create_model

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Line, ReadAs
from perfmodel.base.forms import CalibrationHeader, Document, Form, parse_document
from perfmodel.base.reading import is_json, parse_json, quote, read_text
from perfmodel.costs.corrections import (
    Correction,
    OrderedCorrection,
    correction_from_document,
    ordered_from_document,
)
from topologies import Device, list_devices, load_device
from topologies.device import ChipClass, find_twin

T = TypeVar("T")
GENERATIONS = {
    "pascal": 1, "volta": 2, "ampere": 3, "ada": 4, "hopper": 4, "cdna3": 4, "blackwell": 5,
    "cdna4": 5,
}  # fmt: skip
"""Order of architectures: constants are borrowed from the nearest generation."""
FAMILY_SIGMA = 0.04
KINDS = ("attention", "embedding", "experts", "gemm", "memory")
LOOKUPS = "embedding"
"""The kind whose shipped constants are by generation, in a file of their own form."""
MOST_BYTES = 64 * 2**20
HEADER_KEYS = tuple(one.name for one in fields(CalibrationHeader))


_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Arrays = dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Entry(Form):
    """Constants fitted for one device (and *variant*: a kind of arithmetic, a kernel).

    *curves* are tables of (place, value) for what has no formula; *ordered* is a
    correction that keeps the order of the physics, in place of a free one.
    """

    device: str
    architecture: str
    compute_capability: str
    variant: str
    constants: Mapping[str, _Finite]
    correction: Annotated[Correction | None, ReadAs(_Arrays, correction_from_document)]
    relative_sigma: Annotated[float, Field(strict=True, ge=0, le=10)]
    curves: Mapping[str, Sequence[Sequence[_Finite]]] = field(default_factory=dict)
    ordered: Annotated[OrderedCorrection | None, ReadAs(_Arrays, ordered_from_document)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFile(CalibrationHeader):
    """A file of fitted constants of kernels: its header and its entries."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The entry to use for a device, and the uncertainty that borrowing it adds."""

    entry: Entry
    borrowed_sigma: float

    @property
    def is_own(self) -> bool:
        """Whether the constants were fitted on this device."""
        return self.borrowed_sigma == 0.0

    @property
    def is_family(self) -> bool:
        """Whether they were fitted on a chip of the same generation and class, or the device."""
        return self.borrowed_sigma <= FAMILY_SIGMA


@cache
def load_entries(name: str) -> tuple[Entry, ...]:
    """All entries of the calibration *name* that comes with perfmodel: a file, or a folder."""
    shelf = resources.files("perfmodel.costs") / "calibrations"
    folder, file = shelf / name, shelf / f"{name}.json"
    files = [file] if file.is_file() else []
    if folder.is_dir():
        files += sorted(
            (one for one in folder.iterdir() if one.name.endswith(".json")),
            key=lambda one: one.name,
        )
    if not files:
        raise CalibrationError(f"calibration {name!r}: is not a shipped calibration file.")
    return tuple(
        entry
        for one in files
        for entry in parse_entries(one.read_text(encoding="utf-8"), document=one.name)
    )


def entries_for(name: str, device: Device) -> tuple[Entry, ...]:
    """The entries of *name*: those in calibration files of *device*, then the shipped ones."""
    own = own_entries(name, device)
    return (*own, *load_entries(name)) if own else load_entries(name)


def own_entries(name: str, device: Device) -> tuple[Entry, ...]:
    """The entries of *name* in calibration files of *device*."""
    own: list[Entry] = []
    for file in device.calibrations:
        path = Path(file)
        if is_json(path):
            own += _load_own(path, path.stat().st_mtime_ns if path.is_file() else 0).get(name, ())
    return tuple(own)


@lru_cache(maxsize=8)
def _load_own(path: Path, changed_ns: int) -> Mapping[str, tuple[Entry, ...]]:
    """The entries of a user's file by kind; *changed_ns* makes a rewritten file a new key."""
    del changed_ns
    text = read_text(path, CalibrationError, MOST_BYTES)
    file = _parse(text, str(path))
    # The command that made the file names the kind of kernel.
    kind = next((word for word in file.command.split() if word in KINDS), "")
    if not kind:
        raise CalibrationError(
            f"{path}: command must be `perfmodel calibrate KIND ...`, of a kind among "
            f"{', '.join(KINDS)}, got {quote(file.command)}."
        )
    for entry in file.entries if kind != LOOKUPS else ():
        _check_names(entry, kind, f"{path}, {entry.device}")
    return {kind: file.entries}


def _check_names(entry: Entry, kind: str, place: str) -> None:
    """Raise unless *entry* has the constants that the shipped entries have."""
    own = load_entries(kind)
    known = {name for one in own for name in one.constants}
    needed = {name for name in known if all(name in one.constants for one in own)}
    missing, unknown = needed - set(entry.constants), set(entry.constants) - known
    if missing or unknown:
        words = [f"missing {quote(one)}" for one in sorted(missing)]
        words += [f"unknown {quote(one)}" for one in sorted(unknown)]
        raise CalibrationError(f"{place}: constants of {kind} do not fit: {', '.join(words)}.")


def parse_entries(text: str, *, document: str) -> tuple[Entry, ...]:
    """The entries in *text*; *document* names it in errors."""
    return _parse(text, document).entries


def _parse(text: str, document: str) -> CalibrationFile:
    content = parse_json(text, document=document, error_type=CalibrationError)
    advice = "Make it with `perfmodel calibrate`."
    return Document(document, content, CalibrationError, advice=advice).read(CalibrationFile)


def match_entry(
    entries: Sequence[Entry],
    device: Device,
    variant: str,
    *,
    apart: Callable[[Entry], float] = lambda _entry: 0.0,
) -> Match | None:
    """The nearest entry of *variant* for *device*, or None where there is none at all.

    Of several that are equally near, the least *apart* is used, then the first by name.
    """
    candidates = [entry for entry in entries if entry.variant == variant]
    if not candidates:
        return None
    return min(
        (Match(entry, _distance_sigma(entry, device)) for entry in candidates),
        key=lambda match: (match.borrowed_sigma, apart(match.entry), match.entry.device),
    )


def _distance_sigma(entry: Entry, device: Device) -> float:
    """The uncertainty that borrowing adds, from leave-one-device-out errors."""
    if entry.device in (device.name, find_twin(device)):
        return 0.0
    is_same_class = _class_of(entry) is device.kernel_class
    steps = abs(generations_between(entry, device))
    if entry.architecture == device.generation and is_same_class:
        return FAMILY_SIGMA
    if not is_same_class:
        return 0.25 + 0.02 * steps
    is_data_centre = device.kernel_class is ChipClass.DATA_CENTRE
    return (0.14 if is_data_centre else 0.20) + 0.02 * steps


@cache
def _class_of_capability(capability: str) -> ChipClass | None:
    devices = (load_device(name) for name in list_devices())
    return next((one.kernel_class for one in devices if one.compute_capability == capability), None)


def _class_of(entry: Entry) -> ChipClass | None:
    shipped = find_shipped(entry.device)
    return shipped.kernel_class if shipped else _class_of_capability(entry.compute_capability)


def generations_between(entry: Entry, device: Device) -> int:
    """How many generations *device* is newer than the chip of *entry*."""
    then, now = entry.architecture, device.generation
    return GENERATIONS.get(now, 0) - GENERATIONS.get(then, 0)


def power_ratio(device: Device, reference: str | None) -> float:
    """How much slower *device* computes than the board of *reference*, for lack of power.

    Dynamic power is proportional to clock and voltage squared, and voltage to clock: a chip with
    less power per peak rate is slower by the cube root of the ratio. The rate is that of the
    catalog: a chip with another peak than there is taken to need no more power, and so is never
    slower for a higher one.
    """
    wanted = None if reference is None else find_shipped(reference)
    rate = (find_shipped(find_twin(device)) or device).peak_flops.get(DType.FP16)
    if wanted is None or rate is None or DType.FP16 not in wanted.peak_flops:
        return 1.0
    wanted_w = wanted.power_w / wanted.peak_flops[DType.FP16] * rate
    return float((wanted_w / device.power_w) ** (1 / 3))


@lru_cache(maxsize=32)
def find_shipped(name: str) -> Device | None:
    """The device *name* as the catalog has it."""
    return load_device(name) if name in list_devices() else None


def strict_form(name: str, **kinds: Any) -> Any:
    """A form with the keys *kinds*, which are known at run time only; others are refused."""
    keys: Any = {key: (kind, ...) for key, kind in kinds.items()}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **keys)


def parse_generations(text: str, kind: type[T], *, document: str) -> dict[str, T]:
    """The generations in the YAML *text*, each read as *kind*; *document* names it in errors."""
    header = dict.fromkeys(HEADER_KEYS, Line)
    form = strict_form("GenerationsFile", **header, generations=dict[str, kind])  # type: ignore[valid-type]  # a type at run time
    generations: dict[str, T] = (
        parse_document(text, document, CalibrationError).read(form).generations
    )
    return generations


def shipped_text(name: str) -> str:
    """The calibration file *name* that comes with perfmodel."""
    file = resources.files("perfmodel.costs") / "calibrations" / name
    return file.read_text(encoding="utf-8")
