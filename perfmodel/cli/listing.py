"""Listing: what can be asked for by name."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.costs.stack_chain import list_stacks
from perfmodel.costs.stack_files import load_stack
from perfmodel.prediction.scenario import DEFAULT_WORKLOAD
from perfmodel.workloads.catalog import list_workloads


def print_workloads() -> None:
    """Print the workloads and the software stacks that come with perfmodel."""
    console = Console(width=80, highlight=False)
    workloads = [(title.name, title.description) for title in list_workloads()]
    console.print(_table("Workloads (--workload)", workloads))
    stacks = [(name, load_stack(name).description) for name in list_stacks()]
    console.print(_table("Software stacks (--stack)", stacks))
    console.print(f"Without --workload it is {DEFAULT_WORKLOAD}. Own YAML files work the same way.")


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    for name, description in rows:
        table.add_row(Text(name), Text(" ".join(description.split())))
    return table
