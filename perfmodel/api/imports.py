"""Imports: files of other programs become files of ours, and say what became of each field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from perfmodel.api.questions import File
from perfmodel.base.errors import WorkloadError
from perfmodel.workloads import Workload, parse_workload
from perfmodel.workloads.catalog import find_workload
from perfmodel.workloads.formats import FieldUse, read_foreign


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
            f"{path}: is no file of another program. A workload of ours needs no import."
        )
    workload = parse_workload(found.content, document=str(path), overrides=overrides)
    # Overrides were applied to the content itself.
    body = yaml.safe_dump(found.content, sort_keys=False, width=100, allow_unicode=True)
    heading = f"# {found.kind} {Path(path).name}, as `perfmodel workload import` read it.\n"
    return ImportedWorkload(workload, found.kind, found.uses, f"---\n{heading}{body}...\n")
