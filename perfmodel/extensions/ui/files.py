"""Files: what the page may read.

That are the catalogs, what the user named or dropped, and what is below the start folder. Dropped
files and changed machines are kept in a private folder that ends with the program.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import yaml

from perfmodel import api
from perfmodel.base.errors import InputError, PerfModelError
from perfmodel.base.reading import read_text

MOST_BYTES = 4 * 2**20
"""The largest file that can be dropped."""
MOST_PAGE_BYTES = 64 * 2**20
LOAD: dict[str, Callable[[str], Any]] = {
    "workload": api.load_workload,
    "topology": api.load_topology,
}
_CATALOGS: dict[str, Callable[[], tuple[str, ...]]] = {
    "workload": lambda: tuple(one.name for one in api.list_workloads()),
    "topology": api.list_topologies,
}
_META = re.compile(r'<meta name="perfmodel-question" content="([^"]*)">')


@dataclass(slots=True)
class Files:
    """Files by the name that a state calls them; *kinds* says whether each is a model or machine.

    Those below *start* have their path as name; *scratch* is the private folder, in which *made*
    are the changed machines.
    """

    start: Path
    scratch: Path
    own: dict[str, Path] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)

    def offered(self, kind: str) -> tuple[str, ...]:
        """The names to choose a *kind* from, own ones first."""
        return (*(name for name in self.own if self.kinds[name] == kind), *_CATALOGS[kind]())

    def find(self, kind: str, name: str) -> str:
        """What to load the *kind* called *name* from."""
        if name in self.own:
            return str(self.own[name])
        if name in self.offered(kind):
            return name
        path = (self.start / name).resolve()
        if name and path.is_relative_to(self.start) and path.is_file():
            return os.path.relpath(path)
        raise InputError(
            f"{kind}: {name!r} is neither in the catalog nor a file below {self.start}. Drop the "
            "file on the page, or start `perfmodel ui` in its folder."
        )

    def name(self, kind: str, file: str) -> None:
        """Offer the *file* that the user named."""
        LOAD[kind](file)
        self.own[file], self.kinds[file] = Path(file).absolute(), kind

    def add(self, name: str, content: bytes) -> tuple[str, str]:
        """Offer a dropped file; whether it is a model or a machine, and its name."""
        if len(content) > MOST_BYTES:
            raise InputError(f"{name}: must be at most {MOST_BYTES >> 20} MiB. Name it instead: "
                             "`perfmodel ui --workload FILE`.")  # fmt: skip
        safe = re.sub(r"[^\w.-]", "_", Path(name).name)[-80:].lstrip(".") or "file"
        if safe in self.own and self.own[safe].read_bytes() != content:
            safe = f"{hashlib.sha256(content).hexdigest()[:6]}_{safe}"
        path = self.scratch / safe
        path.write_bytes(content)
        faults: list[PerfModelError] = []
        for kind, load in LOAD.items():
            try:
                load(str(path))
            except PerfModelError as fault:
                faults.append(fault)
            else:
                self.own[safe], self.kinds[safe] = path, kind
                return kind, safe
        path.unlink()
        said = str(faults[b"vertices" in content]).replace(f"{self.scratch}/", "")
        raise InputError(said)

    def write(self, name: str, content: Mapping[str, Any]) -> str:
        """The path of a document that is made of what the page says."""
        path = self.scratch / f"{name}.yaml"
        self.made[path.name] = yaml.safe_dump(content, sort_keys=False)
        path.write_text(self.made[path.name], "utf-8")
        return str(path)

    def save(self, page: str, state: Mapping[str, str]) -> str:
        """The *page* of an answer with its question: the *state*, and the own files in it."""
        meant = {
            state[kind]: Path(self.find(kind, state[kind])).read_text("utf-8")
            for kind in LOAD
            if state[kind] not in _CATALOGS[kind]()
        }
        content = html.escape(json.dumps({"state": dict(state), "files": meant}))
        meta = f'<head>\n<meta name="perfmodel-question" content="{content}">'
        return page.replace("<head>", meta, 1)

    def reopen(self, opened: str) -> dict[str, str]:
        """The state in a saved page or in a pasted address; own files come with the page."""
        if re.match(r"https?://", opened):
            return dict(parse_qsl(opened.partition("#")[2]))
        found = _META.search(read_text(Path(opened), InputError, MOST_PAGE_BYTES))
        if found is None:
            raise InputError(
                f"{opened}: is no page that `perfmodel ui` saved. Give such a page, or an address "
                "that was copied from one; a model is named with --workload."
            )
        saved = json.loads(html.unescape(found[1]))
        names = {name: self.add(name, text.encode())[1] for name, text in saved["files"].items()}
        return {key: names.get(value, value) for key, value in saved["state"].items()}
