"""Arguments of a training program, in a shell script or a command line.

Variables that the script sets to plain values, sums and products, lists of arguments, and scripts
that it sources from its own folder are resolved. What stays unresolved keeps its dollar sign, and
is refused where it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.documents import MAX_DOCUMENT_BYTES, parse_value
from perfmodel.base.errors import WorkloadError
from perfmodel.base.reading import read_text
from perfmodel.extensions.formats.models.fields import REPEATED, work_out

_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)="
    r"(\$\{[^{}\n]*\}|\$\(\([^\n]*\)\)|[^\s(;]+|\"[^\"\n]*\"|'[^'\n]*')?[ \t]*(?:;.*)?$",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{\.*([\w.]+)(?::?-([^{}]*))?\}|(\w+))")
_HOLDING = re.compile(r"[\"']|(?<![|\w])\(|\)(?![*\w])")
"""Quotes and brackets that only hold arguments together; few values have spaces."""
_SEVERAL = ("recompute_modules", "cuda_graph_scope")
_PROGRAM = re.compile(r"\b(?:pre)?train_\w+\.py$")
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()\n]|\([^()\n]*\))*)\)\)")
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


def parse_arguments(text: str, folder: Path) -> dict[str, Any]:
    """The arguments in *text* by their names, with underscores; a flag is true.

    The name of the program (`pretrain_gpt.py`) is a flag, too.
    """

    def read_sourced(match: re.Match[str]) -> str:
        script = (folder / match[1]).resolve()
        if not script.is_relative_to(folder.resolve()) or not script.is_file():
            return match[0]
        return read_text(script, WorkloadError, MAX_DOCUMENT_BYTES)

    text = re.sub(r"(^|\s)#.*", r"\1", _SOURCED.sub(read_sourced, text))
    text = re.sub(r"\\\r?\n", " ", text)
    variables = _read_variables(text)
    found: dict[str, Any] = {}
    repeated: dict[str, bool] = {}
    for line in text.splitlines():
        key = ""
        for word in _HOLDING.sub(" ", resolve(line, variables)).split():
            program = _PROGRAM.search(word)
            if word.startswith("--") and word != "--":
                name, sign, value = word.removeprefix("--").partition("=")
                key = name.replace("-", "_")
                repeated |= {key: True} if key in found else {}
                found[key] = value_of(value) if sign else True
            elif program is not None:
                found[program[0]] = True
            elif key and found[key] is True and "[@]" not in word:
                found[key] = value_of(word)
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
        taken = dict(_BRANCH.findall(branches)).get(resolve(subject, variables).strip("\"'"), "")
        variables |= assigned(taken)
    for layers, count, first, rest, name in _FILLED.findall(text):
        variables[name] = f"[{first}]*${{{count}}}+[{rest}]*$(({layers}-{count}))"
    return variables


def resolve(line: str, variables: Mapping[str, Any]) -> str:
    """*line* with the values of *variables*, and with sums and products worked out."""

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        # A path into a file of settings may leave out its section.
        found = variables.get(name, variables.get(name.rpartition(".")[2], match[2]))
        return match[0] if found is None else str(found)

    def calculate(match: re.Match[str]) -> str:
        words = _VARIABLE.sub(replace, match[1])
        words = re.sub(r"\b[A-Za-z_]\w*", lambda one: str(variables.get(one[0], one[0])), words)
        number = work_out(_VARIABLE.sub(replace, words))
        return match[0] if number is None else str(number)

    for _ in range(_MOST_ROUNDS):
        following = _VARIABLE.sub(replace, _ARITHMETIC.sub(calculate, line))
        if following == line:
            break
        line = following
    return line


def value_of(word: str) -> Any:
    """What an argument says: a number, a switch, or the word itself."""
    if re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", word, re.IGNORECASE):
        return parse_value(word)
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)
