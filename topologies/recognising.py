"""Recognising: machines by file or name, and GPUs and CPUs by the names of drivers and vendors.

A name without a path is looked up in the catalog that comes with the package.

A recording names its GPUs as their driver does; a machine file names its CPUs as their vendor does.
An unknown name gives None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from perfmodel.base.documents import find_document, list_documents, load_yaml
from perfmodel.base.errors import TopologyError
from perfmodel.base.extensions import has_extension, load_extension
from perfmodel.base.forms import Document, load_document, parse_document
from perfmodel.base.units import parse_frequency_hz
from topologies.device import Device, list_devices, load_device
from topologies.faults import parse_fault
from topologies.topology import Topology
from topologies.topology_file import FleetFile, join_fleet, parse_topology

CATALOG = Path(__file__).parent / "catalog"
_CPUS = Path(__file__).parent / "cpus.yaml"


def list_topologies() -> tuple[str, ...]:
    """Names of the machines that come with the package."""
    return list_documents(CATALOG)


def load_topology(
    name_or_path: str | Path, *, calibrations: Sequence[str] = (), faults: Sequence[str] = ()
) -> Topology:
    """The topology in a file, or of a name in the catalog, with or without `.yaml`.

    NCCL's topology XML and the matrix of `nvidia-smi topo -m` are read too. *calibrations* are
    files of constants that were measured on it. *faults*, such as `host:1 gpu:3 nvlink`, add to
    those of the file.
    """
    _check_no_device(str(name_or_path))
    path = find_document(name_or_path, folder=CATALOG, what="topology", error_type=TopologyError)
    document = _open_foreign(path) if path.parent != CATALOG else None
    if document is None:
        document = load_document(path, TopologyError, what="topology")
    if {"family", "model_type", "architectures"} & document.content.keys():
        raise TopologyError(f"{path}: is a model. Give it with --workload.")
    if "hosts" in document.content:
        topology = _load_fleet(document, path)
    else:
        topology = _find_constants(parse_topology(document, path=path), path)
    if faults:
        more = tuple(parse_fault(text) for text in faults)
        topology = replace(topology, faults=(*topology.faults, *more))
    return topology.calibrated_by(calibrations) if calibrations else topology


def _load_fleet(document: Document, path: Path) -> Topology:
    """The machines that *document* lists; files that it names are in the folder of *path*."""
    file = document.read(FleetFile)
    names = [one.machine for one in file.hosts]
    beside = [path.parent / name for name in names]
    machines = [
        load_topology(other if other.is_file() else name)
        for other, name in zip(beside, names, strict=True)
    ]
    return join_fleet(file, machines)


def _open_foreign(path: Path) -> Document | None:
    """The machine in a file of another program; None if it is our own, or nothing reads others."""
    if not has_extension("formats"):
        return None
    foreign = load_extension("formats", "machines").read_foreign(path)
    return None if foreign is None else parse_document(foreign.text, str(path), TopologyError)


def _find_constants(topology: Topology, path: Path) -> Topology:
    """*topology* with the machine whose measured constants it takes, if it is wired like it.

    A file states that machine, and a copy under another name keeps its constants. A file that has
    the name of a shipped machine must be wired like it, too.
    """
    if path.parent == CATALOG:
        return topology
    stated = topology.measured
    if stated not in list_topologies():
        if stated != topology.name:
            raise TopologyError(
                f"{path}: measured: must be a machine of the catalog, got {stated!r}. Leave it out "
                "if nothing was measured there."
            )
        return topology
    shipped = CATALOG / f"{stated}.yaml"
    document = load_document(shipped, TopologyError)
    if topology.is_wired_like(parse_topology(document, path=shipped)):
        return topology
    lost = (
        f"{topology.name} is wired differently from the shipped {stated}: constants of collectives "
        "that were measured there are replaced by those of similar machines."
    )
    return replace(topology, measured=f"{topology.name}, changed", lost_constants=lost)


def _check_no_device(name: str) -> None:
    """Refuse the name of a GPU where a machine is meant, with the machines that have it."""
    if name in list_topologies() or name not in list_devices() or Path(name).exists():
        return
    machines = [path.stem for path in sorted(CATALOG.glob("*.yaml"))
                if load_yaml(path).get("device") == name]  # fmt: skip
    known = f"Machines with it: {', '.join(machines)}." if machines else "No machine here has it."
    raise TopologyError(f"topology {name!r}: is a GPU, and a machine is needed. {known}")


@cache
def find_device(name: str) -> Device | None:
    """The GPU whose model stands in *name*; of several that could be meant, the last by name."""
    found = name_devices(name)
    return load_device(found[-1]) if found else None


@cache
def name_devices(words: str) -> tuple[str, ...]:
    """The GPUs of the catalog that *words* of a driver could mean, in order.

    Drivers say PCIe and NVL, and leave out SXM.
    """
    said = words.lower()
    together = re.sub(r"[^a-z0-9]", "", said)
    rating_of: dict[str, tuple[int, int, int, int]] = {}
    for known in list_devices():
        model, *more = known.split("_")
        pattern = model
        if model in ("rtx", "titan") and more:
            pattern = rf"{model}[^a-z0-9]*{more[0]}"
            model, more = model + more[0], more[1:]
        # An A40 is not an A4000.
        if re.search(rf"{pattern}(?!\d)", said):
            unsaid = sum(piece in ("pcie", "nvl") and piece not in together for piece in more)
            found = sum(piece in together for piece in more)
            rating_of[known] = (len(model), -unsaid, found, -len(more))
    best = max(rating_of.values(), default=None)
    return tuple(known for known in sorted(rating_of) if rating_of[known] == best)


def cpu_speed(cpu: str | None) -> float | None:
    """How much one thread of a host with *cpu* does in a second, to compare hosts with."""
    for words, speed in _cpu_speeds():
        if cpu is not None and words in cpu:
            return speed
    return None


@cache
def _cpu_speeds() -> tuple[tuple[str, float], ...]:
    """Every CPU that is known, longer names first."""
    content = load_yaml(_CPUS)
    of_core = content["work_per_clock"]
    speeds = [
        (words, of_core[one["core"]] * parse_frequency_hz(one["clock"]))
        for words, one in content["cpus"].items()
    ]
    return tuple(sorted(speeds, key=lambda one: -len(one[0])))
