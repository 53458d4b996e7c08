"""The file format of calibrations: mappings to entries and back.

Numbers are rounded to six digits when written, so that a file is readable and a fit that is
repeated gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from collectives.collective import CollectiveKind
from collectives.constants import FabricConstants, HostConstants, SoftwareConstants
from collectives.software import CollectiveAlgorithm, Protocol
from collectives.tuner import GenerationPlan, TunerConstants
from collectives.wiring import HostLinkClass
from perfmodel.base.documents import FaultList
from perfmodel.base.errors import CalibrationError
from perfmodel.base.reading import quote


@dataclass(frozen=True, slots=True)
class HostEntry:
    """Constants inside a host; with *machines* only for hosts of these names.

    An *is_odd* host is unlike others of its name: its constants are for its own table, not for
    machines that somebody asks about.
    """

    name: str
    architecture: str
    link_class: HostLinkClass
    constants: HostConstants
    machines: tuple[str, ...] = ()
    is_odd: bool = False


@dataclass(frozen=True, slots=True)
class FabricEntry:
    """Constants between hosts, for the networks of *machines*.

    *protocols* are those the network plugin leaves NCCL, *tree_protocols* those with which logs
    show trees. A pairwise exchange with slices up to *pair_ll_bytes* goes by LL.
    """

    name: str
    machines: tuple[str, ...]
    constants: FabricConstants
    protocols: tuple[Protocol, ...] = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
    tree_protocols: tuple[Protocol, ...] = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
    pair_ll_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredSpan:
    """A curve that was in the fit: one machine, kind and group, over a span of sizes."""

    topology: str
    kind: CollectiveKind
    hosts: int
    ranks: int
    low_bytes: int
    high_bytes: int

    def holds(self, hosts: int, ranks: int, size_bytes: float) -> bool:
        """Whether a call of that group and size lies within the curve."""
        same_group = (hosts, ranks) == (self.hosts, self.ranks)
        return same_group and self.low_bytes <= size_bytes <= self.high_bytes


Constants = TypeVar("Constants", HostConstants, FabricConstants, SoftwareConstants)


def _parse_constants(kind: type[Constants], content: Any, place: str) -> Constants:
    faults = FaultList(place)
    names = [field.name for field in fields(kind)]
    given = content if isinstance(content, dict) else {}
    for name in names:
        if not _is_number(given.get(name)):
            faults.add(name, f"must be a number, got {quote(given.get(name))}")
    for name in given:
        if name not in names:
            faults.add(str(name), "is no constant of this block; remove it")
    faults.check(CalibrationError)
    return kind(**{name: float(given[name]) for name in names})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


_HOST_KEYS = ("name", "architecture", "link_class", "constants", "machines")
_FABRIC_KEYS = ("name", "constants", "machines", "protocols", "tree_protocols", "pair_ll_bytes")


def _check_entry(content: Mapping[str, Any], place: str, keys: Sequence[str], *more: str) -> None:
    """Raise unless *content* has all of *keys*, perhaps some *more*, and lists of words."""
    faults = FaultList(place)
    for key in keys:
        if key not in content:
            faults.add(key, "is missing")
    for key, value in content.items():
        if key not in (*keys, *more):
            faults.add(str(key), "is no key of this entry; remove it")
        elif key in ("machines", "protocols", "tree_protocols") and not (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        ):
            faults.add(key, f"must be a list of words, got {quote(value)}")
    faults.check(CalibrationError)


@contextmanager
def _told(place: str) -> Iterator[None]:
    """Say where a word is none of those that are known, or a number is none."""
    try:
        yield
    except (TypeError, ValueError) as fault:
        raise CalibrationError(f"{place}: {fault}.") from None


def parse_host(content: Mapping[str, Any]) -> HostEntry:
    """Read a host entry."""
    place = f"hosts.{content.get('name')}"
    _check_entry(content, place, _HOST_KEYS, "is_odd")
    with _told(place):
        return HostEntry(
            name=str(content["name"]),
            architecture=str(content["architecture"]),
            link_class=HostLinkClass(content["link_class"]),
            constants=_parse_constants(HostConstants, content["constants"], place),
            machines=tuple(content["machines"]),
            is_odd=content.get("is_odd") is True,
        )


def parse_fabric(content: Mapping[str, Any]) -> FabricEntry:
    """Read a fabric entry."""
    place = f"fabrics.{content.get('name')}"
    _check_entry(content, place, _FABRIC_KEYS)
    with _told(place):
        return FabricEntry(
            name=str(content["name"]),
            machines=tuple(content["machines"]),
            constants=_parse_constants(FabricConstants, content["constants"], place),
            protocols=tuple(Protocol(word) for word in content["protocols"]),
            tree_protocols=tuple(Protocol(word) for word in content["tree_protocols"]),
            pair_ll_bytes=int(content["pair_ll_bytes"]),
        )


def parse_software(content: Any) -> SoftwareConstants:
    """Read the software constants."""
    return _parse_constants(SoftwareConstants, content, "software_constants")


def parse_uncertainty(content: Any) -> dict[str, float]:
    """Read relative standard deviations by machine/spread/kind/regime."""
    if not isinstance(content, dict) or not all(
        isinstance(value, (int, float)) and 0 <= value < 10 for value in content.values()
    ):
        raise CalibrationError("uncertainty: must map scopes to numbers from 0 to 10.")
    return {str(key): float(value) for key, value in content.items()}


def parse_spans(content: Any) -> tuple[MeasuredSpan, ...]:
    """Read the measured spans: rows of topology, kind, hosts, ranks, low, high."""
    try:
        return tuple(
            MeasuredSpan(
                str(topology), CollectiveKind(kind), int(hosts), int(ranks), int(low), int(high)
            )
            for topology, kind, hosts, ranks, low, high in content
        )
    except (TypeError, ValueError) as fault:
        raise CalibrationError(
            f"measured: rows must be [topology, kind, hosts, ranks, low bytes, high bytes]. {fault}"
        ) from None


def parse_tuner(content: Mapping[str, Any]) -> TunerConstants:
    """Read NCCL's planning table; its latencies are in microseconds, bandwidths in GB/s."""
    return TunerConstants(
        base_ns=_latencies(content["base_us"]),
        nvlink_ns=_latencies(content["nvlink_us"]),
        pcie_ns=_latencies(content["pcie_us"]),
        net_ns=_latencies(content["net_us"]),
        nvls_ratio=float(content["nvls_ratio"]),
        generations={str(name): _generation(plan) for name, plan in content["generations"].items()},
        tree_correction={
            Protocol(word): tuple(float(value) for value in values)
            for word, values in content["tree_correction"].items()
        },
    )


def _latencies(content: Mapping[str, Sequence[float]]) -> dict[Any, dict[Protocol, float]]:
    return {
        CollectiveAlgorithm(word): {
            protocol: 1e3 * float(value) for protocol, value in zip(Protocol, values, strict=True)
        }
        for word, values in content.items()
    }


def _generation(content: Mapping[str, Any]) -> GenerationPlan:
    def rates(key: str) -> tuple[float, ...]:
        return tuple(1e9 * float(value) for value in content[key])

    return GenerationPlan(
        link_ratio=float(content["link_ratio"]),
        channels=int(content["channels"]),
        ll_max_bytes_per_s=rates("ll_max_gb_per_s"),
        ring_ll128_channel_bytes_per_s=rates("ring_ll128_channel_gb_per_s"),
        tree_ll128_channel_bytes_per_s=rates("tree_ll128_channel_gb_per_s"),
        tree_channel_bytes_per_s=rates("tree_channel_gb_per_s"),
        nvls_tree_channel_bytes_per_s=rates("nvls_tree_channel_gb_per_s"),
        two_host_reach=float(content["two_host_reach"]),
    )


def to_document(hosts: Sequence[HostEntry], fabrics: Sequence[FabricEntry]) -> dict[str, Any]:
    """The entries as plain mappings, for writing."""
    return {
        "hosts": [
            {
                "name": entry.name,
                "architecture": entry.architecture,
                "link_class": entry.link_class.value,
                "machines": list(entry.machines),
                **({"is_odd": True} if entry.is_odd else {}),
                "constants": to_numbers(entry.constants),
            }
            for entry in hosts
        ],
        "fabrics": [
            {
                "name": entry.name,
                "machines": list(entry.machines),
                "protocols": [protocol.value for protocol in entry.protocols],
                "tree_protocols": [protocol.value for protocol in entry.tree_protocols],
                "pair_ll_bytes": entry.pair_ll_bytes,
                "constants": to_numbers(entry.constants),
            }
            for entry in fabrics
        ],
    }


def to_numbers(constants: HostConstants | FabricConstants | SoftwareConstants) -> dict[str, float]:
    """The constants by name, six digits each."""
    return {name: float(f"{value:.6g}") for name, value in asdict(constants).items()}
