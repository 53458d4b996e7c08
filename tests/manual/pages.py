"""A page: its files, programs and commands in order, and what it says that commands print.

Blocks of `console` hold commands after `$ ` and what they print; a line `...` means any
lines, and nothing printed means that nothing is said. Blocks with a caption are files, plain
`python` is run. Commands in blocks of `sh` are run too, but for those that need a cluster, a GPU or
minutes; searches are short there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfmodel.cli import main
from tests.manual.reader import prepare

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
    if "_build" not in path.parts and "_generated" not in path.parts
)
ANYTHING = "..."
NOT_RUN = {
    "--ray-address": "needs a cluster",
    "--ray": "starts Ray; tests/execution does",
    "--device cuda": "needs a GPU",
    "--python .venv/cuda": "needs a CUDA build of torch",
    "perfmodel ui": "serves until it is stopped; tests/extensions/ui/test_ui.py asks it",
    "perfmodel validate runs": "minutes; `make scoreboard` runs it",
}
"""Words of commands that pages print and no test runs, and why."""
_BLOCK = re.compile(r"^```([^\n`]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CAPTION = re.compile(r"\A:caption: (\S+)\n\n")


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, and the lines that a page says it prints."""

    typed: str
    printed: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """What follows `perfmodel`."""
        program, *words = shlex.split(self.typed)
        assert program in {"perfmodel", ".venv/bin/perfmodel"}, self.typed
        return words

    def differs_from(self, lines: list[str]) -> bool:
        """Whether it printed something else than is said."""
        return self.printed != () and self.printed != tuple(self.shown(lines))

    def shown(self, lines: list[str]) -> list[str]:
        """Of *lines* as many as the page shows, before and after those it leaves out."""
        if ANYTHING not in self.printed:
            return lines
        before = self.printed.index(ANYTHING)
        after = len(self.printed) - before - 1
        return [*lines[:before], ANYTHING, *lines[len(lines) - after :]]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its kind, its text, and the file it is, if it is one."""

    kind: str
    text: str
    file: str | None

    def commands(self) -> Iterator[Command]:
        """The commands of a console."""
        typed: str | None = None
        printed: list[str] = []
        for line in [*self.text.splitlines(), "$ "]:
            if not line.startswith("$ "):
                printed.append(line)
                continue
            if typed is not None:
                yield Command(typed, tuple(printed))
            typed, printed = line[2:], []

    def calls(self) -> Iterator[str]:
        """The commands of a block without outputs, as a test can run them."""
        for line in self.text.splitlines():
            if line.startswith("perfmodel ") and not any(word in line for word in NOT_RUN):
                quick = " --seconds 1" if line.startswith("perfmodel search") else ""
                yield line.partition("  #")[0].replace("--executor ray", "") + quick


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of *page* in order."""
    for found in _BLOCK.finditer(page):
        kind, text = found[1], found[2]
        caption = _CAPTION.match(text)
        name = caption[1] if caption else None
        yield Block(kind, text[caption.end() :] if caption else text, name)


def follow(page: str, folder: Path) -> Iterator[tuple[Command, list[str]]]:
    """Do in *folder* what *page* says, block after block; every command with what it printed."""
    prepare(folder)
    with contextlib.chdir(folder):
        for block in blocks_of(page):
            if block.file is not None:
                (folder / block.file).write_text(block.text)
            elif block.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(block.text, {})
            elif block.kind == "console":
                for command in block.commands():
                    yield command, run(command)
            elif block.kind == "sh":
                for typed in block.calls():
                    run(Command(typed, ()))


def run(command: Command) -> list[str]:
    """The lines that *command* prints, as wide as the pages are."""
    os.environ["COLUMNS"] = "100"
    if command.words[0] == "emulate":
        return run_apart(command)
    printed, complaints = io.StringIO(), io.StringIO()
    status: object = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        try:
            main(command.words)
        except SystemExit as stop:
            status = stop.code
    assert status in {0, None}, f"{command.typed}: {complaints.getvalue()}"
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def run_apart(command: Command) -> list[str]:
    """The same in a process of its own, as a reader would: emulation forks."""
    outcome = subprocess.run(
        [sys.executable, "-c", "from perfmodel.cli import main; main()", *command.words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    assert outcome.returncode == 0, f"{command.typed}: {outcome.stderr}"
    return [line.rstrip() for line in outcome.stdout.splitlines()]


def rewritten(page: str, told: list[tuple[Command, list[str]]]) -> str:
    """*page* with what its commands printed in place of what it says."""
    answers = iter(told)

    def rewrite(found: re.Match[str]) -> str:
        if found[1] != "console":
            return found[0]
        lines = []
        for command in Block("console", found[2], None).commands():
            again, printed = next(answers)
            assert again == command
            lines += [f"$ {command.typed}", *(command.shown(printed) if command.printed else [])]
        return "\n".join(["```console", *lines, "```"])

    return _BLOCK.sub(rewrite, page)
