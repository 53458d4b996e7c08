"""Foreign files: which program wrote a file, and what it says as a workload or as a layout.

A file is recognised by its content, not by its ending. Of a command line or a shell script the
`--key value` pairs are read: variables that the script sets to plain values, sums and products,
lists of arguments, and scripts that it sources from its own folder are resolved; what stays
unresolved keeps its dollar sign, and is refused where it is needed.
"""

from __future__ import annotations

import ast
import operator
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.documents import MAX_DOCUMENT_BYTES, load_yaml, parse_value, parse_yaml
from perfmodel.base.errors import WorkloadError
from perfmodel.base.reading import parse_json, read_text
from perfmodel.extensions.formats.models import registry, torchrec_benchmark
from perfmodel.extensions.formats.models.fields import REPEATED, FieldUse
from perfmodel.workloads.families import FAMILIES

HUGGING_FACE = "Hugging Face config.json"
CONFIG = "config.json"
_SHAPE = ("batch", "replica_batch", "sequence_length")
_DEEPSPEED = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
_TOML = re.compile(r"^\[[\w.]+\][ \t]*(?:#.*)?$", re.MULTILINE)
_NATIVE = re.compile(r"^(?:family|vertices|memory_bandwidth)[ \t]*:", re.MULTILINE)
_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)="
    r"(\$\{[^{}\n]*\}|\$\(\([^\n]*\)\)|[^\s(;]+|\"[^\"\n]*\"|'[^'\n]*')?[ \t]*(?:;.*)?$",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_ARGUMENTS = re.compile(r"--(?:num-layers|tensor-model-parallel-size|micro-batch-size)\b(?!:)")
_HOLDING = re.compile(r"[\"']|(?<![|\w])\(|\)(?![*\w])")
"""Quotes and brackets that only hold arguments together; few values have spaces."""
_SEVERAL = ("recompute_modules", "cuda_graph_scope")
_PROGRAM = re.compile(r"\b(?:pre)?train_\w+\.py$")
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()\n]|\([^()\n]*\))*)\)\)")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}  # fmt: skip
_SOURCED = re.compile(
    r"^[ \t]*(?:source|\.)[ \t]+\"?(?:\$\{?\w+\}?/)?([\w./-]+\.sh)\"?", re.MULTILINE
)
_FILLED = re.compile(
    r"i *< *(\w+); *i\+\+.*?i *< *(\w+) *\)\).*?\+=\((\d)\).*?else.*?\+=\((\d)\)"
    r".*?printf -v (\w+)",
    re.DOTALL,
)
"""A loop that fills a list with one number for the first layers and another for the rest."""
_CASE = re.compile(r"^[ \t]*case[ \t]+(\S+)[ \t]+in\b(.*?)^[ \t]*esac\b", re.DOTALL | re.MULTILINE)
_BRANCH = re.compile(r"\"?([\w.-]+)\"?\)(.*?);;", re.DOTALL)
"""A choice of values by one variable, and the values of each."""
_MOST_ROUNDS = 8


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


def read_foreign(path: Path, given: Collection[str] = ()) -> ForeignFile | None:
    """The workload in the file or folder *path* of another program; None if it is our own.

    *given* are fields of the workload that the question states itself.
    """
    found = _open(path)
    if found is None:
        return None
    if found.program == "deepspeed":
        raise WorkloadError(
            f"{path}: is a DeepSpeed configuration, which describes no model. Give the model with "
            "--workload and this file with --layout-from."
        )
    if found.program == HUGGING_FACE:
        from perfmodel.extensions.formats.models import hugging_face

        workload, uses = hugging_face.read_config(
            found.content, document=str(path), name=found.name, given=given
        )
        return ForeignFile(HUGGING_FACE, workload, uses)
    if found.program == torchrec_benchmark.KIND:
        workload, uses = torchrec_benchmark.read_benchmark(
            found.content, document=str(path), name=found.name, given=given
        )
        return ForeignFile(found.program, workload, uses)
    return _read_settings(found, str(path), given, is_layout=False)


def read_layout(path: Path) -> ForeignFile:
    """The layout and training in the file *path*: of another program, or of a workload."""
    found = _open(path)
    if found is None:
        content = load_yaml(path, error_type=WorkloadError)
        unknown = content.keys() - {
            field for one in FAMILIES.values() for field in one.spec_type.model_fields
        }
        if unknown or not {"parallel", "training"} & content.keys():
            raise WorkloadError(
                f"{path}: must be a workload with `parallel` or `training`, or settings of "
                "Megatron-LM, NeMo, torchtitan or DeepSpeed, has the keys "
                f"{', '.join(map(str, content))}. State the layout with --set parallel.tp=2."
            )
        return ForeignFile("workload", {**content, "assumed": []}, ())
    if found.program in (HUGGING_FACE, torchrec_benchmark.KIND):
        raise WorkloadError(
            f"{path}: is a {found.program}, which states no layout. Give it with --workload."
        )
    return _read_settings(found, str(path), (), is_layout=True)


def _read_settings(
    found: _Opened, document: str, given: Collection[str], *, is_layout: bool
) -> ForeignFile:
    from perfmodel.extensions.formats.models import settings

    workload, uses = settings.read_settings(
        found.program,
        found.content,
        document=document,
        name=found.name,
        given=given,
        is_layout=is_layout,
    )
    return ForeignFile(settings.load_table(found.program).kind, workload, uses)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a file says, and the program that it is for."""

    program: str
    content: dict[str, Any]
    name: str


def _open(path: Path) -> _Opened | None:
    """The file or folder *path*, if it is of another program."""
    file, _, entry = str(path).partition(":")
    if path.suffix == ".py" or not path.exists():
        text = read_text(Path(file), WorkloadError, MAX_DOCUMENT_BYTES)
        if not registry.ENTRY.search(text):
            raise WorkloadError(f"{file}: is no registry of torchtitan.")
        model = Path(file).resolve().parent.name
        content = registry.read_entry(text, entry, document=file, model=model)
        return _Opened("torchtitan", content, entry)
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
        content = _parse_toml(text, path)
    elif _ARGUMENTS.search(text):
        return _Opened("megatron", _parse_arguments(_with_sources(text, path)), name_of(path, {}))
    elif _NATIVE.search(text):
        return None
    else:
        content = parse_yaml(text, document=str(path), error_type=WorkloadError)
    if not isinstance(content, dict):
        raise WorkloadError(
            f"{path}: must be a workload, a Hugging Face {CONFIG}, or settings of Megatron-LM, "
            "NeMo, torchtitan or DeepSpeed, and is none of them. `perfmodel init workload` writes "
            "a file to start from."
        )
    program = _recognise(content)
    return None if program is None else _Opened(program, content, name_of(path, content))


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise WorkloadError(f"{path}: not valid TOML ({fault}).") from None


def _recognise(content: dict[str, Any]) -> str | None:
    """The program that *content* is for, by its keys."""
    if {"model_type", "architectures", "num_hidden_layers", "n_embd"} & content.keys():
        return HUGGING_FACE
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


def name_of(path: Path, content: dict[str, Any]) -> str:
    """What a model is called: as its file says, or as its file or folder is called."""
    stated = content.get("_name_or_path")
    if isinstance(stated, str) and stated.strip():
        word = stated.rstrip("/").rpartition("/")[2]
    else:
        word = path.resolve().parent.name if path.name == CONFIG else path.stem
    name = re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")
    return name.removesuffix("_config") or "model"


def _with_sources(text: str, path: Path) -> str:
    """*text* with the scripts in place that it sources from its own folder or below."""

    def read(match: re.Match[str]) -> str:
        script = (path.parent / match[1]).resolve()
        if not script.is_relative_to(path.parent.resolve()) or not script.is_file():
            return match[0]
        return read_text(script, WorkloadError, MAX_DOCUMENT_BYTES)

    return _SOURCED.sub(read, text)


def _parse_arguments(text: str) -> dict[str, Any]:
    """The arguments in *text* by their names, with underscores; a flag is true.

    The name of the program (`pretrain_gpt.py`) is a flag, too.
    """
    text = re.sub(r"(^|\s)#.*", r"\1", text)
    text = re.sub(r"\\\r?\n", " ", text)
    variables = _read_variables(text)
    found: dict[str, Any] = {}
    repeated: dict[str, bool] = {}
    for line in text.splitlines():
        key = ""
        for word in _HOLDING.sub(" ", _resolve(line, variables)).split():
            program = _PROGRAM.search(word)
            if word.startswith("--") and word != "--":
                name, sign, value = word.removeprefix("--").partition("=")
                key = name.replace("-", "_")
                if key in found:
                    repeated[key] = True
                found[key] = _value(value) if sign else True
            elif program is not None:
                found[program[0]] = True
            elif key and found[key] is True and "[@]" not in word:
                found[key] = _value(word)
            elif key in _SEVERAL:
                found[key] = f"{found[key]} {word}"
    return found | {REPEATED: list(repeated)}


def _read_variables(text: str) -> dict[str, str]:
    """What the variables of a script stand for, in a `case` those of the branch that it takes."""

    def assigned(lines: str) -> dict[str, str]:
        return {
            # `TP=${TP:-1}` takes the default: what the caller exports is not known here.
            name: re.sub(rf"^\$\{{{name}:?-(.*)\}}$", r"\1", value.strip("\"'"))
            for name, value in _ASSIGNMENT.findall(lines)
        }

    variables = assigned(text)
    for subject, branches in _CASE.findall(text):
        taken = dict(_BRANCH.findall(branches)).get(_resolve(subject, variables).strip("\"'"), "")
        variables |= assigned(taken)
    for layers, count, first, rest, name in _FILLED.findall(text):
        variables[name] = f"[{first}]*${{{count}}}+[{rest}]*$(({layers}-{count}))"
    return variables


def _resolve(line: str, variables: dict[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    def calculate(match: re.Match[str]) -> str:
        words = re.sub(r"\$?\b([A-Za-z_]\w*)", lambda one: variables.get(one[1], one[0]), match[1])
        words = _VARIABLE.sub(replace, words)
        try:
            return str(_number(ast.parse(words.strip(), mode="eval").body))
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
            return match[0]

    for _ in range(_MOST_ROUNDS):
        following = _VARIABLE.sub(replace, _ARITHMETIC.sub(calculate, line))
        if following == line:
            break
        line = following
    return line


def _number(node: ast.expr) -> int:
    """What a sum or product of whole numbers is."""
    if isinstance(node, ast.BinOp):
        return int(_OPERATORS[type(node.op)](_number(node.left), _number(node.right)))
    return int(ast.literal_eval(node))


def _value(word: str) -> Any:
    if re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", word, re.IGNORECASE):
        return parse_value(word)
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)
