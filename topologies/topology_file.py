"""Topology files: a host written as YAML, read with all its faults at once.

Every quantity carries its unit. A name without a path is looked up in the catalog
that comes with the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfmodel.base.documents import FaultList, find_document, list_documents, load_yaml
from perfmodel.base.errors import InputError, TopologyError
from perfmodel.base.units import parse_bandwidth, parse_duration_ns
from topologies.device import Device
from topologies.device_file import list_devices, load_device
from topologies.fabric import Fabric, FabricKind
from topologies.link import HOST_KINDS, Link, Vertex, VertexKind
from topologies.link_notation import read_links
from topologies.reading import Section
from topologies.topology import Topology

CATALOG = Path(__file__).parent / "catalog"


MAX_VERTICES_OF_A_KIND = 1024
MAX_LINKS = 200_000
DEFAULT_HOSTS_PER_LEAF = 32
DEFAULT_SPINE_LATENCY_NS = 300.0
"""Up to a spine and down again, where a file says nothing: as in the machines we ship."""


def list_topologies() -> tuple[str, ...]:
    """Names of the machines that come with the package."""
    return list_documents(CATALOG)


def load_topology(name_or_path: str | Path, *, calibrations: Sequence[str] = ()) -> Topology:
    """The topology in a file, or of a name in the catalog, with or without `.yaml`.

    *calibrations* are files of constants that were measured on it.
    """
    _check_no_device(str(name_or_path))
    path = find_document(name_or_path, folder=CATALOG, what="topology", error_type=TopologyError)
    content = load_yaml(path, error_type=TopologyError)
    if "family" in content:
        raise TopologyError(f"{path}: says a family, so it is a workload. Give it with --workload.")
    topology = parse_topology(content, path=path)
    return topology.calibrated_by(calibrations) if calibrations else topology


def _check_no_device(name: str) -> None:
    """Refuse the name of a GPU where a machine is meant, with the machines that have it."""
    if name in list_topologies() or name not in list_devices() or Path(name).exists():
        return
    machines = [path.stem for path in sorted(CATALOG.glob("*.yaml"))
                if load_yaml(path).get("device") == name]  # fmt: skip
    known = f"Machines with it: {', '.join(machines)}." if machines else "No machine here has it."
    raise TopologyError(f"topology {name!r}: is a GPU, and a machine is needed. {known}")


def parse_topology(content: dict[str, object], *, path: Path) -> Topology:
    """The topology in *content*, read from *path*; raises with every fault."""
    faults = FaultList(f"topology {path}")
    root = Section(content, "", faults)
    name = root.text("name")
    description = root.text("description", default=name)
    origin = root.origin()
    device = _read_device(root, path)
    vertices = _read_vertices(root.section("vertices"))
    counts = {kind.value: 0 for kind in HOST_KINDS}
    for vertex in vertices:
        counts[vertex.kind.value] += 1
    links = _read_all_links(root, {kind: count for kind, count in counts.items() if count})
    fabric = _read_fabric(root.section("fabric")) if root.has("fabric") else None
    host_cpu = root.text("cpu") if root.has("cpu") else None
    peer_to_peer = root.flag("peer_to_peer", default=True) if root.has("peer_to_peer") else None
    gpus_forward = root.flag("gpus_forward", default=False)
    trays = root.integer("trays", default=1)
    host_copy = root.quantity("host_copy", parse_bandwidth) if root.has("host_copy") else None
    notes = _read_notes(root)
    root.refuse_unknown()
    faults.check(TopologyError)
    assert device is not None  # a missing device is a fault
    try:
        return Topology(
            name=name,
            description=description,
            source=origin,
            device=device,
            vertices=tuple(vertices),
            links=tuple(links),
            fabric=fabric,
            host_cpu=host_cpu,
            peer_to_peer=peer_to_peer,
            gpus_forward=gpus_forward,
            trays=trays,
            host_copy_bytes_per_s=host_copy,
            notes=notes,
        )
    except TopologyError as fault:
        raise TopologyError(f"{path}: {fault}") from None


def _read_device(root: Section, path: Path) -> Device | None:
    name = root.text("device")
    if not name:
        return None
    beside = path.parent / name
    try:
        return load_device(beside if name.endswith((".yaml", ".yml")) else name)
    except InputError as fault:
        root.fault("device", str(fault))
        return None


def _read_vertices(section: Section) -> list[Vertex]:
    vertices = []
    for kind in HOST_KINDS:
        if not section.has(kind.value):
            continue
        value = section.content[kind.value]
        entry = section.section(kind.value) if isinstance(value, dict) else None
        if entry is None:
            count, chips, reduces = section.integer(kind.value), 1, False
        else:
            count = entry.integer("count", default=1)
            chips = entry.integer("chips", default=1)
            reduces = entry.flag("reduces", default=False)
            if reduces and kind is not VertexKind.NVSWITCH:
                entry.fault("reduces", "only an nvswitch can reduce; leave it out")
            entry.refuse_unknown()
        if count > MAX_VERTICES_OF_A_KIND:
            section.fault(kind.value, f"at most {MAX_VERTICES_OF_A_KIND} allowed, got {count}")
            continue
        can_reduce = reduces and kind is VertexKind.NVSWITCH
        vertices += [Vertex(kind, index, chips, can_reduce) for index in range(count)]
    section.refuse_unknown()
    return vertices


def _read_all_links(root: Section, counts: dict[str, int]) -> list[Link]:
    if not root.has("links") and counts.get("gpu") == 1:
        return []
    links: list[Link] = []
    for entry in root.sections("links"):
        links += read_links(entry, counts)
        if len(links) > MAX_LINKS:
            root.fault("links", f"at most {MAX_LINKS} links allowed. Put a switch in between")
            break
    return links


def _read_fabric(section: Section) -> Fabric | None:
    before = len(section.faults.faults)
    kind = section.word("kind", FabricKind)
    nic = section.section("nic")
    lanes = nic.integer("lanes", default=1)
    bandwidth = nic.quantity("bandwidth", parse_bandwidth)
    nic_latency = nic.quantity("latency", parse_duration_ns, zero=True)
    nic.refuse_unknown()
    hosts = _read_leaf(section)
    oversubscription, spine_latency = _read_spine(section)
    call_latency_ns = _read_call(section)
    section.refuse_unknown()
    if len(section.faults.faults) > before:
        return None
    return Fabric(
        kind=kind,
        nic_bandwidth_bytes_per_s=bandwidth * lanes,
        nic_latency_ns=nic_latency,
        hosts_per_leaf=hosts,
        nic_lanes=lanes,
        oversubscription=oversubscription,
        spine_latency_ns=spine_latency,
        call_latency_ns=call_latency_ns,
    )


def _read_call(section: Section) -> float:
    if not section.has("call"):
        return 0.0
    call = section.section("call")
    latency_ns = call.quantity("latency", parse_duration_ns, zero=True)
    call.refuse_unknown()
    return latency_ns


def _read_leaf(section: Section) -> int:
    if not section.has("leaf"):
        return DEFAULT_HOSTS_PER_LEAF
    leaf = section.section("leaf")
    hosts = leaf.integer("hosts")
    leaf.refuse_unknown()
    return hosts


def _read_spine(section: Section) -> tuple[float, float]:
    if not section.has("spine"):
        return 1.0, DEFAULT_SPINE_LATENCY_NS
    spine = section.section("spine")
    oversubscription = _read_ratio(spine, "oversubscription")
    latency_ns = spine.quantity("latency", parse_duration_ns, zero=True)
    spine.refuse_unknown()
    return oversubscription, latency_ns


def _read_ratio(section: Section, key: str) -> float:
    text = section.text(key)
    down, _, up = text.partition(" to ")
    try:
        ratio = float(down) / float(up)
    except (ValueError, ZeroDivisionError):
        ratio = 0.0
    if text and not 1 <= ratio < float("inf"):
        section.fault(key, f"must look like `2 to 1`, with 1 to 1 as the least, got {text!r}")
    return max(ratio, 1.0)


def _read_notes(root: Section) -> tuple[str, ...]:
    if not root.has("notes"):
        return ()
    notes = root.raw("notes")
    if not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
        root.fault("notes", "must be a list of sentences")
        return ()
    return tuple(" ".join(note.split()) for note in notes)
