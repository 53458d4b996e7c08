"""Formats: machines in the files of other programs, recognised by content, become machine files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.documents import MAX_DOCUMENT_BYTES
from perfmodel.base.errors import TopologyError
from perfmodel.base.reading import read_text
from perfmodel.extensions.formats.machines.host import Told, known, to_text
from perfmodel.extensions.formats.machines.smi_matrix import is_matrix, parse_matrix, to_host
from topologies.device import Device, list_devices, load_device

XML, MATRIX = "NCCL topology XML", "nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class ForeignMachine:
    """A topology file of another program: which *kind*, and the machine file as *text*."""

    kind: str
    text: str


def read_foreign(
    path: Path, *, gpu: str | None = None, nic_rate: str | None = None
) -> ForeignMachine | None:
    """The machine in *path*, if that is a file of another program; None if it is our own.

    *gpu* names the GPU where the file does not, and *nic_rate* is the rate of a NIC.
    """
    text = read_text(path, TopologyError, MAX_DOCUMENT_BYTES)
    name = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_") or "machine"
    if re.match(r"\s*<", text):
        from perfmodel.extensions.formats.machines.nccl_xml import parse_xml  # needs defusedxml

        host, found, capability = parse_xml(text, str(path))
        told = Told(_device(path, gpu or found, capability), nic_rate)
        return ForeignMachine(XML, to_text(host, told, name=name, source=f"{XML} {path.name}"))
    if is_matrix(text):
        told = Told(_device(path, gpu), nic_rate)
        lanes = known()["nvlink"].get(told.device.compute_capability, {"lanes": 0})["lanes"]
        host = to_host(parse_matrix(text, str(path)), str(path), most_lanes=lanes)
        return ForeignMachine(
            MATRIX, to_text(host, told, name=name, source=f"{MATRIX} in {path.name}")
        )
    return None


def _device(path: Path, name: str | None, capability: str = "") -> Device:
    """The GPU called *name*; where that is open, one of compute *capability* has to be named."""
    if name is None:
        everything = {one: load_device(one).compute_capability for one in list_devices()}
        near = [one for one, version in everything.items() if version == capability]
        said = f"has GPUs of compute capability {capability} with a PCI identity that is unknown"
        raise TopologyError(
            f"{path}: {said if near else 'does not say which GPU it is about'}. Name it: "
            f"perfmodel topology import {path} --gpu {near[-1] if near else 'h100_sxm'} "
            f"--out my_machine.yaml. GPUs: {', '.join(near or everything)}."
        )
    return load_device(name)
