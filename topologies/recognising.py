"""Recognising: GPUs, machines and CPUs by the names that drivers and vendors use.

A recording names its GPUs as their driver does; a machine file names its CPUs as their vendor does.
An unknown name gives None, never a guess.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from perfmodel.base.documents import load_yaml
from perfmodel.base.units import parse_frequency_hz
from topologies.device import Device, list_devices, load_device
from topologies.topology import Topology
from topologies.topology_file import CATALOG, load_topology

_CPUS = Path(__file__).parent / "cpus.yaml"


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


@cache
def find_machine(name: str, gpus_per_host: int) -> Topology | None:
    """The machine of the catalog that is most like a host with so many GPUs called *name*.

    Of machines that are equally like it, one with a network of its own before a
    shared one, the fastest of them, and the first in the order of the alphabet.
    """
    device = find_device(name)
    if device is None:
        return None
    # Most files are not read whole: wiring up a rack takes a while.
    device_of = {path.stem: str(load_yaml(path)["device"]) for path in CATALOG.glob("*.yaml")}
    chips = {known: load_device(known) for known in set(device_of.values())}
    machines = [
        load_topology(machine)
        for machine, known in sorted(device_of.items())
        if _is_same_chip(chips[known], device)
    ]
    return max(machines, key=lambda one: _likeness(one, device, gpus_per_host), default=None)


def _is_same_chip(one: Device, other: Device) -> bool:
    """Whether two devices are one chip on one kind of board, whatever memory they have."""
    return (
        one.vendor == other.vendor
        and one.architecture is other.architecture
        and one.multiprocessors == other.multiprocessors
        and one.host_link == other.host_link
        and one.power_w == other.power_w
    )


def _likeness(machine: Topology, device: Device, gpus_per_host: int) -> tuple[float, ...]:
    fabric = machine.fabric
    return (
        float(machine.device.name == device.name),
        -abs(machine.gpus_per_host - gpus_per_host),
        0.0 if fabric is None else -fabric.call_latency_ns,
        0.0 if fabric is None else fabric.nic_bandwidth_bytes_per_s * len(set(machine.nic_of_gpu)),
    )


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
