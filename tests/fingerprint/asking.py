"""Asking the questions, and what is kept of their answers.

Of an answer the numbers are kept by their place in the JSON (a list is one place: how
many there are, a hash of all, and the first), and the texts as they are. Where and how
fast an answer was found (`run`) and which program found it are left out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from perfmodel.cli import main
from tests.fingerprint.questions import FILES_WRITTEN, QUESTIONS

HERE = Path(__file__).resolve().parent
FILES = HERE / "files"
NUMBERS, TEXTS = HERE / "numbers.json", HERE / "texts.json"
LEFT_OUT = ("run", "version", "command", "date", "made", "created")


def ask(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers and texts of the answer to the question called *name*, asked in *folder*."""
    screen, complaints = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(complaints):
            main(QUESTIONS[name].split())
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"{name}: {complaints.getvalue()}") from stop
    finally:
        os.chdir(before)
    printed = screen.getvalue()
    answer: dict[str, Any] = {}
    if printed.startswith("{"):
        answer["json"] = json.loads(printed)
    else:
        answer["screen"] = [line.rstrip() for line in printed.splitlines()]
    if name in FILES_WRITTEN:
        answer["file"] = _read(folder / FILES_WRITTEN[name])
    return _kept(answer)


def prepare(folder: Path) -> None:
    """Copy what the questions need into *folder*."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return [list(map(_number, row)) for row in csv.reader(io.StringIO(text))]
    return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _kept(answer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    found: dict[str, list[Any]] = {}
    for place, value in _leaves(answer, ""):
        found.setdefault(place, []).append(value)
    numbers: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for place, values in sorted(found.items()):
        words = [value for value in values if isinstance(value, str)]
        others = [_rounded(value) for value in values if not isinstance(value, str)]
        if words:
            texts[place] = list(dict.fromkeys(words))
        digest = hashlib.sha256(json.dumps(others).encode()).hexdigest()[:12]
        numbers[place] = [len(others), digest, others[0]] if others else [0]
    return numbers, texts


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in LEFT_OUT:
                yield from _leaves(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, f"{place}[]")
    else:
        yield place, value


def _rounded(value: Any) -> Any:
    # Nine digits: no machine disagrees on them.
    return float(f"{value:.9g}") if isinstance(value, float) else value
