"""`perfmodel doctor`: what this installation has, and what it lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.options import JsonFile

app = typer.Typer(rich_markup_mode=None)


@app.command()
def doctor(
    is_thorough: Annotated[
        bool, typer.Option("--ray", help="Also start Ray on this machine and stop it again.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Say which versions are installed, where packages come from, and what is missing."""
    from perfmodel import api
    from perfmodel.api.about import EXTRAS
    from perfmodel.reports.listings import report_installation
    from perfmodel.reports.terminal import print_report

    found = api.examine_installation(try_ray=is_thorough)
    write_json(json_file, found)
    if json_file != STDOUT:
        print_report(report_installation(found, EXTRAS))
    if found["faults"]:
        raise typer.Exit(1)
