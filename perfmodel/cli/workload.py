"""`perfmodel workload`: list and show the models that come with perfmodel."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.prediction.scenario import DEFAULT_WORKLOAD

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
    from perfmodel import api
    from perfmodel.reports.listings import report_models
    from perfmodel.reports.terminal import print_report

    workloads = [(title.name, title.description) for title in api.list_workloads()]
    stacks = [(name, api.load_stack(name).description) for name in api.list_stacks()]
    print_report(report_models(workloads, stacks, default=DEFAULT_WORKLOAD))


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
