"""Asking the questions, and what is kept of their answers.

Of an answer the numbers are kept by their place in the JSON (a list is one place: how
many there are, a hash of all, and the first), and the texts as they are. Of the screen and
the page a hash is kept. Where and how fast an answer was found (`run`) and which program found
it are left out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from perfmodel.cli import main
from tests.fingerprint.questions import FILES_WRITTEN, QUESTIONS, WITH_PAGE, WITHOUT_JSON

HERE = Path(__file__).resolve().parent
FILES = HERE / "files"
KINDS = ("numbers", "texts", "looks")
"""What is kept of an answer, and the files it is kept in."""
LEFT_OUT = ("run", "version", "command", "date", "made", "created")
UNSTEADY = re.compile(r"Where it ran|^Wrote |^<(style|script|meta)")
"""Lines of screens and pages that differ between two runs, or that the browser tests check."""
JsonObject = dict[str, Any]


def ask(name: str, folder: Path) -> tuple[JsonObject, JsonObject, JsonObject]:
    """Numbers, texts and looks of the answer to the question *name*, asked in *folder*."""
    words = QUESTIONS[name].split()
    if words[0] not in WITHOUT_JSON:
        words += ["--json", "answer.json"]
    if words[0] in WITH_PAGE:
        words += ["--report", "answer.html"]
    screen, complaints = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.dict(os.environ, COLUMNS="80"),
            contextlib.redirect_stdout(screen),
            contextlib.redirect_stderr(complaints),
        ):
            main(words)
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"{name}: {complaints.getvalue()}") from stop
    finally:
        os.chdir(before)
    printed = screen.getvalue()
    answer: JsonObject = {}
    looks = {"screen": _look(printed)}
    if "--json" in words:
        answer["json"] = json.loads(printed if words[-1] == "--json" else _take(folder, "json"))
    if "--report" in words:
        looks["page"] = _look(_take(folder, "html"))
    if name in FILES_WRITTEN:
        answer["file"] = _read(folder / FILES_WRITTEN[name])
    return *_kept(answer), looks


def find_recorded(kind: str) -> Path:
    """The file with the *kind* of all answers."""
    return HERE / f"{kind}.json"


def prepare(folder: Path) -> None:
    """Copy what the questions need into *folder*."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)


def _take(folder: Path, ending: str) -> str:
    """The text of the answer with *ending*, which is removed."""
    path = folder / f"answer.{ending}"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return text


def _look(text: str) -> list[Any]:
    """How many lines *text* has, and a hash of them."""
    lines = [line.rstrip() for line in text.splitlines() if not UNSTEADY.search(line)]
    return [len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]]


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


def _kept(answer: JsonObject) -> tuple[JsonObject, JsonObject]:
    found: dict[str, list[Any]] = {}
    for place, value in _leaves(answer, ""):
        found.setdefault(place, []).append(value)
    numbers: JsonObject = {}
    texts: JsonObject = {}
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
