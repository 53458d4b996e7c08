"""README and manual: commands print what is said, links lead somewhere, words are spelt."""

from __future__ import annotations

import ast
import csv
import json
import re
import shlex
import sys
from collections import Counter
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pytest
import yaml

from perfmodel.cli import COMMANDS, load_command
from perfmodel.extensions.measurements.validation.runs import predict_run
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from perfmodel.extensions.measurements.validation.scoreboard import Deviation, build_score
from perfmodel.prediction.question import PredictOptions
from tests.manual.pages import CHECKOUT, PAGES, Command, blocks_of, follow, rewritten

sys.path.append(str(CHECKOUT / "docs"))
from notebook import executed, load
from scoreboard import (
    BEGIN,
    END,
    FAMILIES,
    PAIRS,
    README,
    SCOREBOARD,
    SCRIPTS,
    script_lines,
    with_scoreboard,
)

FIRST_SCREEN = 24
"""Lines of a screen that everybody reads."""
NAMES = [str(path.relative_to(CHECKOUT)) for path in PAGES]
FOLDERS = sorted(
    path
    for place in ("perfmodel", "collectives", "embeddings", "topologies", "traces", "tests", "docs")
    for path in (CHECKOUT / place).rglob("README.md")
)
TEXTS = [*PAGES, *FOLDERS, *CHECKOUT.glob("*.md"), *(CHECKOUT / "experiments").rglob("*.md")]


PLACES = [
    CHECKOUT / name
    for name in ("perfmodel", "collectives", "embeddings", "topologies", "traces", "tests", "docs")
]


def commands_in(text: str) -> list[str]:
    """Lines of code that call the program."""
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    calls = [re.sub(r"^\.venv/bin/", "", line) for line in lines]
    return [
        call for call in calls if re.match(r"perfmodel [a-z]+( |$)", call) and "..." not in call
    ]


@pytest.mark.parametrize("name", sorted({str(path.relative_to(CHECKOUT)) for path in TEXTS}))
def test_every_command_that_is_written_down_exists_with_its_options(name):
    for call in commands_in((CHECKOUT / name).read_text()):
        words = shlex.split(call, comments=True)[1:]
        # Prose may begin a line with the name of the program: only lines with options are calls.
        if not any(word.startswith("--") for word in words):
            continue
        assert words[0] in COMMANDS, call
        command = load_command(words[0])
        known = {option for one in command.params for option in one.opts}
        for word in words[1:]:
            if word == "--":
                break
            inner = getattr(command, "commands", {}).get(word)
            if inner is not None:
                command = inner
                known |= {option for one in command.params for option in one.opts}
            if word.startswith("--"):
                assert word in known | {"--help", "--debug"}, f"{call}: {word}"


def test_the_manual_opens_with_every_command():
    table = (CHECKOUT / "docs" / "index.md").read_text()

    assert [name for name in COMMANDS if f"`{name}" not in table] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page_does_what_it_says_and_prints_what_is_printed(name, tmp_path):
    page = (CHECKOUT / name).read_text()

    different = [
        command.typed for command, lines in follow(page, tmp_path) if command.differs_from(lines)
    ]

    assert different == [], "outputs have moved; `make manual` writes them again"


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_module_that_a_folder_names_is_there(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    named = re.findall(r"`((?:[\w*]+/)*[\w*]+\.(?:py|yaml|j2|md))`", text)

    for table in re.findall(r"^\| module .*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE):
        cells = re.findall(r"^\|([^|]+)\|", table, flags=re.MULTILINE)
        named += [f"{name}*" for cell in cells for name in re.findall(r"`(\w+)`", cell)]

    assert [name for name in named if not _is_there(path.parent, name)] == []


def _is_there(folder: Path, name: str) -> bool:
    if re.match(r"(my_|scenario|tables|plan)", name):  # files of the reader
        return True
    places = (folder, CHECKOUT, CHECKOUT / "perfmodel", folder / "device")
    return any(any(place.glob(name)) for place in places)


@pytest.mark.parametrize(
    "path", sorted(set(TEXTS)), ids=lambda path: str(path.relative_to(CHECKOUT))
)
def test_every_link_leads_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)

    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_error_line_of_the_readme_is_that_of_the_stored_scoreboard():
    text = README.read_text()

    assert text.count(BEGIN) == text.count(END) == 1
    assert with_scoreboard(text) == text, "`make scoreboard` writes it"


def test_stored_scripts_are_pairs_of_the_table():
    with PAIRS.open(newline="", encoding="utf-8") as stream:
        measured = {row["name"]: float(row["measured_ms"]) for row in csv.DictReader(stream)}
    stored = json.loads(SCRIPTS.read_text(encoding="utf-8"))
    assert {name: one["measured_ms"] for name, one in stored.items()}.items() <= measured.items()
    lines = list(script_lines())
    assert len(lines) == 2 + len(measured)
    assert sum("not run" in line for line in lines) == len(measured) - len(stored)


@pytest.mark.parametrize("table", FAMILIES)
def test_the_stored_scoreboard_is_what_validate_runs_prints(table):
    stored = json.loads((SCOREBOARD / "results.json").read_text())[table]
    rows = load_runs(CHECKOUT / "experiments" / "measured" / table).rows
    told = [
        Deviation(row=row, group="", measured=measured, predicted=predicted, low=low, high=high)
        for row, (measured, predicted, low, high) in stored["rows"].items()
    ]
    score = build_score(told)

    # The table follows from its rows, kept with four digits, and some of them asked again are as
    # they are stored. Where predictions moved, `make scoreboard` writes it.
    assert len(told) + len(stored["unsupported"]) == len(rows)
    assert asdict(score) == pytest.approx(stored["overall"], rel=2e-2)
    for row in rows[:: len(rows) // 6]:
        answer = predict_run(PredictOptions(is_explained=False), row)
        if not answer.reason:
            found = [answer.predicted_ns / 1e9, answer.low_ns / 1e9, answer.high_ns / 1e9]
            kept = stored["rows"][str(row.name)][1:]
            assert found == pytest.approx(kept, rel=1e-3), f"{row.name}: `make scoreboard`"


def test_the_notebook_prints_what_it_says():
    stored = load()

    assert executed(stored) == stored, "`make manual` runs it again"


def _words_of(text: str) -> set[str]:
    prose = re.sub(
        r"```.*?```|`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->", " ", text, flags=re.DOTALL
    )
    return {word.lower() for word in re.findall(r"[A-Za-z]+(?:'[a-z]+)?", prose) if len(word) > 3}


@lru_cache(maxsize=1)
def _vocabulary() -> set[str]:
    """Words of `words.txt`, and any that occur in two files of the repository.

    The same misspelling rarely occurs in two of them.
    """
    seen: Counter[str] = Counter()
    for path in [
        *CHECKOUT.glob("*.md"),
        *(found for place in PLACES for found in place.rglob("*")),
    ]:
        if path.suffix in (".py", ".md", ".yaml") and path.parent.name != "_generated":
            text = path.read_text(encoding="utf-8", errors="replace")
            seen.update({word.lower() for word in re.findall(r"[A-Za-z]+", text)})
    known = (CHECKOUT / "docs" / "words.txt").read_text().split()
    return {*known, *(word for word, count in seen.items() if count >= 2)}


@pytest.mark.parametrize("name", NAMES)
def test_every_word_of_a_page_is_known(name):
    words = _words_of((CHECKOUT / name).read_text())
    unknown = {word for word in words if word.removesuffix("'s") not in _vocabulary()}

    assert sorted(unknown) == [], "misspelt, or missing in docs/words.txt"


def _shown_words(text: str) -> set[str]:
    found = {word.lower() for word in re.findall(r"[A-Za-z]+(?:-[a-z]+)*", text)}
    return found - {f"{word}s" for word in found}


def test_a_first_screen_has_plain_words_and_those_of_the_glossary():
    # A word that a new sentence brings goes into the glossary, or into the list of plain words.
    shown = {
        word
        for page in PAGES
        for block in blocks_of(page.read_text())
        if block.kind == "console"
        for command in block.commands()
        for word in _shown_words("\n".join(command.printed[:FIRST_SCREEN]))
    }
    glossary = (CHECKOUT / "docs" / "reference" / "glossary.md").read_text()
    terms = _shown_words(" ".join(re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)))
    plain = set((Path(__file__).with_name("plain_words.txt")).read_text().split())

    known = terms | plain
    assert [
        word for word in sorted(shown) if {word, word.removesuffix("s")}.isdisjoint(known)
    ] == []
    assert not terms & plain


def test_the_check_of_words_finds_a_slip():
    assert "recieve" not in _vocabulary()
    assert "receive" in _vocabulary()
    assert _words_of("We `recieve` a [seperate](occured.md) file.") == {"seperate", "file"}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_code_can_be_read(name):
    for block in blocks_of((CHECKOUT / name).read_text()):
        kind = block.kind.removeprefix("{code-block} ")
        if kind == "python":
            ast.parse(block.text)
        elif kind == "yaml":
            yaml.safe_load(block.text)
        elif kind in ("sh", "console"):
            assert block.text.strip()
        elif not kind.startswith("{"):
            assert kind == "text", f"{name}: a block of {kind!r}"


def test_a_page_is_rewritten_with_what_its_commands_print():
    page = "Ask.\n\n```console\n$ perfmodel a\nold\n...\nend\n$ perfmodel b\n```\n"
    [block] = blocks_of(page)
    a, b = block.commands()

    assert a == Command("perfmodel a", ("old", "...", "end"))
    assert rewritten(page, [(a, ["new", "x", "y", "last"]), (b, ["unsaid"])]) == (
        "Ask.\n\n```console\n$ perfmodel a\nnew\n...\nlast\n$ perfmodel b\n```\n"
    )


def test_the_changelog_says_nothing_twice():
    bullets = re.split(r"^- ", (CHECKOUT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]

    assert len(bullets) == len({" ".join(bullet.split()) for bullet in bullets})
