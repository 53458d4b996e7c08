"""A host as other programs describe it, and the machine file that says the same.

GPUs and NICs hang below PCIe switches or sockets. What a program does not state is assumed, and the
file says so under `assumed`, with the place to put the true value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import TopologyError
from topologies.device import Device

KNOWN = Path(__file__).with_name("known.yaml")
TEMPLATE = Path(__file__).with_name("machine.yaml.j2")
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
    links, fabric = list(writer.iter_links()), writer.find_fabric()
    chips = "{chips: 1, reduces: true}" if writer.reduces else "{chips: 1}"
    template = Environment(  # noqa: S701  YAML, not HTML
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    ).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        host=host,
        device=told.device,
        name=name,
        source=source,
        vertices={
            "gpu": host.gpu_count,
            "nvswitch": chips if host.switched else 0,
            "pcie_switch": len(host.switches),
            "cpu": len(host.sockets),
            "nic": host.nic_count,
        },
        links=links,
        fabric=fabric,
        latency=known()["latency"],
        assumed=writer.assumed,
    )


@dataclass(frozen=True, slots=True)
class _Link:
    """A line of `links`."""

    ends: str
    kind: str
    bandwidth: str
    latency: str
    lanes: int = 1


@dataclass(slots=True)
class _Writer:
    """Finds the links of a host and collects what had to be assumed."""

    host: Host
    told: Told
    assumed: list[str] = field(default_factory=list)

    @property
    def reduces(self) -> bool:
        """Whether its NVSwitches add up what passes: those of Hopper and later do."""
        return bool(self.told.device.has_persistent_kernels)

    def iter_links(self) -> Iterator[_Link]:
        """The links of the host."""
        yield from self._iter_nvlink()
        rate, latency = self._pcie_rate(), known()["latency"]
        sockets, switches = self.host.sockets, self.host.switches
        for kind, places in (("pcie_switch", switches), ("cpu", sockets)):
            for number, place in enumerate(places):
                below = [at for at, one in enumerate(switches) if one.socket == number]
                members = {"gpu": place.gpus, "nic": place.nics}
                members |= {"pcie_switch": below} if place.socket is None else {}
                for word, some in members.items():
                    if some:
                        ends = _between(word, some, f"{kind}:{number}")
                        yield _Link(ends, "pcie", rate, latency["pcie"])
        if len(sockets) > 1:
            wires = known()["sockets"]
            lanes, speed = wires.get(self.host.vendor, wires["unknown"]).values()
            yield _Link("mesh: 'cpu:*'", "cpu", speed, latency["socket"], lanes)
            self.assumed.append(
                f"Sockets are joined by {lanes} links of {speed}, by default; the link of kind cpu "
                "changes that."
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

    def _iter_nvlink(self) -> Iterator[_Link]:
        rate, latency = (
            known()["nvlink"].get(self.told.device.compute_capability, {}),
            known()["latency"],
        )
        if not self.host.knows_nvlink:
            self._assume_switched(rate)
        switched, speed = self.host.switched, rate.get("bandwidth", "25 GB/s")
        self._check_lanes(rate.get("lanes", MOST_LANES), switched)
        counts = dict.fromkeys(switched.values())
        if len(counts) > 1:
            self.assumed.append("GPUs of this host have unlike numbers of NVLinks, as in its file.")
        for count in counts:
            gpus = [gpu for gpu, lanes in switched.items() if lanes == count]
            yield _Link(
                _between("gpu", gpus, "nvswitch:0"), "nvlink", speed, latency["switched"], count
            )
        for (one, other), count in self.host.lanes.items():
            yield _Link(
                _between("gpu", [one], f"gpu:{other}"), "nvlink", speed, latency["direct"], count
            )
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

    def _assume_switched(self, rate: Mapping[str, Any]) -> None:
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

    def find_fabric(self) -> Mapping[str, Any] | None:
        """What `fabric` says; with a *mark* before its lines where the rate has to be stated."""
        if not self.host.nic_count:
            self.assumed.append(
                "No NIC is listed, so this is one host without a network; add nic under vertices, "
                "their links, and a fabric."
            )
            return None
        told, stated = self.told.nic_rate, self.host.nic_gbit
        rate = told or (None if stated is None else f"{stated:.6g} Gbit/s")
        usual: Mapping[str, Any] = known()["fabric"]
        if rate is None:
            self.assumed.append(
                "The rate of a NIC is not stated, so this is one host without a network; complete "
                "and uncomment fabric, or import again with --nic-rate."
            )
            return {**usual, "mark": "# ", "rate": "400 Gbit/s"}
        self.assumed.append(
            f"The network is rail-optimised, {usual['hosts']} hosts per leaf, not "
            "oversubscribed; fabric changes that."
        )
        return {**usual, "mark": "", "rate": rate}


def _between(kind: str, members: Iterable[int], end: str) -> str:
    return f"between: ['{kind}:{','.join(map(str, sorted(members)))}', '{end}']"
