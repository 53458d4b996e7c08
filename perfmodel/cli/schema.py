"""`perfmodel schema`: what files that perfmodel reads and writes have in them."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.api.about import SchemaKind

app = typer.Typer(add_completion=False, rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel schema workload
  perfmodel schema predict | less
\b
`perfmodel init KIND` writes a commented file of some of these kinds.
"""


@app.command(epilog=EPILOG)
def schema(kind: Annotated[SchemaKind, typer.Argument(help="What to describe.")]) -> None:
    """Print the fields of a file that perfmodel reads, or of the JSON that it writes."""
    from perfmodel import api

    print(api.describe_schema(kind))
