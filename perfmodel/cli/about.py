"""`perfmodel init` and `perfmodel doctor`: files to start from, the state of an installation."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel import api
from perfmodel.api.about import EXTRAS, TemplateKind
from perfmodel.base.options import Option
from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.commands import command
from perfmodel.cli.outputs import JsonFile

INIT_EPILOG = """\b
Examples:
  perfmodel init workload --out my_gpt.yaml      a Transformer
  perfmodel init dlrm --out my_dlrm.yaml         a recommendation model
  perfmodel init topology --out my_host.yaml && perfmodel topology check my_host.yaml
"""


@command(epilog=INIT_EPILOG)
def init(
    kind: Annotated[TemplateKind, Option(is_argument=True, help="What the file describes.")],
    out: Annotated[str, Option(metavar="FILE", help="File to write; - is stdout.")] = STDOUT,
) -> None:
    """Write a commented template that perfmodel accepts as it is."""
    text = api.init(kind, None if out == STDOUT else out)
    print(text if out == STDOUT else f"Wrote {out}\n", end="")


@command()
def doctor(
    try_ray: Annotated[
        bool, Option(name="--ray", help="Also start Ray on this machine and stop it again.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Show which versions are installed, where packages come from, and what is missing."""
    found = api.examine_installation(try_ray=try_ray)
    write_json(json_file, found)
    if json_file != STDOUT:
        print("\n".join(describe_installation(found)))
    if found["faults"]:
        raise typer.Exit(1)


def describe_installation(found: dict[str, Any]) -> list[str]:
    """The lines that `doctor` prints about the document *found*."""
    versions = found["versions"]
    heading = (
        f"perfmodel {found['perfmodel']} on Python {found['python']}, {found['system']}, "
        f"{found['cores']} cores, {found['memory_gib']} GiB of memory"
    )
    return [
        heading,
        *(f"  {name:<12} {place or 'NOT FOUND'}" for name, place in found["places"].items()),
        "  " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items()),
        *(
            f"  without {name}: no {use}. Install it with: pip install 'perfmodel[emulate]'"
            for name, use in EXTRAS.items()
            if versions[name] is None
        ),
        f"  Ray: {found['ray']}",
        *(f"  fault: {fault}" for fault in found["faults"]),
        "Something is amiss; see above." if found["faults"] else "All well.",
    ]
