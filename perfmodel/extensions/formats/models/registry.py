"""Registries of torchtitan: functions that return a configuration, read as data and never executed.

An entry is a call with keywords, or another entry with some fields assigned. What needs the running
program, such as a share of a model's layers, is refused where it is needed, and unknown keys are
named as in a file.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.extensions.formats.models.fields import work_out

_ENTRY = re.compile(r"^def (\w+)\([^()]*\) -> Trainer\.Config:", re.MULTILINE)
_TOKENS = {
    "num_tokens_per_microbatch_per_dp_rank": 16384, "max_context_length": 2048,
    "num_tokens_per_train_step": -1,
}  # fmt: skip
_RECOMPUTE = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}


def read_entry(text: str, entry: str, *, document: str, model: str) -> dict[str, Any]:
    """The settings of *entry* in the registry *text* of *model*, by their dotted names."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError) as fault:
        raise WorkloadError(f"{document}: not valid Python ({fault}).") from None
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    entries = _ENTRY.findall(text)
    if not entries:
        raise WorkloadError(f"{document}: is no registry of torchtitan.")
    if entry not in entries:
        known = ", ".join(entries)
        raise WorkloadError(
            f"{document}: is a registry of torchtitan; name one of its entries, as "
            f"{document}:ENTRY. It has {known}; got {entry or 'none'}."
        )
    found = _Entry(functions).read(entry)
    tokens, length, step = (found.pop(f"training.{key}", usual) for key, usual in _TOKENS.items())
    if not all(isinstance(one, int) for one in (tokens, length, step)) or length < 1:
        raise WorkloadError(
            f"{document}: {entry} must state whole numbers of {', '.join(_TOKENS)}, got {tokens}, "
            f"{length}, {step}. Give a model with --workload."
        )
    found |= {"training.seq_len": length, "training.local_batch_size": max(1, tokens // length)}
    if step > 0:
        found["training.global_batch_size"] = step // length
    return {**found, "model.name": model}


class _Entry:
    """Reads entries; *found* are fields, *names* what variables stand for."""

    def __init__(self, functions: dict[str, ast.FunctionDef]) -> None:
        self._functions = functions
        self._found: dict[str, Any] = {}
        self._names: dict[str, ast.expr] = {}

    def read(self, entry: str) -> dict[str, Any]:
        for step in self._functions.pop(entry).body:
            if isinstance(step, ast.Return) and isinstance(step.value, ast.Call):
                self._take("", step.value)
            elif isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Name):
                self._names[step.targets[0].id] = step.value
                if isinstance(step.value, ast.Call) and _name(step.value) in self._functions:
                    self._take("", step.value)
            elif isinstance(step, ast.Assign):
                _, _, path = ast.unparse(step.targets[0]).partition(".")
                self._take(path, step.value)
        return self._found

    def _take(self, path: str, value: ast.expr) -> None:
        """Put what *value* says of *path* into what was found."""
        if isinstance(value, ast.Name) and value.id in self._names:
            value = self._names[value.id]
        if not isinstance(value, ast.Call):
            text = ast.unparse(value)
            found = work_out(text)
            # What only the program knows is a reference, refused where it is needed.
            self._found[path] = f"${text}" if found is None and text != "None" else found
            return
        name = _name(value)
        if name in self._functions:
            self.read(name)
        elif name == "model_registry":
            self._found["model.flavor"] = ast.literal_eval(value.args[0])
            made = next((one.value for one in value.keywords if one.arg == "converters"), value)
            self._found["model.converters"] = re.findall(r"\w+Converter", ast.unparse(made))
            if parts := re.search(r"fqns=([^\[,)]+)", ast.unparse(made)):
                # Some layers only, which the program finds: an unknown key of the answer.
                self._found["model.converters.fqns"] = parts[1]
        elif name in _RECOMPUTE:
            self._found |= {f"{path}.mode": _RECOMPUTE[name], f"{path}.selective_ac_option": "op"}
        else:
            for one in value.keywords:
                self._take(f"{path}.{one.arg}".removeprefix("."), one.value)


def _name(call: ast.Call) -> str:
    """The function or class of *call*; `SelectiveAC.Config` is SelectiveAC."""
    return ast.unparse(call.func).removesuffix(".Config")
