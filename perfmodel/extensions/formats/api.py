"""Imports: files of other programs become perfmodel files that state what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from perfmodel.api.questions import File
from perfmodel.base.errors import TopologyError, WorkloadError
from perfmodel.base.forms import parse_document
from perfmodel.extensions.formats.machines import read_foreign as read_foreign_machine
from perfmodel.extensions.formats.models import FieldUse, read_foreign
from perfmodel.workloads import Workload, parse_workload
from perfmodel.workloads.catalog import find_workload
from topologies import Topology
from topologies.topology_file import parse_topology


@dataclass(frozen=True, slots=True)
class ImportedWorkload:
    """A workload from the file of another program.

    *kind* says which; *uses* what became of each of its fields; *text* is the YAML file.
    """

    workload: Workload
    kind: str
    uses: tuple[FieldUse, ...]
    text: str


def import_workload(path: File, overrides: Sequence[str] = ()) -> ImportedWorkload:
    """The model in *path* as a workload file, with *overrides* such as `batch=256`.

    It may be the config.json of a Hugging Face model or its folder, Megatron-LM arguments, or a
    file of NeMo or torchtitan.
    """
    given = {override.partition("=")[0].strip() for override in overrides}
    found = read_foreign(find_workload(path), given)
    if found is None:
        raise WorkloadError(
            f"{path}: must be a model file of another program, but is not. A perfmodel workload "
            f"needs no import."
        )
    workload = parse_workload(found.content, document=str(path), overrides=overrides)
    # Overrides were applied to the content itself.
    body = yaml.safe_dump(found.content, sort_keys=False, width=100, allow_unicode=True)
    heading = f"# {found.kind} {Path(path).name}, as `perfmodel workload import` read it.\n"
    return ImportedWorkload(workload, found.kind, found.uses, f"---\n{heading}{body}...\n")


@dataclass(frozen=True, slots=True)
class ImportedTopology:
    """A machine from the file of another program; *kind* says which, *text* is the YAML file."""

    topology: Topology
    kind: str
    text: str


def import_topology(
    path: File, *, gpu: str | None = None, nic_rate: str | None = None
) -> ImportedTopology:
    """The host in NCCL's topology XML or in the matrix of `nvidia-smi topo -m` as a machine file.

    *gpu* names the GPU where the file does not; *nic_rate* is the rate of a NIC, as `400 Gbit/s`.
    """
    found = read_foreign_machine(Path(path), gpu=gpu, nic_rate=nic_rate)
    if found is None:
        raise TopologyError(
            f"{path}: must be NCCL's topology XML (NCCL_TOPO_DUMP_FILE) or the output of "
            "`nvidia-smi topo -m`, but is neither. A perfmodel machine file needs no import."
        )
    document = parse_document(found.text, str(path), TopologyError)
    return ImportedTopology(parse_topology(document, path=Path(path)), found.kind, found.text)
