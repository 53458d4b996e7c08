"""A host as other programs describe it, and the machine file that says the same.

GPUs and NICs hang below PCIe switches or sockets. What a program does not state is assumed, and the
file says so under `assumed`, with the place to put the true value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import TopologyError
from topologies.device import Device

KNOWN = Path(__file__).with_name("known.yaml")
GB = 1e9
MOST_LANES = 36
"""NVLinks of one GPU: twice what any has."""
FEWEST_SWITCHED, MANY_LANES = 8, 12
"""GPUs of a host, and NVLink lanes of a GPU, from which on hosts have NVSwitches."""


@cache
def known() -> dict[str, Any]:
    """What files leave out, by GPU and vendor."""
    return load_yaml(KNOWN)


@dataclass(slots=True)
class Place:
    """A PCIe switch or a socket (with *socket* None): what hangs directly below it."""

    gpus: list[int] = field(default_factory=list)
    nics: list[int] = field(default_factory=list)
    socket: int | None = None


@dataclass(slots=True)
class Host:
    """One host: its sockets, switches, and who has how many NVLink lanes to whom.

    *lanes* are by pair of GPUs, *switched* by GPU those that end in an NVSwitch. *nic_gbit* is the
    rate of a NIC, and *pcie_bytes_per_s* that of the slowest link of a GPU, where they are known.
    *unknown_keys* are what its file says that its program does not write.
    """

    gpu_count: int
    nic_count: int
    sockets: list[Place]
    switches: list[Place]
    lanes: dict[tuple[int, int], int] = field(default_factory=dict)
    switched: dict[int, int] = field(default_factory=dict)
    vendor: str = "unknown"
    nic_gbit: float | None = None
    pcie_bytes_per_s: float | None = None
    knows_nvlink: bool = True
    unknown_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What the user says of a host that its file does not: GPU, and the rate of a NIC."""

    device: Device
    nic_rate: str | None = None


def to_text(host: Host, told: Told, *, name: str, source: str) -> str:
    """The machine file of *host*."""
    writer = _Writer(host, told)
    links = list(writer.iter_links())
    fabric = list(writer.iter_fabric())
    vertices = {
        "gpu": host.gpu_count,
        "nvswitch": "{chips: 1" + (", reduces: true}" if writer.reduces else "}")
        if host.switched
        else 0,
        "pcie_switch": len(host.switches),
        "cpu": len(host.sockets),
        "nic": host.nic_count,
    }
    lines = [
        "---",
        f"name: {name}",
        f"description: {host.gpu_count} x {told.device.description}, as {source} describes it",
        f"source: {source}; what it does not say is listed under assumed",
        "date: not stated",
        "licence: yours",
        f"device: {told.device.name}",
        "",
        "vertices:",
        *(f"  {kind}: {count}" for kind, count in vertices.items() if count),
        "",
        *(["links:", *links, ""] if links else []),
        *fabric,
        "assumed: # every answer repeats these; delete what you have corrected",
        *(f"  - {sentence}" for sentence in writer.assumed),
        *([f"unknown_keys: [{', '.join(map(repr, keys))}]"] if (keys := host.unknown_keys) else ()),
        "...",
    ]
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class _Writer:
    """Writes the links of a host and collects what had to be assumed."""

    host: Host
    told: Told
    assumed: list[str] = field(default_factory=list)

    @property
    def reduces(self) -> bool:
        """Whether its NVSwitches add up what passes: those of Hopper and later do."""
        return bool(self.told.device.has_persistent_kernels)

    @property
    def _latency(self) -> Mapping[str, str]:
        latency: Mapping[str, str] = known()["latency"]
        return latency

    def iter_links(self) -> Iterator[str]:
        """The lines of `links`."""
        yield from self._iter_nvlink()
        bandwidth = self._pcie_rate()
        for number, switch in enumerate(self.host.switches):
            for kind, members in (("gpu", switch.gpus), ("nic", switch.nics)):
                if members:
                    ends = _selection(kind, members), f"pcie_switch:{number}"
                    yield _link(ends, "pcie", bandwidth, self._latency["pcie"])
        for number, socket in enumerate(self.host.sockets):
            below = [index for index, one in enumerate(self.host.switches) if one.socket == number]
            for kind, members in (
                ("gpu", socket.gpus), ("nic", socket.nics), ("pcie_switch", below),
            ):  # fmt: skip
                if members:
                    ends = _selection(kind, members), f"cpu:{number}"
                    yield _link(ends, "pcie", bandwidth, self._latency["pcie"])
        if len(self.host.sockets) > 1:
            between = known()["sockets"].get(self.host.vendor, known()["sockets"]["unknown"])
            rate = f"lanes: {between['lanes']}, bandwidth: {between['bandwidth']}"
            yield f"  - {{mesh: 'cpu:*', kind: cpu, {rate}, latency: {self._latency['socket']}}}"
            self.assumed.append(
                f"Sockets are joined by {between['lanes']} links of {between['bandwidth']}, by "
                f"default; the link of kind cpu changes that."
            )
        self.assumed.append("Latencies of links are estimates.")
        if not self.host.switched and len(self.host.lanes) < math.comb(self.host.gpu_count, 2):
            self.assumed.append(
                "GPUs without NVLink between them are assumed to pass through host memory; "
                "peer_to_peer (true or false) states it."
            )

    def _pcie_rate(self) -> str:
        stated = self.host.pcie_bytes_per_s
        if stated is not None:
            return f"{stated / GB:.3g} GB/s"
        rate = self.told.device.host_link.bandwidth_bytes_per_s
        self.assumed.append(
            f"PCIe links have the {rate / GB:.4g} GB/s of this GPU; the file states no rate."
        )
        return f"{rate / GB:.4g} GB/s"

    def _iter_nvlink(self) -> Iterator[str]:
        rate = known()["nvlink"].get(self.told.device.compute_capability, {})
        switched = self.host.switched
        if not self.host.knows_nvlink:
            switched = self._assume_switched(rate)
        speed = rate.get("bandwidth", "25 GB/s")
        self._check_lanes(rate.get("lanes", MOST_LANES), switched)
        if len(set(switched.values())) > 1:
            self.assumed.append("GPUs of this host have unlike numbers of NVLinks, as in its file.")
        for gpus, lanes in _together(switched):
            ends = _selection("gpu", gpus), "nvswitch:0"
            yield _link(ends, "nvlink", speed, self._latency["switched"], lanes)
        for (one, other), count in self.host.lanes.items():
            ends = f"gpu:{one}", f"gpu:{other}"
            yield _link(ends, "nvlink", speed, self._latency["direct"], count)
        if switched:
            word = "reduce" if self.reduces else "do not reduce"
            self.assumed.append(
                f"The NVSwitches {word} and count as one chip; vertices.nvswitch changes that."
            )

    def _check_lanes(self, most: int, switched: Mapping[int, int]) -> None:
        for gpu in range(self.host.gpu_count):
            direct = sum(count for pair, count in self.host.lanes.items() if gpu in pair)
            if (lanes := direct + switched.get(gpu, 0)) > most:
                raise TopologyError(
                    f"gpu {gpu} must have at most the {most} NVLinks of {self.told.device.name}, "
                    f"got {lanes}. Name the right GPU with --gpu."
                )

    def _assume_switched(self, rate: Mapping[str, Any]) -> dict[int, int]:
        """Lanes to an NVSwitch where the file says nothing of NVLink, if such a host has one."""
        device, count = self.told.device, self.host.gpu_count
        if "sxm" in device.name and count >= FEWEST_SWITCHED and rate.get("lanes", 0) >= MANY_LANES:
            self.assumed.append(
                f"All {rate['lanes']} NVLink lanes of a GPU end in NVSwitches, as in hosts with "
                f"{count} GPUs of this kind; the file says nothing about NVLink."
            )
            self.host.switched = dict.fromkeys(range(count), int(rate["lanes"]))
        else:
            self.assumed.append(
                "NVLink is left out, because the file says nothing about it (the file of "
                "NCCL_TOPO_DUMP_FILE does); add it under links."
            )
        return self.host.switched

    def iter_fabric(self) -> Iterator[str]:
        """The lines of `fabric`."""
        if not self.host.nic_count:
            self.assumed.append(
                "No NIC is listed, so this is one host without a network; add nic under vertices, "
                "their links, and a fabric."
            )
            return
        told, stated = self.told.nic_rate, self.host.nic_gbit
        rate = told or (None if stated is None else f"{stated:.6g} Gbit/s")
        usual, mark = known()["fabric"], ""
        if rate is None:
            mark, rate = "# ", "400 Gbit/s"
            self.assumed.append(
                "The rate of a NIC is not stated, so this is one host without a network; complete "
                "and uncomment fabric, or import again with --nic-rate."
            )
        else:
            self.assumed.append(
                f"The network is rail-optimised, {usual['hosts']} hosts per leaf, not "
                "oversubscribed; fabric changes that."
            )
        yield f"{mark}fabric:"
        yield f"{mark}  kind: rail_optimised"
        yield f"{mark}  nic: {{bandwidth: {rate}, latency: {self._latency['nic']}}}"
        yield f"{mark}  leaf: {{hosts: {usual['hosts']}}}"
        yield (
            f"{mark}  spine: {{oversubscription: {usual['oversubscription']}, "
            f"latency: {self._latency['spine']}}}"
        )
        yield ""


def _together(lanes_of: Mapping[int, int]) -> Iterator[tuple[list[int], int]]:
    """GPUs with equally many lanes, and how many."""
    for count in dict.fromkeys(lanes_of.values()):
        yield [gpu for gpu, lanes in lanes_of.items() if lanes == count], count


def _selection(kind: str, members: Sequence[int]) -> str:
    numbers = ",".join(map(str, sorted(members)))
    return f"{kind}:{numbers}"


def _link(ends: Iterable[str], kind: str, bandwidth: str, latency: str, lanes: int = 1) -> str:
    names = ", ".join(f"'{one}'" for one in ends)
    several = f"lanes: {lanes}, " if lanes > 1 else ""
    rate = f"{several}bandwidth: {bandwidth}, latency: {latency}"
    return f"  - {{between: [{names}], kind: {kind}, {rate}}}"
