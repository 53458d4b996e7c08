"""Foreign files: which program wrote a file, and what it says as a workload or as a layout.

A file is recognised by its content, not by its ending.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perfmodel.base.documents import MAX_DOCUMENT_BYTES, load_yaml, parse_yaml
from perfmodel.base.errors import WorkloadError
from perfmodel.base.reading import parse_json, read_text
from perfmodel.extensions.formats.models import (
    hugging_face,
    registry,
    scripts,
    settings,
    torchrec_benchmark,
)
from perfmodel.extensions.formats.models.fields import FieldUse
from perfmodel.workloads.families import FAMILIES

CONFIG = "config.json"
_SHAPE = ("batch", "replica_batch", "sequence_length")
_DEEPSPEED = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
_TOML = re.compile(r"^\[[\w.]+\][ \t]*(?:#.*)?$", re.MULTILINE)
_NATIVE = re.compile(r"^(?:family|vertices|memory_bandwidth)[ \t]*:", re.MULTILINE)
_ARGUMENTS = re.compile(r"--(?:num-layers|tensor-model-parallel-size|micro-batch-size)\b(?!:)")
_MODELS: Mapping[str, Callable[..., Any]] = {
    hugging_face.KIND: hugging_face.read_config,
    torchrec_benchmark.KIND: torchrec_benchmark.read_benchmark,
}
"""Files that describe a model and no layout."""


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file of another program: which *kind*, the *content* of a workload, and its fields."""

    kind: str
    content: dict[str, Any]
    uses: tuple[FieldUse, ...]

    @property
    def changes(self) -> dict[str, Any]:
        """What it states in addition to the model, as fields to change in another workload."""
        found = {key: self.content[key] for key in _SHAPE if key in self.content}
        for section in ("parallel", "training"):
            of_section = self.content.get(section) or {}
            found |= {f"{section}.{key}": value for key, value in of_section.items()}
        return found


def read_foreign(
    path: Path, given: Collection[str] = (), *, is_layout: bool = False
) -> ForeignFile | None:
    """The workload in the file or folder *path* of another program; None if it is our own.

    *given* are fields of the workload that the question states itself; *is_layout* leaves the
    model out.
    """
    found = _open(path)
    if found is None:
        return None
    program, content, name = found
    kind, read = program, _MODELS.get(program)
    if read is None:
        kind = settings.load_table(program).kind
        read = partial(settings.read_settings, program, is_layout=is_layout)
    elif is_layout:
        raise WorkloadError(
            f"{path}: is a {kind}, which states no layout. Give it with --workload."
        )
    if program == "deepspeed" and not is_layout:
        raise WorkloadError(
            f"{path}: is a {kind}, which describes no model. Give the model with --workload and "
            "this file with --layout-from."
        )
    workload, uses = read(content, document=str(path), name=name, given=given)
    return ForeignFile(kind, workload, tuple(uses))


def read_layout(path: Path) -> ForeignFile:
    """The layout and training in the file *path*: of another program, or of a workload."""
    found = read_foreign(path, is_layout=True)
    if found is None:
        content = load_yaml(path, error_type=WorkloadError)
        known = {field for one in FAMILIES.values() for field in one.spec_type.model_fields}
        if content.keys() - known or not {"parallel", "training"} & content.keys():
            raise WorkloadError(
                f"{path}: must be a workload with `parallel` or `training`, or settings of "
                "Megatron-LM, NeMo, torchtitan or DeepSpeed, has the keys "
                f"{', '.join(map(str, content))}. State the layout with --set parallel.tp=2."
            )
        return ForeignFile("workload", {**content, "assumed": []}, ())
    return found


def _open(path: Path) -> tuple[str, dict[str, Any], str] | None:
    """The program that the file or folder *path* is for, what it says, and its name."""
    file, _, entry = str(path).partition(":")
    if path.suffix == ".py" or not path.exists():
        text = read_text(Path(file), WorkloadError, MAX_DOCUMENT_BYTES)
        model = Path(file).resolve().parent.name
        return "torchtitan", registry.read_entry(text, entry, document=file, model=model), entry
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise WorkloadError(
                f"{path}: is a folder without {CONFIG}. Name a workload file, or the folder of a "
                "Hugging Face model."
            )
        path = path / CONFIG
    text = read_text(path, WorkloadError, MAX_DOCUMENT_BYTES)
    if text.lstrip()[:1] == "{":
        # Python's own writer puts Infinity into the files of some models.
        content = parse_json(text, document=str(path), error_type=WorkloadError, is_strict=False)
    elif _TOML.search(text):
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as fault:
            raise WorkloadError(f"{path}: not valid TOML ({fault}).") from None
    elif _ARGUMENTS.search(text):
        return "megatron", scripts.parse_arguments(text, path.parent), _name_of(path, {})
    elif _NATIVE.search(text):
        return None
    else:
        content = parse_yaml(text, document=str(path), error_type=WorkloadError)
    if not isinstance(content, dict):
        raise WorkloadError(
            f"{path}: must be a workload, a {hugging_face.KIND}, or settings of Megatron-LM, "
            "NeMo, torchtitan or DeepSpeed, and is none of them. `perfmodel init workload` writes "
            "a file to start from."
        )
    program = _recognise(content)
    return None if program is None else (program, content, _name_of(path, content))


def _recognise(content: dict[str, Any]) -> str | None:
    """The program that *content* is for, by its keys."""
    if {"model_type", "architectures", "num_hidden_layers", "n_embd"} & content.keys():
        return hugging_face.KIND
    if len(torchrec_benchmark.SECTIONS & content.keys()) > 1:
        return torchrec_benchmark.KIND
    if _DEEPSPEED & content.keys():
        return "deepspeed"
    model = content.get("model")
    if isinstance(model, dict) and "flavor" in model:
        return "torchtitan"
    sections = [content, *(one for one in content.values() if isinstance(one, dict))]
    keys = {key for one in sections for key in one}
    if {"--num-layers", "--tensor-model-parallel-size"} & keys:
        return "megatron"
    return "nemo" if {"num_layers", "tensor_model_parallel_size"} & keys else None


def _name_of(path: Path, content: dict[str, Any]) -> str:
    """What a model is called: as its file says, or as its file or folder is called."""
    stated = content.get("_name_or_path")
    if isinstance(stated, str) and stated.strip():
        word = stated.rstrip("/").rpartition("/")[2]
    else:
        word = path.resolve().parent.name if path.name == CONFIG else path.stem
    name = re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")
    return name.removesuffix("_config") or "model"
