"""Topology files: a host written as YAML; a few lines become all its vertices and links.

`between: [A, B]` makes links both ways, `from: A` with `to: B` one way, `mesh: A` joins every two
of a selection. A selection is `gpu:*` (all), `gpu:0-3` (a range with both ends) or `gpu:0,5`. The
pattern says which vertex of A is joined to which of B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations, product
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from perfmodel.base.errors import TopologyError
from perfmodel.base.faults import FaultList
from perfmodel.base.fields import Bandwidth, Count, Duration, Line, OneOf, Parsed, ReadAs, Switch
from perfmodel.base.forms import Document, Form
from perfmodel.base.reading import quote
from topologies.device import Device, Sourced, list_devices, load_device
from topologies.faults import Fault, parse_fault
from topologies.link import (
    HOST_KINDS,
    HOST_LINK_KINDS,
    Fabric,
    Link,
    LinkKind,
    Vertex,
    VertexKind,
    parse_selection,
)
from topologies.topology import Topology

MAX_LINKS = 200_000
Pairs = list[tuple[str, str]]
_HostKind = Annotated[
    # From Python 3.12 on, pydantic does not know the signature of an enum.
    VertexKind,
    OneOf(tuple(kind.value for kind in HOST_KINDS)),
    AfterValidator(lambda word: VertexKind(word)),  # noqa: PLW0108 - as above
]
_HostLinkKind = Annotated[
    LinkKind,
    OneOf(tuple(kind.value for kind in HOST_LINK_KINDS)),
    AfterValidator(lambda word: LinkKind(word)),  # noqa: PLW0108 - as above
]
_VertexCount = Annotated[int, Field(strict=True, ge=1, le=1024)]


class Pattern(Enum):
    """Which ends are joined: every two, the i-th with the i-th, or A in equal blocks over B."""

    ALL = "all"
    IN_ORDER = "in_order"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class VertexEntry(Form):
    """An entry of `vertices`: how many there are, and of how many chips each."""

    count: _VertexCount = 1
    chips: Count = 1
    reduces: Switch = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEntry(Form):
    """An entry of `links`; its bandwidth is that of one lane."""

    between: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)] | None = None
    mesh: str | None = None
    source: Annotated[str | None, Field(alias="from")] = None
    target: Annotated[str | None, Field(alias="to")] = None
    pattern: Pattern = Pattern.ALL
    kind: _HostLinkKind
    lanes: Count = 1
    bandwidth_bytes_per_s: Bandwidth
    latency_ns: Duration

    def __post_init__(self) -> None:
        ways = [one for one in (self.between, self.mesh, self.source) if one is not None]
        if len(ways) != 1 or (self.source is None) != (self.target is None):
            raise ValueError(
                "must name its ends once: `between: [A, B]`, `mesh: A`, or `from: A` with `to: B`"
            )


_COUNT_OR_ENTRY = ReadAs(
    _VertexCount | VertexEntry, lambda one: VertexEntry(one) if isinstance(one, int) else one
)


def _load_device(name: object) -> Device:
    if not isinstance(name, str):
        raise TopologyError(f"must be the name of a GPU or a file, got {quote(name)}")
    return load_device(name)


def _join_lanes(fabric: Fabric) -> Fabric:
    bandwidth = fabric.nic_bandwidth_bytes_per_s * fabric.nic_lanes
    return replace(fabric, nic_bandwidth_bytes_per_s=bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFile(Sourced):
    """A topology file as it is written."""

    name: Line
    description: Line = ""
    device: Annotated[Device, Parsed(_load_device, "h100_sxm")]
    vertices: Mapping[_HostKind, Annotated[VertexEntry, _COUNT_OR_ENTRY]]
    links: tuple[LinkEntry, ...] = ()
    fabric: Annotated[Fabric, AfterValidator(_join_lanes)] | None = None
    cpu: Line | None = None
    peer_to_peer: Switch | None = None
    gpus_forward: Switch = False
    trays: Count = 1
    host_copy_bytes_per_s: Bandwidth | None = None
    notes: tuple[Line, ...] = ()
    assumed: tuple[Line, ...] = ()
    unknown_keys: tuple[Line, ...] = ()
    measured: Line | None = None
    faults: tuple[Annotated[Fault, Parsed(parse_fault, "host:1 gpu:3 nvlink")], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEntry(Form):
    """An entry of `hosts`: so many of a *machine*, a name or a file."""

    count: Count
    machine: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFile(Sourced):
    """A file that lists hosts of unlike machines."""

    name: Line
    description: Line = ""
    hosts: Annotated[tuple[FleetEntry, ...], Field(min_length=1)]
    notes: tuple[Line, ...] = ()


def join_fleet(file: FleetFile, machines: Sequence[Topology]) -> Topology:
    """The *machines* that *file* lists as one topology."""
    first, total = machines[0], " + ".join(f"{one.count} x {one.machine}" for one in file.hosts)
    if odd := next((one for one in machines if one.gpus_per_host != first.gpus_per_host), None):
        raise TopologyError(
            f"topology {file.name}: hosts of a fleet must have equally many GPUs, got "
            f"{first.gpus_per_host} ({first.name}) and {odd.gpus_per_host} ({odd.name})."
        )
    if alone := next((one for one in machines if one.trays > 1 or one.fabric is None), None):
        raise TopologyError(
            f"topology {file.name}: {alone.name} cannot be in a fleet: racks and machines without "
            "a fabric are not joined to others."
        )
    memory_bytes = min(one.device.memory_bytes for one in machines)
    said = f"Hosts: {total}. The switches of {first.name} join them, each by its own NICs."
    return replace(
        first,
        name=file.name,
        description=file.description or total,
        source=file.origin,
        # What must fit in every rank.
        device=replace(first.device, memory_bytes=memory_bytes),
        notes=file.notes,
        assumed=(*first.assumed, said),
        fleet=tuple(
            (one.count, machine) for one, machine in zip(file.hosts, machines, strict=True)
        ),
    )


def parse_topology(document: Document, *, path: Path) -> Topology:
    """The topology in *document*; a device file that it names is in the folder of *path*."""
    device = document.content.get("device")
    if isinstance(device, str):
        names = [device] if device.endswith((".yaml", ".yml")) else [f"{device}.yaml"]
        beside = [path.parent / name for name in names if (path.parent / name).is_file()]
        if device.endswith((".yaml", ".yml")) or (beside and device not in list_devices()):
            document.content["device"] = str(path.parent / names[0])
    file, faults = document.read(TopologyFile), document.faults()
    vertices = list(_iter_vertices(file.vertices, faults))
    links = _build_links(file, faults)
    faults.check(TopologyError)
    try:
        return Topology(
            name=file.name,
            description=file.description or file.name,
            source=file.origin,
            device=file.device,
            vertices=tuple(vertices),
            links=tuple(links),
            fabric=file.fabric,
            host_cpu=file.cpu,
            peer_to_peer=file.peer_to_peer,
            gpus_forward=file.gpus_forward,
            trays=file.trays,
            host_copy_bytes_per_s=file.host_copy_bytes_per_s,
            notes=file.notes,
            assumed=file.assumed,
            unknown_keys=file.unknown_keys,
            measured=file.measured or file.name,
            faults=file.faults,
        )
    except TopologyError as fault:
        raise TopologyError(f"{path}: {fault}") from None


def _iter_vertices(
    entries: Mapping[VertexKind, VertexEntry], faults: FaultList
) -> Iterator[Vertex]:
    for kind in HOST_KINDS:
        entry = entries.get(kind, VertexEntry(0))
        if entry.reduces and kind is not VertexKind.NVSWITCH:
            faults.add(
                f"vertices.{kind.value}.reduces", "only an nvswitch can reduce; leave it out"
            )
            continue
        for index in range(entry.count):
            yield Vertex(kind, index, entry.chips, entry.reduces)


def _build_links(file: TopologyFile, faults: FaultList) -> list[Link]:
    counts = {kind.value: entry.count for kind, entry in file.vertices.items()}
    if not file.links and counts.get("gpu") != 1:
        faults.add("links", "must be given, but is missing")
    links: list[Link] = []
    for number, entry in enumerate(file.links):
        pairs = _pair_up(entry, f"links[{number}]", counts, faults)
        links += [
            Link(
                source=source,
                target=target,
                bandwidth_bytes_per_s=entry.bandwidth_bytes_per_s * entry.lanes,
                latency_ns=entry.latency_ns,
                kind=entry.kind,
                lanes=entry.lanes,
            )
            for source, target in pairs
            if source != target
        ]
        if len(links) > MAX_LINKS:
            faults.add("links", f"at most {MAX_LINKS} links allowed. Put a switch in between")
            break
    return links


def _pair_up(entry: LinkEntry, place: str, counts: Mapping[str, int], faults: FaultList) -> Pairs:
    """The ends of every link that *entry* at *place* means."""
    ends = {"from": entry.source, "to": entry.target, "mesh": entry.mesh}
    if entry.between is not None:
        ends = {"between[0]": entry.between[0], "between[1]": entry.between[1]}
    found = []
    for key, text in ends.items():
        try:
            found += [parse_selection(text, counts)] if text is not None else []
        except TopologyError as fault:
            faults.add(f"{place}.{key}", str(fault))
            return []
    if entry.mesh is not None:
        return _both_ways(list(combinations(found[0], 2)))
    try:
        pairs = _matched(entry.pattern, *found)
    except TopologyError as fault:
        faults.add(f"{place}.pattern", str(fault))
        return []
    same = sorted({source for source, target in pairs if source == target})
    if same:
        faults.add(place, f"must join different vertices, joins {', '.join(same)} to itself")
    return pairs if entry.between is None else _both_ways(pairs)


def _matched(pattern: Pattern, left: Sequence[str], right: Sequence[str]) -> Pairs:
    if pattern is Pattern.ALL:
        return list(product(left, right))
    if pattern is Pattern.IN_ORDER:
        if len(left) != len(right):
            raise TopologyError(f"in_order needs equal ends, got {len(left)} and {len(right)}")
        return list(zip(left, right, strict=True))
    if len(left) % len(right):
        raise TopologyError(f"spread needs equal blocks, got {len(left)} for {len(right)}")
    share = len(left) // len(right)
    return [(name, right[index // share]) for index, name in enumerate(left)]


def _both_ways(pairs: Pairs) -> Pairs:
    return [way for a, b in pairs for way in ((a, b), (b, a))]
