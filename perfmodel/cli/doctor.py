"""`perfmodel doctor`: what this installation has, and what it lacks."""

from __future__ import annotations

from typing import Annotated, Any

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

    found = api.examine_installation(try_ray=is_thorough)
    write_json(json_file, found)
    if json_file != STDOUT:
        print("\n".join(tell(found)))
    if found["faults"]:
        raise typer.Exit(1)


def tell(found: dict[str, Any]) -> list[str]:
    """The document for people."""
    heading = (
        f"perfmodel {found['perfmodel']} on Python {found['python']}, {found['system']}, "
        f"{found['cores']} cores, {found['memory_gib']} GiB of memory"
    )
    from perfmodel.api.about import EXTRAS

    lines = [heading]
    lines += [f"  {name:<12} {place or 'NOT FOUND'}" for name, place in found["places"].items()]
    lines.append(
        "  "
        + ", ".join(f"{name} {version or 'MISSING'}" for name, version in found["versions"].items())
    )
    lines += [
        f"  without {name}: no {use}. Install it with: pip install 'perfmodel[emulate]'"
        for name, use in EXTRAS.items()
        if found["versions"][name] is None
    ]
    lines.append(f"  Ray: {found['ray']}")
    lines += [f"  fault: {fault}" for fault in found["faults"]]
    return [*lines, "All well." if not found["faults"] else "Something is amiss; see above."]
