"""`perfmodel schema`: what files that perfmodel reads and writes have in them."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.api.schemas import SchemaKind

app = typer.Typer(add_completion=False, rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel schema workload
  perfmodel schema predict | less
  perfmodel schema topology --json > topology.schema.json
\b
`perfmodel init KIND` writes a commented file of some of these kinds.
"""


@app.command(epilog=EPILOG)
def schema(
    kind: Annotated[SchemaKind, typer.Argument(help="What to describe.")],
    is_json: Annotated[
        bool, typer.Option("--json", help="Print JSON Schema, for editors and other programs.")
    ] = False,
) -> None:
    """Print the fields of a file that perfmodel reads, or of the JSON that it writes."""
    from perfmodel import api
    from perfmodel.base.writing import to_json

    print(to_json(api.json_schema(kind)).rstrip() if is_json else api.describe_schema(kind))
