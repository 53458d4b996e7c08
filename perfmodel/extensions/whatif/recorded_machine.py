"""The machine of the catalog that a job was recorded on.

A recording names its GPUs as their driver does. An unknown name gives None, never a guess.
"""

from __future__ import annotations

from functools import cache

from perfmodel.base.documents import load_yaml
from perfmodel.graph.job import JobGraph
from topologies import Device, Topology, find_device, load_device, load_topology
from topologies.recognising import CATALOG


def recorded_machine(job: JobGraph) -> str | None:
    """The machine of the catalog that *job* was recorded on, as far as its GPUs show."""
    if not job.facts.device:
        return None
    machine = find_machine(job.facts.device, job.facts.gpus_per_host)
    return None if machine is None else machine.name


def about_machine(job: JobGraph) -> str:
    """How the machine of a recording was found."""
    return (
        f"The recording names {job.facts.gpus_per_host} x {job.facts.device}: assumed to be "
        f"{recorded_machine(job)} of the catalog."
    )


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
        and one.architecture == other.architecture
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
