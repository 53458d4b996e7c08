"""`perfmodel validate`: predictions beside tables of measurements, one command a kind of table."""

from __future__ import annotations

import typer

from perfmodel.cli.collective_tables import validate_collectives_command
from perfmodel.cli.kernel_tables import validate_attention, validate_gemm, validate_memory
from perfmodel.cli.run_tables import validate_runs

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def validate() -> None:
    """Compare predictions with measurements; exit 1 beyond the limit."""


app.command("collectives")(validate_collectives_command)
app.command("gemm")(validate_gemm)
app.command("attention")(validate_attention)
app.command("memory")(validate_memory)
app.command("runs")(validate_runs)
