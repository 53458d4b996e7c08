"""`perfmodel init`: a commented file to start from."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.base.errors import OutputError
from perfmodel.base.writing import STDOUT, check_writable, write_output

app = typer.Typer(rich_markup_mode=None)
TEMPLATES = Path(__file__).parent / "templates"

EPILOG = """\b
Examples:
  perfmodel init workload --out my_gpt.yaml      a Transformer
  perfmodel init dlrm --out my_dlrm.yaml         a recommendation model
  perfmodel init topology --out my_host.yaml && perfmodel topology check my_host.yaml
"""


class Kind(Enum):
    """What a template is there for."""

    WORKLOAD = "workload"
    DLRM = "dlrm"
    TOPOLOGY = "topology"
    TABLES = "tables"
    SCENARIO = "scenario"


@app.command(epilog=EPILOG)
def init(
    kind: Annotated[Kind, typer.Argument(help="What the file describes.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to; - is stdout.")] = STDOUT,
) -> None:
    """Write a commented template that perfmodel accepts as it is."""
    if out != STDOUT and Path(out).exists():
        raise OutputError(f"{out}: exists already, and is not overwritten. Name another file.")
    if out != STDOUT:
        check_writable("--out", Path(out))
    write_output(out, (TEMPLATES / f"{kind.value}.yaml").read_text(encoding="utf-8"))
    if out != STDOUT:
        print(f"Wrote {out}")
