"""NCCL's topology XML: what `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads.

A dump describes NVLink and NICs; a file for `NCCL_TOPO_FILE` often describes only PCIe, and its
devices by their PCI class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from defusedxml import ElementTree
from defusedxml.common import DefusedXmlException

from perfmodel.base.errors import TopologyError
from perfmodel.base.faults import FaultList, iter_misspelt
from perfmodel.base.reading import quote
from perfmodel.extensions.formats.machines.host import Host, Place, known
from topologies.device import load_device

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_GPU, _NIC, _SWITCH = "0x03", "0x02", "0x0604"
_NVSWITCH = "0x0680"
_VIRTUAL = ("veth", "br-", "docker", "virbr")
_OLD_ENCODING_BELOW = 8.0
MBIT_PER_GBIT = 1000


def parse_xml(text: str, document: str) -> tuple[Host, str | None, str]:
    """The host in *text*, its GPU by the catalog's name, and the compute capability it states."""
    try:
        root: Any = ElementTree.fromstring(text, forbid_dtd=True)
    except (ElementTree.ParseError, DefusedXmlException, ValueError, RecursionError) as fault:
        raise TopologyError(f"{document}: not valid XML ({fault}).") from None
    if root.tag != "system":
        raise TopologyError(
            f"{document}: must be NCCL's <system>, got <{root.tag}>. NCCL_TOPO_DUMP_FILE=topo.xml "
            "makes a training job write it."
        )
    reader = _Reader(Host(0, 0, [], [], knows_nvlink=root.find(".//gpu") is not None))
    try:
        unknown = _check_tree(root, document)
        for cpu in root.iter("cpu"):
            reader.read_socket(cpu)
    except RecursionError:
        raise TopologyError(f"{document}: nests PCI devices too deeply to be a host.") from None
    host = reader.finish(document)
    host.unknown_keys = unknown
    names = {
        known()["gpus"].get(pci.get("device", "").lower())
        for pci in reader.gpus.values()
        if pci.get("vendor", "").lower() in ("", "0x10de")
    }
    device = names.pop() if len(names) == 1 else None
    return host, device, _capability(root, device, document)


def _capability(root: Element, device: str | None, document: str) -> str:
    """The compute capability that the GPUs state, which that of a known *device* must be."""
    stated = {gpu.get("sm", "") for gpu in root.iter("gpu")} - {""}
    versions = {f"{one[:-1]}.{one[-1:]}" for one in stated}
    wrong = versions - ({load_device(device).compute_capability} if device else versions)
    if wrong or len(versions) > 1:
        raise TopologyError(
            f"{document}: sm of all GPUs must be that of {device or 'one GPU'}, got "
            f"{', '.join(sorted(stated))}."
        )
    return versions.pop() if versions else "."


def _check_tree(root: Element, document: str) -> tuple[str, ...]:
    """Refuse what no host says; returns tags and attributes that NCCL does not write."""
    faults, unknown = FaultList(document), dict[str, None]()
    buses: set[str] = set()
    for one in root.iter():
        if one.tag in known()["xml"]:
            unknown |= dict.fromkeys(_check_attributes(one, faults))
        else:
            unknown[one.tag] = None
            for _, meant in iter_misspelt([one.tag], known()["xml"]):
                faults.add(one.tag, f"is not known; {meant} is. Correct it")
        bus = one.get("busid", "").lower()
        if bus in buses:
            faults.add(f"{one.tag}.busid", f"must be that of one device, got {bus} twice")
        buses |= {bus} - {""}
        inside = [(child.tag, child.get("target") or child.get("name")) for child in one]
        for tag, name in sorted({child for child in inside if inside.count(child) > 1}, key=str):
            if name or tag == "gpu":
                faults.add(tag, f"must be stated once in a {one.tag}, got {name or tag} twice")
    faults.check(TopologyError)
    return tuple(unknown)


def _check_attributes(one: Element, faults: FaultList) -> Iterator[str]:
    """Note what is wrong with the attributes of a known tag; returns those that are unknown."""
    own: dict[str, str | None] = known()["xml"][one.tag]
    unknown = [name for name in one.attrib if name not in own]
    for name, meant in iter_misspelt(unknown, own.keys() - one.attrib):
        faults.add(f"{one.tag}.{name}", f"is not known; {meant} is. Correct it")
    for name, rule in own.items():
        value = one.get(name, "")
        if rule and not re.fullmatch(rule, value, re.IGNORECASE):
            faults.add(f"{one.tag}.{name}", f"must be like {rule}, got {quote(value)}")
    return (f"{one.tag}.{name}" for name in unknown)


class _Reader:
    """Walks the tree of PCI devices and numbers GPUs and NICs of *host* as they come."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.gpus: dict[str, Element] = {}
        self._nic_gbit: list[float] = []

    def read_socket(self, cpu: Element) -> None:
        """A socket, or a part of one, and all below it."""
        host, socket = self.host, Place()
        host.vendor = cpu.get("vendor", host.vendor)
        host.sockets.append(socket)
        number = len(host.sockets) - 1
        self._walk(cpu, socket, number)
        if not (socket.gpus or socket.nics or any(one.socket == number for one in host.switches)):
            host.sockets.pop()

    def _walk(self, parent: Element, place: Place, socket: int) -> None:
        for child in parent:
            kind = child.get("class", "").lower()
            if child.tag not in ("pci", "nic"):
                continue
            if child.tag == "pci" and (child.find("gpu") is not None or kind.startswith(_GPU)):
                place.gpus.append(len(self.gpus))
                self.gpus[child.get("busid", "").lower() or f"gpu {len(self.gpus)}"] = child
            elif child.tag == "nic" or child.find("nic") is not None or kind.startswith(_NIC):
                self._add_nic(child, place)
            elif place.socket is not None:
                # A switch in a switch is one to us: both share the way up.
                self._walk(child, place, socket)
            elif kind.startswith(_SWITCH) or len(child):
                switch = Place(socket=socket)
                self._walk(child, switch, socket)
                self.host.switches += [switch] if switch.gpus or switch.nics else []

    def _add_nic(self, holder: Element, place: Place) -> None:
        # Ports of one card share its link. Interfaces of containers and those of no speed carry
        # nothing to other hosts.
        speeds = [
            float(net.get("speed", 0)) * (not net.get("name", "").startswith(_VIRTUAL))
            for net in holder.iter("net")
        ]
        if speeds and max(speeds) <= 0:
            return
        place.nics.append(self.host.nic_count)
        self.host.nic_count += 1
        self._nic_gbit += [sum(speeds) / MBIT_PER_GBIT] if speeds else []

    def finish(self, document: str) -> Host:
        """The whole host."""
        host, buses = self.host, [*self.gpus]
        if not buses:
            raise TopologyError(
                f"{document}: must list the GPUs (PCI class 0x03), and has none. A training "
                "job that starts with NCCL_TOPO_DUMP_FILE=topo.xml writes a complete file."
            )
        host.gpu_count = len(buses)
        if len(self._nic_gbit) == host.nic_count > 0:
            host.nic_gbit = min(self._nic_gbit)
        rates = [rate for pci in self.gpus.values() if (rate := _pcie_rate(pci)) is not None]
        host.pcie_bytes_per_s = min(rates, default=None)
        both: dict[tuple[int, int], int] = {}
        for number, (own, pci) in enumerate(self.gpus.items()):
            for link in pci.iter("nvlink"):
                target, kind = (link.get(key, "").lower() for key in ("target", "tclass"))
                lanes = int(link.get("count", "1"))
                # A link to itself says nothing.
                if target == own or (kind and not kind.startswith((_NVSWITCH, _GPU))):
                    continue
                if target in buses and not kind.startswith(_NVSWITCH):
                    pair = number, buses.index(target)
                    both[pair] = both.get(pair, 0) + lanes
                else:
                    host.switched[number] = host.switched.get(number, 0) + lanes
        for (one, other), count in both.items():
            if both.get((other, one)) != count:
                raise TopologyError(
                    f"{document}: gpu {one} has {count} NVLinks to gpu {other}, which has "
                    f"{both.get((other, one), 0)} back. Both must state the same count."
                )
        host.lanes = {pair: count for pair, count in both.items() if pair[0] < pair[1]}
        return host


def _pcie_rate(pci: Element) -> float | None:
    """Bytes per second of a PCIe link, one way, from its transfers and its width."""
    speed = re.match(r"([\d.]+)\s*GT/s", pci.get("link_speed", ""))
    width = pci.get("link_width", "")
    if speed is None or not width.isdecimal() or int(width) == 0:
        return None
    transfers = float(speed[1])
    coding = 0.8 if transfers < _OLD_ENCODING_BELOW else 128 / 130
    return transfers * 1e9 * int(width) * coding / 8
