"""Measurements: tables of measured collectives, one row per call.

Columns: topology, hosts, nranks (spread evenly over the hosts), collective, size_bytes (as
nccl-tests counts), dtype, nccl_version, time_us, source; dtype, version and source may be empty.
Output of nccl-tests, printed or JSON, is read directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from collectives.collective import (
    CollectiveKind,
    CollectiveSoftware,
    parse_kind,
    parse_nccl_version,
)
from collectives.group import wiring_of
from collectives.wiring import Wiring
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.extensions import has_extension, load_extension
from perfmodel.base.faults import FaultList, iter_misspelt
from perfmodel.base.reading import parse_rows, read_packed_text
from topologies import build_cluster, load_topology

COLUMNS = ("topology", "hosts", "nranks", "collective", "size_bytes", "time_us")
_KNOWN = {*COLUMNS, "dtype", "nccl_version", "source", "id", "fault", "column_ratio"}
_NS_PER_US = 1e3
_LEAST_US, _MOST_US = 1e-3, 1e12
_MOST_BYTES = 2**50
MOST_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class RunPlace:
    """What nccl-tests does not say: the *topology*, and hosts and collective of some prints."""

    topology: str | None = None
    hosts: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMeasurement:
    """One measured call; *row* names it in reports.

    A *fault* says why the row is not valid. *column_ratio* is the time that its own rate tells,
    relative to the stated one.
    """

    row: str
    topology: str
    hosts: int
    ranks: int
    kind: CollectiveKind
    size_bytes: int
    duration_ns: float
    dtype: DType = DType.FP32
    nccl_version: tuple[int, ...] | None = None
    source: str = ""
    fault: str = ""
    column_ratio: float = 1.0

    @property
    def software(self) -> CollectiveSoftware:
        """The library it ran with, or today's where the table does not say."""
        if self.nccl_version is None:
            return CollectiveSoftware()
        return CollectiveSoftware(nccl_version=self.nccl_version)

    @property
    def group(self) -> str:
        """The key of a line of the scoreboard: topology, hosts, collective and library."""
        parts = [self.topology, f"{self.hosts}x{self.ranks // self.hosts}"]
        if self.hosts == 1:
            parts[1] = "one host"
        version = "?" if self.nccl_version is None else ".".join(map(str, self.nccl_version))
        return " ".join([*parts, self.kind.value, f"nccl {version}"])

    def wiring(self) -> Wiring:
        """What its group saw."""
        return wiring_of_run(self.topology, self.hosts, self.ranks)


@lru_cache(maxsize=1024)
def wiring_of_run(topology: str, hosts: int, ranks: int) -> Wiring:
    """The wiring of all *ranks*, spread evenly over *hosts* machines of the catalog.

    Of a PCIe host that says no more the direct route is taken: constants fitted to its rows say
    what is left of it.
    """
    machine = load_topology(topology).idle
    asked = build_cluster(machine, hosts=hosts, ranks=ranks)
    members = np.arange(asked.rank_count)
    is_assumed = wiring_of(members, asked).is_peer_assumed
    if is_assumed:
        asked = build_cluster(replace(machine, peer_to_peer=True), hosts=hosts, ranks=ranks)
    found = wiring_of(members, asked)
    return replace(found, is_of_table=True, is_peer_assumed=is_assumed)


def load_measurements(
    paths: Sequence[Path], *, place: RunPlace | None = None
) -> tuple[CollectiveMeasurement, ...]:
    """Read tables; every fault of a table is reported at once.

    *place* says what output of nccl-tests does not.
    """
    found: list[CollectiveMeasurement] = []
    for path in paths:
        prefix = f"{path.stem}:" if len(paths) > 1 else ""
        found += _load_table(path, prefix, place or RunPlace())
    if not found:
        raise MeasurementError(
            f"{', '.join(str(path) for path in paths)}: must hold at least one measurement."
        )
    return tuple(found)


def _load_table(path: Path, prefix: str, place: RunPlace) -> list[CollectiveMeasurement]:
    faults = FaultList(str(path))
    rows: list[CollectiveMeasurement] = []
    text, foreign = read_packed_text(path, MeasurementError), None
    if has_extension("formats"):
        reader = load_extension("formats", "nccl_tests")
        foreign = reader.read_foreign(text, document=str(path), place=place)
    records: Iterable[Mapping[str, str | None]] = (
        parse_rows(text, document=str(path), error_type=MeasurementError, needed=COLUMNS)
        if foreign is None
        else foreign
    )
    for number, record in enumerate(records):
        if not number:
            for key, meant in iter_misspelt(record.keys() - _KNOWN, _KNOWN - record.keys()):
                faults.add(f"column {key}", f"is not known; {meant} is. Correct it")
        row = f"{prefix}{record.get('id') or number}"
        try:
            rows.append(_parse_row(record, row))
        except (InputError, ValueError, TypeError, OverflowError) as fault:
            faults.add(f"row {row}", " ".join(str(fault).split())[:200])
    faults.check(MeasurementError)
    return rows


def _parse_row(record: Mapping[str, str | None], row: str) -> CollectiveMeasurement:
    time_us = float(record["time_us"] or "nan")
    hosts, ranks = int(record["hosts"] or 0), int(record["nranks"] or 0)
    size_bytes = int(record["size_bytes"] or -1)
    if not _LEAST_US <= time_us <= _MOST_US:
        raise MeasurementError(f"time_us must be above zero, got {record['time_us']!r}")
    if not 1 <= hosts <= ranks <= MOST_RANKS or ranks % hosts:
        raise MeasurementError(
            f"{ranks} ranks (at most {MOST_RANKS}) must spread evenly over {hosts} hosts"
        )
    if not 0 <= size_bytes <= _MOST_BYTES:
        raise MeasurementError(f"size_bytes must be 0 to {_MOST_BYTES}, got {size_bytes}")
    dtype, version = record.get("dtype"), record.get("nccl_version")
    return CollectiveMeasurement(
        row=row,
        topology=str(record["topology"]).strip(),
        hosts=hosts,
        ranks=ranks,
        kind=parse_kind(str(record["collective"])),
        size_bytes=size_bytes,
        duration_ns=time_us * _NS_PER_US,
        dtype=parse_dtype(dtype) if dtype else DType.FP32,
        nccl_version=parse_nccl_version(version) if version else None,
        source=str(record.get("source") or ""),
        fault=str(record.get("fault") or ""),
        column_ratio=float(record.get("column_ratio") or 1.0),
    )
