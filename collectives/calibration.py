"""Calibration: the file of fitted constants, and which of them apply to a group and a release.

A host entry applies to a GPU generation on a class of links, or only to the machines it names. A
machine without an entry borrows that of its generation, then of its class of links, with a wider
interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from collectives.collective import CollectiveKind, CollectiveSoftware, Protocol
from collectives.constants import (
    FabricConstants,
    FabricEntry,
    HostConstants,
    HostEntry,
    MeasuredSpan,
    SoftwareConstants,
    WholeBytes,
)
from collectives.movement import FloatArray, Movement
from collectives.timing import Choice, predict_duration_ns
from collectives.tuner import Tuner, TunerConstants
from collectives.wiring import HostLinkClass, Wiring
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.fields import Count, ReadAs, Words
from perfmodel.base.forms import CalibrationHeader, load_document
from perfmodel.base.provenance import Provenance
from perfmodel.base.reading import is_json, quote
from topologies import Device

CALIBRATIONS = Path(__file__).parent / "calibrations"
SCHEMA_VERSION = 2
TRANSFER_SIGMA = 0.2
UNCOVERED, PER_DOUBLING = 0.6, 0.1
"""With them 94 % of the rows of the largest host counts, left out, fall in the interval."""
OTHER_LIBRARY_SIGMA = 0.4
"""Error where GPUs have another library, RCCL over Infinity Fabric, of which nothing was measured:
it is taken to work as NCCL does on a mesh of NVLink. Assumed, as wide as a factor of 2."""
UNKNOWN_PEER_SIGMA = 0.7
"""NCCL stages in host memory what GPUs cannot send each other over PCIe, at a third of the rate or
less: ln(3.2) / 1.645. Of five public runs on such hosts three are within 27 %; the other two, 22
and 33 times slower, let kernels store into the memory of other GPUs and use no NCCL for it."""

REDUCTIONS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)

__all__ = ["Calibration", "calibration_for", "load_calibration", "load_default_calibration"]


class Constants(NamedTuple):
    """What applies to one group: inside its hosts, between them unless it has one, and factors."""

    host: HostConstants
    fabric: FabricConstants | None
    software: SoftwareConstants


class Call(NamedTuple):
    """What calls of one kind have in common besides their sizes."""

    kind: CollectiveKind
    software: CollectiveSoftware = CollectiveSoftware()
    dtype: DType = DType.FP32


_Row = tuple[Words, CollectiveKind, Count, Count, WholeBytes, WholeBytes]
"""A measured span in a file: topology, kind, hosts, ranks, lowest and highest bytes."""
_Deviation = Annotated[float, Field(strict=True, ge=0, lt=10, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(CalibrationHeader):
    """All fitted constants, with what they were fitted on.

    *uncertainty* holds relative standard deviations by machine/spread/kind/regime. *tuner* is
    NCCL's planning table, the same for all files.
    """

    schema_version: Literal[2] = 2
    hosts: tuple[HostEntry, ...]
    fabrics: tuple[FabricEntry, ...]
    software_constants: SoftwareConstants
    uncertainty: Mapping[str, _Deviation]
    spans: Annotated[
        tuple[MeasuredSpan, ...],
        ReadAs(tuple[_Row, ...], lambda rows: tuple(MeasuredSpan(*row) for row in rows)),
        Field(alias="measured"),
    ]
    tuner: TunerConstants = field(init=False, repr=False, compare=False)
    _spans: Mapping[tuple[str, CollectiveKind], tuple[MeasuredSpan, ...]] = field(
        init=False, repr=False
    )

    def __post_init__(self) -> None:
        if not self.hosts or not self.fabrics:
            raise CalibrationError(
                "calibration: must hold host and fabric entries. Fit it from tables of both."
            )
        table: dict[tuple[str, CollectiveKind], tuple[MeasuredSpan, ...]] = {}
        for span in self.spans:
            key = (span.topology, span.kind)
            table[key] = (*table.get(key, ()), span)
        object.__setattr__(self, "_spans", table)
        object.__setattr__(self, "tuner", _load_tuner())

    def host_entry(self, wiring: Wiring) -> HostEntry:
        """The entry nearest to *wiring*: its machine, then NVLink or not, generation and class."""
        return min(self.hosts, key=lambda entry: _distance(entry, wiring))

    def fabric_entry(self, wiring: Wiring) -> FabricEntry:
        """The entry of the machine's network; the first entry if it was not measured."""
        for entry in self.fabrics:
            if wiring.measured in entry.machines:
                return entry
        return self.fabrics[0]

    def constants(self, wiring: Wiring) -> Constants:
        """What applies to a group with *wiring*."""
        fabric = self.fabric_entry(wiring).constants if wiring.host_count > 1 else None
        return Constants(self.host_entry(wiring).constants, fabric, self.software_constants)

    def provenance(self, wiring: Wiring, kind: CollectiveKind, size_bytes: float) -> Provenance:
        """How well this call is covered by what was measured."""
        is_like_measured = not self._is_unlike_measured(wiring)
        spans = self._spans.get((wiring.measured, kind), ()) if is_like_measured else ()
        for span in spans:
            if span.holds(wiring.host_count, wiring.rank_count, size_bytes):
                return Provenance.INTERPOLATED
        if not spans and wiring.architecture not in _GENERATIONS:
            return Provenance.ASSUMED
        is_scaled = spans or self.host_entry(wiring).link_class.is_nvlink
        return Provenance.EXTRAPOLATED if is_scaled else Provenance.ANALYTIC

    def relative_sigma(
        self, wiring: Wiring, kind: CollectiveKind, size_bytes: float, latency_ratio: float
    ) -> float:
        """One standard deviation of the relative error, from rows held out of the fit.

        Groups and sizes of a measured machine that were not in the fit themselves are given at
        least *UNCOVERED* of the error of machines left out, and more with every doubling of hosts
        beyond those measured: what a network loses with hosts, fewer of them cannot tell.
        """
        spread = "one_host" if wiring.host_count == 1 else "several_hosts"
        regime = regime_of(latency_ratio)
        unseen = self.uncertainty.get(f"unseen/{spread}/any/{regime}", TRANSFER_SIGMA)
        words = () if self._is_unlike_measured(wiring) else (kind.value, "any")
        for word in words:
            sigma = self.uncertainty.get(f"{wiring.measured}/{spread}/{word}/{regime}")
            if sigma is not None:
                is_covered = self.provenance(wiring, kind, size_bytes) is Provenance.INTERPOLATED
                spans = self._spans.get((wiring.measured, kind), ())
                measured = max((span.hosts for span in spans), default=wiring.host_count)
                beyond = max(0.0, math.log2(wiring.host_count / measured))
                least = (UNCOVERED + PER_DOUBLING * beyond) * unseen
                return sigma if is_covered else max(sigma, least)
        if wiring.architecture not in _GENERATIONS:
            return max(unseen, OTHER_LIBRARY_SIGMA)
        return max(unseen, UNKNOWN_PEER_SIGMA) if wiring.is_peer_assumed else unseen

    def _is_unlike_measured(self, wiring: Wiring) -> bool:
        """Whether the only host of that name that was measured is an odd one."""
        name = wiring.measured
        return name not in self.host_entry(wiring).machines and any(
            entry.is_odd and name in entry.machines for entry in self.hosts
        )


REGIMES = ("bandwidth", "middle", "latency")


def regime_of(latency_ratio: float) -> str:
    """What rules a call, by the share of latency in its time: errors differ most by that."""
    return REGIMES[(latency_ratio > 0.1) + (latency_ratio > 0.5)]


_GENERATIONS = ("pascal", "volta", "ampere", "ada", "hopper", "blackwell")


def _distance(entry: HostEntry, wiring: Wiring) -> tuple[float, ...]:
    """How far *entry* is from *wiring*; the smallest wins, ties by order in the file."""
    if wiring.measured in entry.machines and (wiring.is_of_table or not entry.is_odd):
        return (-math.inf,)
    link_class = wiring.link_class
    if link_class is HostLinkClass.NONE:
        link_class = HostLinkClass.NVSWITCH
    if entry.machines:
        return (math.inf,)
    far_family = int(entry.link_class.is_nvlink != link_class.is_nvlink)
    far_class = int(entry.link_class is not link_class)
    if not link_class.is_nvlink:  # PCIe is the same wire in every generation of GPU
        return (far_family, far_class, generations_apart(entry.architecture, wiring.architecture))
    return (far_family, generations_apart(entry.architecture, wiring.architecture), far_class)


def generations_apart(first: str, second: str) -> int:
    """How many GPU generations are between two; all of them if one is unknown."""
    if first not in _GENERATIONS or second not in _GENERATIONS:
        return 0 if first == second else len(_GENERATIONS)
    return abs(_GENERATIONS.index(first) - _GENERATIONS.index(second))


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file; all its faults are reported at once."""
    document = load_document(path, CalibrationError)
    if not {"hosts", "fabrics"} & set(document.content):
        raise CalibrationError(
            f"{path}: is not a calibration of collectives. "
            "`perfmodel calibrate collectives TABLE --out FILE` writes one."
        )
    if document.content.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise CalibrationError(
            f"{path}: schema_version must be {SCHEMA_VERSION}, got "
            f"{quote(document.content['schema_version'])}. Fit it again with this version of "
            "perfmodel."
        )
    return document.read(Calibration)


@lru_cache(maxsize=1)
def _load_tuner() -> TunerConstants:
    path = CALIBRATIONS / "nccl_tuner.yaml"
    return load_document(path, CalibrationError).read(TunerConstants)


@lru_cache(maxsize=1)
def load_default_calibration() -> Calibration:
    """The calibration that ships with the package."""
    return load_calibration(CALIBRATIONS / "nccl.yaml")


def calibration_for(device: Device) -> Calibration:
    """The constants measured on machines of *device*, or those that ship with the package.

    Of its files those of kernels are JSON; of YAML files those of measured runs have `anchors`, and
    those of timed kernels `kernels`. Of several files of collectives the last one that has
    constants of a machine counts there.
    """
    own = [_load_own(path, _changed_ns(path)) for path in map(Path, device.calibrations)]
    files = [one for one in own if isinstance(one, Calibration)]
    return reduce(_merge, files) if files else load_default_calibration()


def holds_anchors(path: Path) -> bool:
    """Whether the constants in the file at *path* are measured runs or timed kernels."""
    return path.is_file() and _load_own(path, _changed_ns(path)) is _Other.ANCHORS


class _Other(Enum):
    """Files of constants that are not of collectives."""

    KERNELS = "kernels"
    ANCHORS = "anchors"


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


def _merge(first: Calibration, second: Calibration) -> Calibration:
    """The constants of both files, those of the *second* first.

    A file of a few rows repeats the shipped constants of all other machines: those are not its own.
    """
    shipped = load_default_calibration()
    own = {
        key: sigma
        for key, sigma in second.uncertainty.items()
        if key not in first.uncertainty or shipped.uncertainty.get(key) != sigma
    }
    return replace(
        first,
        hosts=_own_first(second.hosts, first.hosts, shipped.hosts),
        fabrics=_own_first(second.fabrics, first.fabrics, shipped.fabrics),
        uncertainty={**first.uncertainty, **own},
        spans=(*second.spans, *(one for one in first.spans if one not in second.spans)),
    )


def _own_first(last: Sequence[Any], first: Sequence[Any], shipped: Sequence[Any]) -> Any:
    """Entries that are a file's own, those of the *last* one first, then shipped ones of either."""
    ordered = [one for one in (*last, *first) if one not in shipped]
    ordered += [one for one in shipped if one in last or one in first]
    return tuple(one for number, one in enumerate(ordered) if one not in ordered[:number])


@lru_cache(maxsize=8)
def _load_own(path: Path, changed_ns: int) -> Calibration | _Other:
    """A file is read again when it was written again at *changed_ns*."""
    del changed_ns
    if is_json(path):
        return _Other.KERNELS
    if {"anchors", "kernels"} & set(load_document(path, CalibrationError).content):
        return _Other.ANCHORS
    return load_calibration(path)


def build_tuner(wiring: Wiring, calibration: Calibration) -> Tuner:
    """NCCL's tuner as it sees *wiring*."""
    if wiring.host_count == 1:
        return Tuner(calibration.tuner, wiring, tuple(Protocol))
    entry = calibration.fabric_entry(wiring)
    return Tuner(
        calibration.tuner,
        wiring,
        entry.protocols,
        entry.pair_ll_bytes,
        entry.tree_reach,
    )


def predict_call_ns(
    call: Call, movement: Movement, choice: Choice, wiring: Wiring, constants: Constants
) -> FloatArray:
    """Predict how long *movement* takes for *call*, with what its release and format change."""
    host = constants.host
    if call.software.is_before_2_24:
        host = host.before_2_24(constants.software)
    duration_ns = predict_duration_ns(
        movement, choice, wiring=wiring, host=host, fabric=constants.fabric
    )
    # Adding numbers of one byte takes longer.
    is_slow = call.dtype.size_bytes == 1 and call.kind in REDUCTIONS
    return duration_ns * (constants.software.byte_reduction_ratio if is_slow else 1.0)
