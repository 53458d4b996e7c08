"""Arguments: `--key value` pairs of a command line, also inside a shell script.

Variables that the script sets to plain values, and lists of arguments, are resolved. What stays
unresolved keeps its dollar sign, and is refused where it is needed.
"""

from __future__ import annotations

import math
import re
from typing import Any

from perfmodel.base.documents import parse_value

_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)="
    r"(\$\{[^{}\n]*\}|\$\(\([^\n]*\)\)|[^\s(;]+|\"[^\"\n]*\"|'[^'\n]*')?[ \t]*(?:;.*)?$",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_KNOWN = re.compile(r"--(?:num-layers|tensor-model-parallel-size|micro-batch-size)\b(?!:)")
_PROGRAM = re.compile(r"\b(?:pre)?train_\w+\.py$")
_PRODUCT = re.compile(r"\$\(\((\s*\d+(?:\s*\*\s*\d+)*\s*)\)\)")
MOST_ROUNDS = 8


def is_command_line(text: str) -> bool:
    """Whether *text* holds arguments of Megatron-LM."""
    return _KNOWN.search(text) is not None


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments in *text* by their names, with underscores; a flag is true.

    The name of the program (`pretrain_gpt.py`) is a flag, too.
    """
    text = re.sub(r"(^|\s)#.*", r"\1", text)
    text = re.sub(r"\\\r?\n", " ", text)
    variables = {
        # `TP=${TP:-1}` takes the default: what the caller exports is not known here.
        name: re.sub(rf"^\$\{{{name}:?-(.*)\}}$", r"\1", (value or "").strip("\"'"))
        for name, value in _ASSIGNMENT.findall(text)
    }
    found: dict[str, Any] = {}
    for line in text.splitlines():
        key = ""
        # Quotes and brackets only hold arguments together; values with spaces are not needed.
        for word in re.sub(r"[\"'()]", " ", _resolve(line, variables)).split():
            program = _PROGRAM.search(word)
            if word.startswith("--") and word != "--":
                name, sign, value = word.removeprefix("--").partition("=")
                key = name.replace("-", "_")
                found[key] = _value(value) if sign else True
            elif program is not None:
                found[program[0]] = True
            elif key and found[key] is True and "[@]" not in word:
                found[key] = _value(word)
    return found


def _resolve(line: str, variables: dict[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(MOST_ROUNDS):
        following = _PRODUCT.sub(lambda match: str(math.prod(map(int, match[1].split("*")))), line)
        following = _VARIABLE.sub(replace, following)
        if following == line:
            break
        line = following
    return line


def _value(word: str) -> Any:
    if re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", word, re.IGNORECASE):
        return parse_value(word)
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)
