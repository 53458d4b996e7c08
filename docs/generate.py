"""Pages that are made: command line, what-ifs, catalogs, columns, scoreboard, notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from notebook import page_lines
from scoreboard import scoreboard_lines

from perfmodel.cli import COMMANDS, load_command
from perfmodel.extensions.whatif import load_recipes

CHECKOUT = Path(__file__).resolve().parent.parent


def write_generated_pages(folder: Path) -> None:
    """Write every generated page to *folder*, for pages that include them."""
    folder.mkdir(exist_ok=True)
    pages = {
        "command_line": _command_line(),
        "whatifs": _whatifs(),
        "machines": _catalog("topologies/catalog"),
        "devices": _catalog("topologies/devices"),
        "workloads": _catalog("perfmodel/workloads/specs"),
        "stacks": _catalog("perfmodel/stacks/catalog"),
        "columns": _columns(),
        "scoreboard": scoreboard_lines(),
        "notebook": page_lines(),
    }
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _command_line() -> Iterator[str]:
    for name in COMMANDS:
        yield from _command_pages(load_command(name), f"perfmodel {name}", level=2)


def _command_pages(command: Any, name: str, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} `{name}`", "", "```text")
    context = command.context_class(
        command, info_name=name, terminal_width=92, max_content_width=92
    )
    yield context.get_help()
    yield from ("```", "")
    for inner in getattr(command, "commands", {}).values():
        yield from _command_pages(inner, f"{name} {inner.name}", level + 1)


def _whatifs() -> Iterator[str]:
    yield from ("| name | does | evidence |", "|---|---|---|")
    for name, recipe in load_recipes().items():
        does = f"{recipe.does} {recipe.more}"
        yield f"| `{name}` | {_cell(does)} | {_cell(recipe.evidence)} |"


def _catalog(place: str) -> Iterator[str]:
    yield from ("| name | what |", "|---|---|")
    for path in sorted((CHECKOUT / place).glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        yield f"| `{path.stem}` | {_cell(document.get('description', ''))} |"


def _columns() -> Iterator[str]:
    document = yaml.safe_load(
        (CHECKOUT / "perfmodel/extensions/measurements/validation/columns.yaml").read_text(
            encoding="utf-8"
        )
    )
    yield from ("```yaml", yaml.safe_dump(document, sort_keys=False, width=100).rstrip(), "```")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
