"""`perfmodel workload`: list and show the models that come with perfmodel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.prediction.scenario import DEFAULT_WORKLOAD

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List and show models. Example: perfmodel workload show llama3_8b",
)


@app.command("list")
def list_models() -> None:
    """List the workloads and software stacks that come with perfmodel.

    Example: perfmodel workload list
    """
    from rich.console import Console

    from perfmodel import api

    console = Console(width=80, highlight=False)
    workloads = [(title.name, title.description) for title in api.list_workloads()]
    console.print(_table("Workloads (--workload)", workloads))
    stacks = [(name, api.load_stack(name).description) for name in api.list_stacks()]
    console.print(_table("Software stacks (--stack)", stacks))
    console.print(f"Without --workload it is {DEFAULT_WORKLOAD}. Own YAML files work the same way.")


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    for name, description in rows:
        table.add_row(Text(name), Text(" ".join(description.split())))
    return table


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name of the catalog, or a file.")],
) -> None:
    """Print the file of a workload, to be changed and used.

    Example: perfmodel workload show llama3_8b > my_gpt.yaml
    """
    from perfmodel import api
    from perfmodel.workloads.catalog import find_workload

    api.load_workload(name)
    print(find_workload(name).read_text(encoding="utf-8"), end="")
