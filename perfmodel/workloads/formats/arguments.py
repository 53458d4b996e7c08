"""Arguments: `--key value` pairs of a command line, also inside a shell script.

Variables that the script sets to plain values, and lists of arguments, are resolved. What stays
unresolved keeps its dollar sign, and is refused where it is needed.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from perfmodel.base.documents import parse_value
from perfmodel.base.errors import WorkloadError

_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)="
    r"(\$\{[^{}\n]*\}|[^\s(;#]+|\"[^\"\n]*\"|'[^'\n]*')?[ \t]*(?:[;#].*)?$",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_KNOWN = re.compile(r"--(?:num-layers|tensor-model-parallel-size|micro-batch-size)\b(?!:)")
MOST_ROUNDS = 8


def is_command_line(text: str) -> bool:
    """Whether *text* holds arguments of Megatron-LM."""
    return _KNOWN.search(text) is not None


def parse_arguments(text: str, document: str) -> dict[str, Any]:
    """The arguments in *text* by their names, with underscores; a flag is true."""
    text = re.sub(r"\\\r?\n", " ", text)
    variables = {
        # `TP=${TP:-1}` takes the default: what the caller exports is not known here.
        name: re.sub(rf"^\$\{{{name}:?-(.*)\}}$", r"\1", (value or "").strip("\"'"))
        for name, value in _ASSIGNMENT.findall(text)
    }
    words: list[str] = []
    for line in text.splitlines():
        if "--" in line:
            words += _split(_resolve(line, variables), document)
    found: dict[str, Any] = {}
    key = ""
    for word in words:
        if word.startswith("--") and word != "--":
            name, sign, value = word.removeprefix("--").partition("=")
            key = name.replace("-", "_")
            found[key] = _value(value) if sign else True
        elif key and found[key] is True:
            found[key] = _value(word)
    return found


def _resolve(line: str, variables: dict[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(MOST_ROUNDS):
        following = _VARIABLE.sub(replace, line)
        if following == line:
            break
        line = following
    return line


def _split(line: str, document: str) -> list[str]:
    """The words of *line*; quoted arguments with their values are split, too."""
    line = line.strip().rstrip(")").replace("+=(", " ").replace("=(", " ")
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise WorkloadError(
            f"{document}: cannot be read as arguments ({line[:60]!r} has an open quote)."
        ) from None
    return [part for word in words for part in (word.split() if word.startswith("--") else [word])]


def _value(word: str) -> Any:
    if re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", word, re.IGNORECASE):
        return parse_value(word)
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)
