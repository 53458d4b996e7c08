"""`perfmodel init`: a commented file to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.api.about import TemplateKind
from perfmodel.base.writing import STDOUT

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel init workload --out my_gpt.yaml      a Transformer
  perfmodel init dlrm --out my_dlrm.yaml         a recommendation model
  perfmodel init topology --out my_host.yaml && perfmodel topology check my_host.yaml
"""


@app.command(epilog=EPILOG)
def init(
    kind: Annotated[TemplateKind, typer.Argument(help="What the file describes.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to; - is stdout.")] = STDOUT,
) -> None:
    """Write a commented template that perfmodel accepts as it is."""
    from perfmodel import api

    text = api.init(kind, None if out == STDOUT else out)
    print(text if out == STDOUT else f"Wrote {out}\n", end="")
