"""The catalog: workloads that ship with perfmodel, user files, and changes to single fields."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfmodel.base.documents import find_document, load_yaml, parse_value
from perfmodel.base.errors import WorkloadError
from perfmodel.base.extensions import has_extension, load_extension
from perfmodel.base.faults import FaultList
from perfmodel.base.forms import Document, load_document
from perfmodel.base.reading import quote
from perfmodel.workloads.families import FAMILIES
from perfmodel.workloads.family import Family
from perfmodel.workloads.fields import Workload

SPEC_FOLDER = Path(__file__).parent / "specs"
DEFAULT_WORKLOAD = "dlrm_dcnv2"


@dataclass(frozen=True, slots=True)
class WorkloadTitle:
    """A workload's name and what it is, in one line."""

    name: str
    description: str


def list_workloads() -> tuple[WorkloadTitle, ...]:
    """The workloads that come with perfmodel, by name."""
    contents = [load_yaml(path) for path in sorted(SPEC_FOLDER.glob("*.yaml"))]
    return tuple(WorkloadTitle(content["name"], content["description"]) for content in contents)


def load_workload(
    name_or_path: str | Path,
    overrides: Sequence[str] = (),
    *,
    layout_from: str | Path | None = None,
    rank_count: int = 1,
) -> Workload:
    """The workload in a file or of that name, with *overrides* such as `parallel.tp=4`.

    Files of other programs, such as the config.json of a Hugging Face model, are read too.
    *layout_from* is a file whose layout, batch and training replace those of the workload.
    *rank_count* matters where the batch of one data-parallel rank is stated.
    """
    path = find_workload(name_or_path)
    if layout_from is not None:
        return _load_laid_out(path, overrides, Path(layout_from), rank_count)
    given = {override.partition("=")[0].strip() for override in overrides}
    if path.parent != SPEC_FOLDER and has_extension("formats"):
        foreign = load_extension("formats", "models").read_foreign(path, given)
        if foreign is not None:
            file = Document(str(path), foreign.content, WorkloadError)
            return _parse(file, overrides, rank_count)
    loaded = load_document(path, WorkloadError)
    # A value that an override changed is on no line.
    locate = str if overrides else loaded.locate
    document = replace(loaded, name=str(name_or_path), locate=locate)
    return _parse(document, overrides, rank_count)


def _load_laid_out(
    path: Path, overrides: Sequence[str], layout_file: Path, rank_count: int
) -> Workload:
    """The workload in *path* with the layout in *layout_file*."""
    laid_out = load_extension("formats", "models").read_layout(layout_file)
    changes = [f"{key}={json.dumps(value)}" for key, value in laid_out.changes.items()]
    workload = load_workload(path, [*changes, *overrides], rank_count=rank_count)
    sentence = f"Layout and training are those of {layout_file} ({laid_out.kind})."
    update: dict[str, Any] = {
        key: (*getattr(workload, key), *laid_out.content.get(key, ()))
        for key in ("assumed", "unknown_keys")
    }
    update["assumed"] += (sentence,)
    if "stack" in laid_out.content:
        update["stack"] = laid_out.content["stack"]
    return workload.model_copy(update=update)


def parse_workload(
    content: dict[str, Any], *, document: str, overrides: Sequence[str] = ()
) -> Workload:
    """The workload that *content* states; *document* names it in errors."""
    return _parse(Document(document, content, WorkloadError), overrides)


def _parse(file: Document, overrides: Sequence[str], rank_count: int = 1) -> Workload:
    content, document = file.content, file.name
    family = content.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        if "vertices" in content or "memory_bandwidth" in content:
            raise WorkloadError(f"{document}: is a machine or a GPU. Give it with --topology.")
        got = "is missing" if family is None else f"got {family!r}"
        raise WorkloadError(
            f"{document}: family must be one of {', '.join(sorted(FAMILIES))}, {got}. "
            "`perfmodel init workload` writes a file to start from."
        )
    known = FAMILIES[family]
    faults = file.faults()
    for key in {override.partition("=")[0].strip() for override in overrides}:
        section = content.get(key.partition(".")[0])
        for about in known.superseded.get(key, ()) if isinstance(section, dict) else ():
            section.pop(about, None)
    for override in overrides:
        _apply(override, content, known, faults)
    faults.check(WorkloadError)
    if content.get("assumed"):
        stated = {override.partition("=")[0].strip() for override in overrides}
        # `training: ...` is about the whole section.
        stated |= {key.partition(".")[0] for key in stated}
        content["assumed"] = [
            one for one in content["assumed"] if one.partition(":")[0] not in stated
        ]
    settled = replace(file, content=known.complete(content, rank_count))
    workload: Workload = settled.read(known.spec_type)
    return workload


def find_workload(name_or_path: str | Path) -> Path:
    """The file of the workload of that name or path, or `FILE.py:ENTRY` of a file of several."""
    file, is_entry, _ = str(name_or_path).rpartition(".py:")
    if is_entry and Path(f"{file}.py").is_file():
        return Path(name_or_path)
    return find_document(
        name_or_path, folder=SPEC_FOLDER, what="workload", error_type=WorkloadError
    )


def _apply(override: str, content: dict[str, Any], family: Family[Any], faults: FaultList) -> None:
    key, sign, text = override.partition("=")
    key = key.strip()
    if not sign or not key:
        faults.add(repr(override), "a change must be written as field=value, like batch=4096")
        return
    fields = sorted(_iter_fields(family.spec_type))
    if key not in fields:
        faults.add(key, f"no such field. {_near(key, fields)}")
        return
    try:
        value = parse_value(text)
    except ValueError:
        faults.add(key, f"cannot be read as a value, got {quote(text)}")
        return
    # Each of them states the other.
    content.pop(family.alternatives.get(key, ""), None)
    *sections, name = key.split(".")
    section = content
    for word in sections:
        section = section.setdefault(word, {})
    section[name] = value


def _iter_fields(spec_type: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in spec_type.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _iter_fields(kind, f"{prefix}{name}.")
        elif name != "family":
            yield f"{prefix}{name}"


def _near(key: str, fields: Sequence[str]) -> str:
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [field for field in fields if field.rsplit(".", 1)[-1] == leaf]
    leaves = {field.rsplit(".", 1)[-1]: field for field in fields}
    close = difflib.get_close_matches(key, fields, n=3)
    close += [leaves[near] for near in difflib.get_close_matches(leaf, leaves, n=2)]
    names = list(dict.fromkeys(same_leaf + close))
    return f"Near: {', '.join(names)}." if names else f"Fields: {', '.join(fields)}."
