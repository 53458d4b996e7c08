"""The index of figures and tables, as the table of README.md states it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parent / "README.md"
MADE = ("with measurements", "prediction only", "drawn")
ASKED_FOR = ("needs your script", "needs torch")
_LINE = re.compile(r"^\| (?P<what>[^|]+) \| (?P<cells>[^|]+) \| (?P<state>[^|]+) \|$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: what is shown, in which folder, as which files, and its state."""

    what: str
    folder: str
    pictures: tuple[str, ...]
    state: str

    @property
    def is_made(self) -> bool:
        """Whether `make figures` makes it; others need more than a clone."""
        return self.state in MADE


def read_index() -> list[Entry]:
    """Every line of the index, in its order."""
    entries = []
    for line in README.read_text(encoding="utf-8").splitlines():
        found = _LINE.match(line)
        if found is None or found["what"] in ("figure or table", "---"):
            continue
        links = re.findall(r"\[[^\]]+\]\(([^)/]+)/([^)]*)\)", found["cells"])
        if links:
            files = tuple(file for _, file in links if file not in ("", "README.md"))
            entries.append(Entry(found["what"], links[0][0], files, found["state"].strip()))
    return entries
