"""`perfmodel init`, `schema` and `doctor`: templates, schemas, the state of an installation."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel import api
from perfmodel.api.about import EXTRAS, SchemaKind, TemplateKind
from perfmodel.base.options import Option
from perfmodel.base.writing import STDOUT, to_json
from perfmodel.cli.commands import command
from perfmodel.cli.options import JsonFile, Outputs, argument

INIT_EPILOG = """\b
Examples:
  perfmodel init workload --out my_gpt.yaml      a Transformer
  perfmodel init dlrm --out my_dlrm.yaml         a recommendation model
  perfmodel init topology --out my_host.yaml && perfmodel topology check my_host.yaml
  perfmodel init device --out my_gpu.yaml        a GPU
"""
SCHEMA_EPILOG = """\b
Examples:
  perfmodel schema workload
  perfmodel schema predict | less
  perfmodel schema topology --json > topology.schema.json
\b
`perfmodel init KIND` writes a commented file of some of these kinds.
"""


@command(epilog=INIT_EPILOG)
def init(
    kind: Annotated[TemplateKind, argument("KIND", "What the file describes.")],
    out: Annotated[str, Option(metavar="FILE", help="File to write; - is stdout.")] = STDOUT,
) -> None:
    """Write a commented template that perfmodel accepts as it is."""
    text = api.init(kind, None if out == STDOUT else out)
    print(text if out == STDOUT else f"Wrote {out}\n", end="")


@command(epilog=SCHEMA_EPILOG)
def schema(
    kind: Annotated[SchemaKind, argument("KIND", "What to describe.")],
    is_json: Annotated[
        bool, Option(name="--json", help="Print JSON Schema, for editors and other programs.")
    ] = False,
) -> None:
    """Print the fields of a file that perfmodel reads, or of the JSON that it writes."""
    print(to_json(api.json_schema(kind)).rstrip() if is_json else api.describe_schema(kind))


@command()
def doctor(
    try_ray: Annotated[
        bool, Option(name="--ray", help="Also start Ray on this machine and stop it again.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Show which versions are installed, where packages come from, and what is missing."""
    from perfmodel.reports.machines import report_installation

    found = api.examine_installation(try_ray=try_ray)
    Outputs(json_file).write(report_installation(found, EXTRAS), lambda: found)
    if found["faults"]:
        raise typer.Exit(1)
