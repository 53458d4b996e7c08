"""`perfmodel calibrate`: constants fitted to measurements, one command a kind of table."""

from __future__ import annotations

import typer

from perfmodel.cli.collective_tables import calibrate_collectives_command

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def calibrate() -> None:
    """Fit constants to measurements, or check a fit on rows it has not seen."""


app.command("collectives")(calibrate_collectives_command)
